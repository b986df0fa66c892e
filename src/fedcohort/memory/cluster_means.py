"""Means of clusters of clients: K x d numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._updates import Array, as_numpy, double, like, zero_rows
from fedcohort.memory.base import Memory, n_shares


@final
class ClusterMeans(Memory):
    """The mean update of each of K clusters, and the cluster of every client that was seen.

    The first K clients open the clusters. From then on a client belongs to the cluster whose mean
    its last update was nearest to; where two means are nearer to each other than the update is to
    any, these two become one, and the update opens the cluster that is free. A cluster's mean is
    that of its members in the last cohort that had any.

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
        super().__init__(n_shares(importance), zeros, importance=importance, shrink=shrink)
        # The last row stays zero: the mean of the clients that were never seen.
        self._means = zero_rows(zeros, clusters + 1)
        self._cluster = np.full(self.n_clients, clusters)
        self._n_open = 0

    @property
    def updates(self) -> NDArray[np.floating]:
        """The mean of each client's cluster, shape (n_clients, dimension)."""
        return as_numpy(self._means[self._cluster])

    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        most = len(self._means) - 1
        for client, update in zip(clients.tolist(), updates, strict=True):
            if self._cluster[client] == most and self._n_open < most:
                self._means[self._n_open] = update
                self._cluster[client] = self._n_open
                self._n_open += 1
            else:
                self._cluster[client] = self._place_of(update)
        chosen = self._cluster[clients]
        for cluster in np.unique(chosen).tolist():
            self._means[cluster] = updates[np.flatnonzero(chosen == cluster)].mean(0)

    def _place_of(self, update: Array) -> int:
        """Return the cluster that an update belongs to, which may be one that it opens."""
        # In float64 and about their mean: what all have in common can be much larger than the rest.
        means = double(self._means[: self._n_open])
        centre = means.mean(0)
        means = means - centre
        off = means - (double(update) - centre)
        distances = as_numpy((off * off).sum(1))
        nearest = int(distances.argmin())
        apart = as_numpy(means @ means.T).astype(np.float64)
        squares = apart.diagonal().copy()
        apart = squares[:, None] + squares[None, :] - 2 * apart
        apart[np.tril_indices(len(apart))] = np.inf
        kept, freed = np.unravel_index(int(apart.argmin()), apart.shape)
        if distances[nearest] <= apart[kept, freed]:
            return nearest
        # Two means are nearer to each other than the update is to any: they become one.
        self._means[int(kept)] = (self._means[int(kept)] + self._means[int(freed)]) / 2
        self._cluster[self._cluster == freed] = kept
        self._means[int(freed)] = update
        return int(freed)

    def _reweigh(self) -> None:
        pass  # the means do not depend on importance

    def _rearrange(self, order: NDArray[np.int64], is_known: NDArray[np.bool_]) -> None:
        before, self._cluster = self._cluster, np.full(len(order), len(self._means) - 1)
        self._cluster[is_known] = before[order[is_known]]

    def _arrays(self) -> dict[str, Array]:
        return {"means": self._means, "cluster": self._cluster, "open": np.array(self._n_open)}

    def _can_take(self, name: str, array: NDArray[Any]) -> bool:
        if name == "means":
            return super()._can_take(name, array)
        # The number of a cluster, or of the last row: a client that was never seen.
        numbers = np.asarray(array)
        whole = numbers.dtype.kind in "iu" and bool((numbers >= 0).all())
        return whole and bool((numbers < len(self._means)).all())

    def _take(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._means = like(state["means"], self._means)
        self._cluster = state["cluster"].astype(np.int64)
        self._n_open = int(state["open"])

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        return self._means[self._cluster[clients]]

    def _mean(self) -> Array:
        shares = np.bincount(self._cluster, self._shared(), len(self._means))
        return like(shares, self._zeros) @ self._means
