"""Compare designs on given clients: evaluate each of them and show the results."""

from fedcohort.comparison.rows import compare
from fedcohort.comparison.shown import Comparison

__all__ = ["Comparison", "compare"]
