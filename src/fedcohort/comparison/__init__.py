"""Compare designs on given clients: evaluate each of them and show the results."""

from fedcohort._arguments import suggest_names as _suggest_names
from fedcohort.comparison.rows import compare
from fedcohort.comparison.shown import CohortSizes, Comparison

__all__ = ["CohortSizes", "Comparison", "compare"]

_suggest_names(__name__, __all__)
