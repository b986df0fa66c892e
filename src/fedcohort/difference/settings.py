"""Settings of the difference estimator."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedcohort._updates import Array
from fedcohort.difference.cluster_means import ClusterMeans
from fedcohort.difference.control_variates import ControlVariates
from fedcohort.difference.last_updates import LastUpdates
from fedcohort.errors import AggregationError

#: How updates are aggregated, by name.
EstimatorName = Literal["plain", "difference"]
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
        if not isinstance(self.shrink, Real) or not 0.0 <= self.shrink <= 1.0:
            raise AggregationError(
                f"Difference: shrink must be from 0 to 1; got {self.shrink!r}. 1 trusts the "
                f"memory, 0 ignores it."
            )
        object.__setattr__(self, "shrink", float(self.shrink))
        if self.clusters is None:
            return
        try:
            clusters = 0 if isinstance(self.clusters, (bool, np.bool_)) else index(self.clusters)
        except TypeError:
            clusters = 0
        if clusters < 1:
            raise AggregationError(
                f"Difference: clusters must be a whole number of at least 1, or None; got "
                f"{self.clusters!r}. None remembers every client."
            )
        object.__setattr__(self, "clusters", clusters)

    def memory(self, importance: ArrayLike, zeros: Array) -> ControlVariates:
        """Make the estimator's memory, empty.

        ``importance`` is the population's, shape (n_clients,); ``zeros`` is a flat model of zeros,
        a numpy array or a torch tensor, of the type and on the device that updates have.
        """
        if self.clusters is None:
            return LastUpdates(importance, zeros, shrink=self.shrink)
        return ClusterMeans(importance, zeros, shrink=self.shrink, clusters=self.clusters)


def estimator_of(owner: str, estimator: EstimatorName | Difference) -> Difference | None:
    """Return the settings that an estimator's name stands for; None for the plain one."""
    if isinstance(estimator, Difference):
        return estimator
    if estimator not in ESTIMATORS:
        raise AggregationError(
            f"{owner}: estimator must be one of {', '.join(ESTIMATORS)}, or a Difference; got "
            f"{estimator!r}."
        )
    return Difference() if estimator == "difference" else None
