"""Tools to test designs: the contract that every design must pass, and its helpers."""

from fedcohort.errors import ContractError
from fedcohort.testing.contract import EVERYWHERE, OF_RECIPES, ONCE, check_design
from fedcohort.testing.laws import (
    FALSE_ALARM,
    Candidate,
    Counts,
    Law,
    Moments,
    aggregate_variance,
    agree,
    follows_law,
    importance,
    independent_rows,
    law_of_rows,
    moments,
)

__all__ = [
    "EVERYWHERE",
    "FALSE_ALARM",
    "OF_RECIPES",
    "ONCE",
    "Candidate",
    "ContractError",
    "Counts",
    "Law",
    "Moments",
    "aggregate_variance",
    "agree",
    "check_design",
    "follows_law",
    "importance",
    "independent_rows",
    "law_of_rows",
    "moments",
]
