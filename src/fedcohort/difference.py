"""The difference estimator: what is remembered of clients takes the variance out of a cohort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import AggregationError

EstimatorName = Literal["plain", "difference"]
ESTIMATORS: tuple[EstimatorName, ...] = get_args(EstimatorName)

#: A numpy array or a torch tensor: the estimator lives where the updates are.
Array = Any


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
        if not isinstance(self.shrink, (int, float)) or not 0.0 <= self.shrink <= 1.0:
            raise AggregationError(
                f"Difference: shrink must be from 0 to 1; got {self.shrink!r}. 1 trusts the "
                f"memory, 0 ignores it."
            )
        if self.clusters is not None and (type(self.clusters) is not int or self.clusters < 1):
            raise AggregationError(
                f"Difference: clusters must be a whole number of at least 1, or None; got "
                f"{self.clusters!r}."
            )

    def memory(self, importance: NDArray[np.float64], zeros: Array) -> ControlVariates:
        """Make the estimator's memory; ``zeros`` is a model's shape, flat, all 0."""
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


class ControlVariates(ABC):
    """What is remembered of the clients, h, and the aggregate that it makes steadier.

    Nothing changes but by ``record`` and ``reweigh``: in a round h is what it was before the draw.

    Parameters
    ----------
    importance
        p, shape (n_clients,).
    zeros
        Shape (dimension,), of the kind, type and device that updates have.
    shrink
        The part of what is remembered that is used.
    """

    def __init__(self, importance: NDArray[np.float64], zeros: Array, *, shrink: float) -> None:
        self._importance, self._zeros, self._shrink = importance, zeros, shrink

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        """Return v, shape (dimension,); ``updates`` has one row for each of ``clients``."""
        differences = updates - self.of(clients)
        return _like(weights, updates) @ differences + self.expected()

    def of(self, clients: NDArray[np.int64]) -> Array:
        """Return h of these clients, shape (len(clients), dimension)."""
        return self._shrink * self._remembered(clients)

    def expected(self) -> Array:
        """Return the sum of p h over all clients, shape (dimension,)."""
        return self._shrink * self._mean()

    @abstractmethod
    def record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember the round's updates, one row for each of ``clients``."""

    @abstractmethod
    def reweigh(self, importance: NDArray[np.float64]) -> None:
        """Take another p; clients beyond those that there were are new, one with p = 0 is away."""

    @abstractmethod
    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as numpy arrays."""

    @abstractmethod
    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""

    @abstractmethod
    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        """Return what is remembered of these clients, before it is shrunk."""

    @abstractmethod
    def _mean(self) -> Array:
        """Return the importance-weighted mean of what is remembered."""


class LastUpdates(ControlVariates):
    """Every client's last update, and their weighted sum, kept up in float64.

    Examples
    --------
    >>> memory = LastUpdates(np.array([0.5, 0.5]), np.zeros(1), shrink=1.0)
    >>> memory.record(np.array([0]), np.array([[4.0]]))
    >>> memory.aggregate(np.array([0]), np.array([1.0]), np.array([[5.0]])).tolist()
    [3.0]
    """

    def __init__(self, importance: NDArray[np.float64], zeros: Array, *, shrink: float) -> None:
        super().__init__(importance, zeros, shrink=shrink)
        self._kept = _rows(zeros, len(importance))
        self._sum = _double(zeros)

    def record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember the round's updates, one row for each of ``clients``."""
        change = _double(updates) - _double(self._kept[clients])
        self._sum = self._sum + _like(self._importance[clients], change) @ change
        self._kept[clients] = updates

    def reweigh(self, importance: NDArray[np.float64]) -> None:
        """Take another p; clients beyond those that there were are new, one with p = 0 is away."""
        n_known = len(self._kept)
        if len(importance) > n_known:
            known, self._kept = self._kept, _rows(self._zeros, len(importance))
            self._kept[:n_known] = known
        self._importance, self._sum = importance, _double(self._zeros)
        for client in np.flatnonzero(importance[:n_known]):  # a copy of all in float64 is too much
            self._sum += float(importance[client]) * _double(self._kept[client])

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as numpy arrays."""
        return {"kept": _numpy(self._kept), "sum": _numpy(self._sum)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        self._kept = _like(state["kept"], self._kept)
        self._sum = _like(state["sum"], self._sum)

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        return self._kept[clients]

    def _mean(self) -> Array:
        return _like(self._sum, self._zeros)


class ClusterMeans(ControlVariates):
    """The mean update of each of K clusters, and the cluster of every client that was seen.

    A client belongs to the cluster whose mean its last update was nearest to; a cluster's mean is
    that of the members that the last cohort with any had. The first K clients open the clusters.
    """

    def __init__(
        self, importance: NDArray[np.float64], zeros: Array, *, shrink: float, clusters: int
    ) -> None:
        super().__init__(importance, zeros, shrink=shrink)
        # The last row stays zero: the mean of the clients that were never seen.
        self._means = _rows(zeros, clusters + 1)
        self._cluster = np.full(len(importance), clusters)
        self._n_open = 0

    def record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember the round's updates, one row for each of ``clients``."""
        most = len(self._means) - 1
        n_new = min(most - self._n_open, len(clients))
        opened = self._n_open + np.arange(n_new)
        self._means[opened] = updates[:n_new]
        self._n_open += n_new
        self._cluster[clients[:n_new]] = opened
        rest = updates[n_new:]
        if len(rest):
            means = self._means[: self._n_open]
            distances = (means * means).sum(1) - 2 * (rest @ means.T)
            self._cluster[clients[n_new:]] = _numpy(distances.argmin(1))
        for cluster in np.unique(self._cluster[clients]):
            members = np.flatnonzero(self._cluster[clients] == cluster)
            self._means[int(cluster)] = updates[members].mean(0)

    def reweigh(self, importance: NDArray[np.float64]) -> None:
        """Take another p; clients beyond those that there were are new, one with p = 0 is away."""
        unseen = np.full(len(importance) - len(self._cluster), len(self._means) - 1)
        self._cluster = np.concatenate([self._cluster, unseen])
        self._importance = importance

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as numpy arrays."""
        return {
            "means": _numpy(self._means),
            "cluster": self._cluster.copy(),
            "open": np.array(self._n_open),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        self._means = _like(state["means"], self._means)
        self._cluster = state["cluster"].astype(np.int64)
        self._n_open = int(state["open"])

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        return self._means[self._cluster[clients]]

    def _mean(self) -> Array:
        shares = np.bincount(self._cluster, self._importance, len(self._means))
        return _like(shares, self._zeros) @ self._means


def _rows(zeros: Array, n: int) -> Array:
    """Return n rows of zeros."""
    if isinstance(zeros, np.ndarray):
        return np.zeros((n, *zeros.shape), dtype=zeros.dtype)
    return zeros.new_zeros((n, *zeros.shape))


def _like(values: Array, array: Array) -> Array:
    """Return a copy of the values in the kind, type and device of an array."""
    if isinstance(array, np.ndarray):
        return np.array(values, dtype=array.dtype)
    if isinstance(values, np.ndarray):
        return array.new_tensor(values)
    return values.to(array)


def _double(array: Array) -> Array:
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def _numpy(array: Array) -> NDArray[np.generic]:
    # numpy's own copy of a tensor asks for a keyword that torch does not have, and warns.
    copied: NDArray[np.generic] = (
        array if isinstance(array, np.ndarray) else array.cpu().numpy()
    ).copy()
    return copied
