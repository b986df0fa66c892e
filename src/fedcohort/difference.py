"""The difference estimator: what is remembered of clients takes the variance out of a cohort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

    def __init__(self, importance: ArrayLike, zeros: Array, *, shrink: float) -> None:
        self._importance: NDArray[np.float64] = np.array(importance, dtype=np.float64)
        self._zeros, self._shrink = zeros, shrink
        shape = tuple(getattr(zeros, "shape", ()))
        if self._importance.ndim != 1 or len(shape) != 1 or "float" not in str(zeros.dtype):
            raise AggregationError(
                f"Difference: a memory needs the clients' importance and a flat model of floats, "
                f"all 0; got shapes {self._importance.shape} and {shape}. Pass "
                f"population.importance and numpy.zeros(model.size)."
            )

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        """Return v, shape (dimension,); ``updates`` has one row for each of ``clients``."""
        self._check(clients, updates)
        weighed = _like(weights, updates)
        if self._shrink == 0:
            return weighed @ updates
        return weighed @ (updates - self.of(clients)) + self.expected()

    def of(self, clients: NDArray[np.int64]) -> Array:
        """Return h of these clients, shape (len(clients), dimension)."""
        return self._shrink * self._remembered(clients)

    def expected(self) -> Array:
        """Return the sum of p h over all clients, shape (dimension,)."""
        return self._shrink * self._mean()

    def record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember the round's updates, one row for each of ``clients``."""
        self._check(clients, updates)
        with np.errstate(over="ignore"):
            kept = _like(updates, self._zeros)
        if not (np.isfinite(kept) if isinstance(kept, np.ndarray) else kept.isfinite()).all():
            raise AggregationError(
                f"Difference: updates must be finite as {self._zeros.dtype} to be remembered. "
                f"Drop the client that sent others from the cohort."
            )
        self._record(clients, kept)

    def reweigh(self, importance: ArrayLike) -> None:
        """Take another p; clients beyond those that there were are new, one with p = 0 is away."""
        shares = np.array(importance, dtype=np.float64)
        n_known = len(self._importance)
        if shares.ndim != 1 or len(shares) < n_known:
            raise AggregationError(
                f"Difference: another importance needs an entry for each of the {n_known} clients "
                f"that there were; got shape {shares.shape}. Give 0 to those that are away."
            )
        self._importance = shares
        self._reweigh(n_known)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as numpy arrays."""
        return {name: _numpy(array) for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        needed = {name: tuple(array.shape) for name, array in self._arrays().items()}
        found = {name: np.shape(array) for name, array in state.items()}
        if any(found.get(name) != shape for name, shape in needed.items()):
            raise AggregationError(
                f"Difference: the memory's state must have arrays of shapes {needed}; got {found}. "
                f"Restore it with the clients, the model and the settings that it was made with."
            )
        self._take(state)

    def _check(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Let updates of this memory's clients and model through."""
        n, (dimension,) = len(self._importance), self._zeros.shape
        shape = tuple(np.shape(updates))
        if isinstance(updates, np.ndarray) != isinstance(self._zeros, np.ndarray):
            raise AggregationError(
                f"Difference: this memory is of {type(self._zeros).__name__}s; got updates as "
                f"{type(updates).__name__}. Make the memory with zeros of the updates' kind."
            )
        if shape != (len(clients), dimension):
            raise AggregationError(
                f"Difference: this memory is for updates of shape ({len(clients)}, {dimension}), "
                f"one row per client; got {shape}. Make a memory for each model."
            )
        if len(np.unique(clients)) < len(clients) or not all(0 <= each < n for each in clients):
            raise AggregationError(
                f"Difference: clients must be distinct and from 0 to {n - 1}; got "
                f"{np.asarray(clients).tolist()}. Make a memory for each population."
            )

    @abstractmethod
    def _record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember updates that fit, in the memory's own type."""

    @abstractmethod
    def _reweigh(self, n_known: int) -> None:
        """Go on with another importance; ``n_known`` clients were there before."""

    @abstractmethod
    def _arrays(self) -> dict[str, Array]:
        """Return all that changes, by name."""

    @abstractmethod
    def _take(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over copies of arrays of the right shapes."""

    @abstractmethod
    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        """Return what is remembered of these clients, before it is shrunk."""

    @abstractmethod
    def _mean(self) -> Array:
        """Return the importance-weighted mean of what is remembered."""


@final
class LastUpdates(ControlVariates):
    """Every client's last update, and their weighted sum, kept up in float64.

    Examples
    --------
    >>> memory = LastUpdates(np.array([0.5, 0.5]), np.zeros(1), shrink=1.0)
    >>> memory.record(np.array([0]), np.array([[4.0]]))
    >>> memory.aggregate(np.array([0]), np.array([1.0]), np.array([[5.0]])).tolist()
    [3.0]
    """

    def __init__(self, importance: ArrayLike, zeros: Array, *, shrink: float) -> None:
        super().__init__(importance, zeros, shrink=shrink)
        self._kept = _rows(zeros, len(self._importance))
        self._sum = _double(zeros)

    def _record(self, clients: NDArray[np.int64], updates: Array) -> None:
        change = _double(updates) - _double(self._kept[clients])
        self._sum = self._sum + _like(self._importance[clients], change) @ change
        self._kept[clients] = updates

    def _reweigh(self, n_known: int) -> None:
        if len(self._importance) > n_known:
            known, self._kept = self._kept, _rows(self._zeros, len(self._importance))
            self._kept[:n_known] = known
        self._sum = _double(self._zeros)
        # A copy of all in float64 would be too much.
        for client in np.flatnonzero(self._importance[:n_known]):
            share = float(self._importance[client])
            self._sum = self._sum + share * _double(self._kept[client])

    def _arrays(self) -> dict[str, Array]:
        return {"kept": self._kept, "sum": self._sum}

    def _take(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._kept = _like(state["kept"], self._kept)
        self._sum = _like(state["sum"], self._sum)

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        return self._kept[clients]

    def _mean(self) -> Array:
        return _like(self._sum, self._zeros)


@final
class ClusterMeans(ControlVariates):
    """The mean update of each of K clusters, and the cluster of every client that was seen.

    The first K clients open the clusters. From then on a client belongs to the cluster whose mean
    its last update was nearest to, and a cluster's mean is that of its members in the last cohort
    that had any.

    Examples
    --------
    >>> memory = ClusterMeans(np.full(4, 0.25), np.zeros(1), shrink=1.0, clusters=2)
    >>> memory.record(np.array([0, 1, 2]), np.array([[1.0], [9.0], [3.0]]))
    >>> memory.of(np.arange(4)).ravel().tolist()
    [2.0, 9.0, 2.0, 0.0]
    """

    def __init__(
        self, importance: ArrayLike, zeros: Array, *, shrink: float, clusters: int
    ) -> None:
        super().__init__(importance, zeros, shrink=shrink)
        # The last row stays zero: the mean of the clients that were never seen.
        self._means = _rows(zeros, clusters + 1)
        self._cluster = np.full(len(self._importance), clusters)
        self._n_open = 0

    def _record(self, clients: NDArray[np.int64], updates: Array) -> None:
        most = len(self._means) - 1
        new = np.flatnonzero(self._cluster[clients] == most)[: most - self._n_open]
        opened = self._n_open + np.arange(len(new))
        self._means[opened] = updates[new]
        self._n_open += len(new)
        nearest = self._nearest(updates)
        nearest[new] = opened
        self._cluster[clients] = nearest
        for cluster in np.unique(nearest):
            self._means[int(cluster)] = updates[np.flatnonzero(nearest == cluster)].mean(0)

    def _nearest(self, updates: Array) -> NDArray[np.int64]:
        """Return the open cluster whose mean is nearest to each update."""
        if not len(updates):
            return np.empty(0, dtype=np.int64)
        # In float64: what the clusters have in common can be much larger than what differs.
        means = _double(self._means[: self._n_open])
        distances = (means * means).sum(1) - 2 * (_double(updates) @ means.T)
        return _numpy(distances.argmin(1)).astype(np.int64)

    def _reweigh(self, n_known: int) -> None:
        unseen = np.full(len(self._importance) - n_known, len(self._means) - 1)
        self._cluster = np.concatenate([self._cluster, unseen])

    def _arrays(self) -> dict[str, Array]:
        return {"means": self._means, "cluster": self._cluster, "open": np.array(self._n_open)}

    def _take(self, state: Mapping[str, NDArray[np.generic]]) -> None:
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
    """Return a copy."""
    plain: NDArray[np.generic] = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return plain.copy()
