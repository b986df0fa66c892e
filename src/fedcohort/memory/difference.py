"""The difference estimator: its settings, and the memory that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedcohort._arguments import brief
from fedcohort._updates import Array
from fedcohort.errors import AggregationError
from fedcohort.memory.base import Memory, n_shares
from fedcohort.memory.cluster_means import ClusterMeans
from fedcohort.memory.update_memory import UpdateMemory

#: How updates are aggregated, by name.
EstimatorName = Literal["plain", "difference"]
#: More means than these fit no memory.
MOST_CLUSTERS = 10**9
#: The names of the estimators.
ESTIMATORS: tuple[EstimatorName, ...] = get_args(EstimatorName)


@dataclass(frozen=True, slots=True)
class Difference:
    r"""Settings of the difference estimator.

    .. math:: v = \sum_i w_i (\Delta_i - h_i) + \sum_j p_j h_j ,

    It is unbiased for every design with :math:`E[w] = p` and every h that is fixed before the
    draw; its variance is the design's on :math:`\Delta - h`.

    Attributes
    ----------
    shrink
        h is so much of what is remembered: 1 all, 0 the plain aggregate.
    clusters
        None remembers every client's last update, n x d numbers; K remembers the means of K
        clusters of clients, K x d numbers, and to which cluster each client's last update was
        nearest.

    References
    ----------
    D. Jhunjhunwala et al., "FedVARP: tackling the variance due to partial client participation",
    2022, for uniform sampling.
    """

    shrink: float = 1.0
    clusters: int | None = None

    def __post_init__(self) -> None:
        is_number = isinstance(self.shrink, Real) and not isinstance(self.shrink, bool)
        if not is_number or not 0.0 <= self.shrink <= 1.0:
            raise AggregationError(
                f"Difference: shrink must be from 0 to 1; got {brief(self.shrink)}. 1 trusts "
                f"the memory, 0 ignores it."
            )
        object.__setattr__(self, "shrink", float(self.shrink))
        if self.clusters is None:
            return
        try:
            clusters = 0 if isinstance(self.clusters, (bool, np.bool_)) else index(self.clusters)
        except TypeError:
            clusters = 0
        if not 1 <= clusters <= MOST_CLUSTERS:
            raise AggregationError(
                f"Difference: clusters must be a whole number from 1 to 10^9, or None; got "
                f"{brief(self.clusters)}. None remembers every client."
            )
        object.__setattr__(self, "clusters", clusters)

    def memory(self, importance: ArrayLike, zeros: Array) -> Memory:
        """Make the estimator's memory, empty.

        ``importance`` is the population's, shape (n_clients,); ``zeros`` is a flat model of zeros,
        a numpy array or a torch tensor, of the type and on the device that updates have.
        """
        if self.clusters is not None:
            return ClusterMeans(importance, zeros, shrink=self.shrink, clusters=self.clusters)
        n, dimension = n_shares(importance), int(sum(getattr(zeros, "shape", ())))
        own = np.empty(0, dtype=object) if zeros is None else zeros  # None is no default here
        return UpdateMemory(
            n, max(dimension, 1), importance=importance, zeros=own, shrink=self.shrink
        )


def estimator_of(owner: str, estimator: EstimatorName | Difference) -> Difference | None:
    """Return the settings that an estimator's name stands for; None for the plain one."""
    if isinstance(estimator, Difference):
        return estimator
    if not isinstance(estimator, str) or estimator not in ESTIMATORS:
        raise AggregationError(
            f"{owner}: estimator must be one of {', '.join(ESTIMATORS)}, or a Difference; got "
            f"{brief(estimator)}."
        )
    return Difference() if estimator == "difference" else None
