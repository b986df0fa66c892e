"""Who is in the cohort, and how often."""

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs.base import Design, checked_design


def inclusion_probability(design: Design) -> NDArray[np.float64]:
    """Return the chance of each client to be in the cohort, shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> inclusion_probability(MultinomialDesign(Population([6, 2]), 2)).round(6).tolist()
    [0.9375, 0.4375]
    """
    return checked_design(design).inclusion_probability()


def max_count(design: Design) -> NDArray[np.int64]:
    """Return how often each client can be drawn at most in one round, shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> max_count(MultinomialDesign(Population([6, 0]), cohort_size=2)).tolist()
    [2, 0]
    """
    return checked_design(design).max_count()


def expected_distinct(design: Design) -> float:
    """Return how many different clients a cohort has on average.

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> expected_distinct(MultinomialDesign(Population([6, 2]), cohort_size=2))
    1.375
    """
    return float(checked_design(design).inclusion_probability().sum())
