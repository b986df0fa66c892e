"""A Flower app whose clients are drawn by fedcohort."""
