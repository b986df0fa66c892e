"""fedcohort's simulator beside what others use for the same work."""
