"""What full participation would have done: the yardstick that a real server does not have."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fedcohort._display import short_repr
from fedcohort.designs import Design, MultinomialDesign


@dataclass(frozen=True, slots=True)
class Yardstick:
    r"""One round against full participation, where every client trains.

    Attributes
    ----------
    squared_error
        :math:`\|\sum w_i \Delta_i - \sum p_i \Delta_i\|^2` of the cohort that was drawn.
    design_variance
        Its expectation under the design, B (squared bias included); with the difference
        estimator B of what is not remembered; NaN where the design has no formula for it.
    multinomial_variance
        Its expectation under multinomial sampling and plain aggregation, B_MD.
    beta_squared
        Of Assumption 3 with :math:`\kappa = 0`:
        :math:`\sum p_i \|g_i\|^2 / \|\sum p_i g_i\|^2`, :math:`g_i` the clients' gradients.
    kappa_squared
        Of Assumption 3 with :math:`\beta = 1`:
        :math:`\sum p_i \|g_i\|^2 - \|\sum p_i g_i\|^2`.
    """

    squared_error: float
    design_variance: float
    multinomial_variance: float
    beta_squared: float
    kappa_squared: float

    def __repr__(self) -> str:
        return short_repr(self, **asdict(self))

    @property
    def is_finite(self) -> bool:
        """Whether every client's training and gradient was finite."""
        return not math.isnan(self.squared_error)


def yardstick(
    design: Design,
    aggregate: NDArray[np.float32],
    updates: NDArray[np.float32],
    gradients: NDArray[np.float32],
    remembered: NDArray[np.float32] | None = None,
) -> Yardstick:
    """Compare a cohort's aggregate with what all clients' updates and gradients say.

    ``updates``, ``gradients`` and ``remembered`` (h of the difference estimator) have shape
    (n_clients, size), ``aggregate`` (size,). Where a client's are not finite, every number is NaN.
    """
    importance = design.population.importance
    if not all(np.isfinite(each).all() for each in (updates, gradients)):
        return Yardstick(*[math.nan] * len(fields(Yardstick)))
    error = aggregate.astype(np.float64) - importance @ updates
    mean = importance @ gradients
    squares = float(importance @ np.einsum("ij,ij->i", gradients, gradients, dtype=np.float64))
    of_mean = float(mean @ mean)
    left = updates if remembered is None else updates - remembered
    return Yardstick(
        squared_error=float(error @ error),
        design_variance=design.aggregate_variance(left) if design.exact_moments else math.nan,
        multinomial_variance=MultinomialDesign(
            design.population, design.cohort_size
        ).aggregate_variance(updates),
        beta_squared=squares / of_mean if of_mean > 0 else float("inf"),
        kappa_squared=max(squares - of_mean, 0.0),
    )
