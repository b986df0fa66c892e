"""Candidates: the clients that are asked something before some of them are chosen."""

import numpy as np
from numpy.typing import NDArray

from fedcohort._subsets import draw_subsets
from fedcohort.errors import DesignError
from fedcohort.population import Population

#: Candidates for each member of the cohort, where nothing else is said.
CANDIDATES_A_DRAW = 3


def check_candidates(owner: str, candidates: int, cohort_size: int) -> None:
    """Validate a number of candidates: at least the cohort's size, or 0."""
    if candidates < 0 or 0 < candidates < cohort_size:
        raise DesignError(
            f"{owner}: candidates must be a whole number of at least cohort_size, "
            f"{cohort_size}, or 0 for {CANDIDATES_A_DRAW} times that; got {candidates!r}. "
            f"Raise it."
        )


def n_candidates(candidates: int, cohort_size: int, population: Population) -> int:
    """Return how many clients are asked: at least the cohort's size, at most all with samples."""
    wanted = candidates or CANDIDATES_A_DRAW * cohort_size
    return min(wanted, int(np.count_nonzero(population.sizes)))


def equal_candidates(
    population: Population, number: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw distinct clients with samples, all subsets equally likely; sorted."""
    drawable = np.flatnonzero(population.sizes)
    return np.sort(drawable[draw_subsets(rng, len(drawable), number, 1)[0]])


def candidates_by_importance(
    population: Population, number: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw distinct clients one after the other, each by importance among those left; sorted."""
    # The first of independent exponential clocks of rates p is a draw by p, and so is the next
    # among those left.
    drawable = np.flatnonzero(population.sizes)
    rings = rng.exponential(size=len(drawable)) / population.importance[drawable]
    return np.sort(drawable[np.argsort(rings)[:number]])
