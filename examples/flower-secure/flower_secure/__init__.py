"""A Flower app with secure aggregation, whose clients are drawn by fedcohort."""
