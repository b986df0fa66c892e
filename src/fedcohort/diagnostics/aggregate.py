"""How far a cohort's aggregate lies from full participation."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedcohort._arguments import Rng, checked_rng, checked_rounds
from fedcohort._display import short_repr
from fedcohort.designs.base import Design, checked_design
from fedcohort.errors import DesignError
from fedcohort.similarity.measures import checked_updates

#: Entries of aggregates that are worked on at a time, 32 MB.
BLOCK_ENTRIES = 2**22


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that was measured on draws.

    Attributes
    ----------
    value
        The mean over the draws.
    standard_error
        How far it typically lies from what it estimates.
    """

    value: float
    standard_error: float

    def __repr__(self) -> str:
        return short_repr(self, value=self.value, standard_error=self.standard_error)


def aggregate_variance(design: Design, updates: ArrayLike) -> float:
    r"""Return :math:`E\|\sum_i w_i \Delta_i - \sum_i p_i \Delta_i\|^2`, squared bias included.

    For row designs this is B of Fraboni et al. (2021), appendix A. ``updates`` has shape
    (n_clients, dimension). A design without ``exact_moments`` raises
    :class:`~fedcohort.errors.DesignError`: use :func:`estimated_aggregate_variance`.

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> aggregate_variance(MultinomialDesign(Population([6, 2]), cohort_size=3), [[1.0], [5.0]])
    1.0
    """
    return checked_design(design).aggregate_variance(updates)


def estimated_aggregate_variance(
    design: Design, updates: ArrayLike, *, rng: Rng = None, rounds: int
) -> Estimate:
    r"""Measure :math:`E\|\sum_i w_i \Delta_i - \sum_i p_i \Delta_i\|^2` on drawn cohorts.

    For every design, with or without a formula; squared bias included. ``updates`` has shape
    (n_clients, dimension), ``rounds`` cohorts are drawn, at least 2.

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> design = MultinomialDesign(Population([6, 2]), cohort_size=3)
    >>> estimate = estimated_aggregate_variance(design, [[1.0], [5.0]], rng=0, rounds=10_000)
    >>> abs(estimate.value - 1.0) < 4 * estimate.standard_error < 0.1
    True
    """
    owner = "estimated_aggregate_variance"
    n_clients = checked_design(design).population.n_clients
    deltas = checked_updates(owner, updates, n_clients).astype(np.float64)
    rng = checked_rng(owner, rng)
    if checked_rounds(owner, rounds) < 2:
        raise DesignError(
            f"{owner}: rounds must be at least 2, for a standard error; got {rounds}. Draw more."
        )
    mean = design.population.importance @ deltas
    squares = np.empty(rounds)
    step = max(1, BLOCK_ENTRIES // deltas.shape[1])
    for start in range(0, rounds, step):
        off = design.draw_weights(min(step, rounds - start), rng) @ deltas - mean
        squares[start : start + step] = np.einsum("ij,ij->i", off, off)
    # In this unit the squares of squares neither overflow nor vanish.
    unit = float(squares.max()) or 1.0
    scaled = squares / unit
    error = float(scaled.std(ddof=1)) / math.sqrt(rounds)
    return Estimate(unit * float(scaled.mean()), unit * error)
