"""Every client's last update: n x d numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.difference.arrays import Array, double, like, zero_rows
from fedcohort.difference.control_variates import ControlVariates


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
        self._kept = zero_rows(zeros, len(self._importance))
        self._sum = double(zeros)

    def _record(self, clients: NDArray[np.int64], updates: Array) -> None:
        change = double(updates) - double(self._kept[clients])
        self._sum = self._sum + like(self._importance[clients], change) @ change
        self._kept[clients] = updates

    def _reweigh(self, n_known: int) -> None:
        if len(self._importance) > n_known:
            known, self._kept = self._kept, zero_rows(self._zeros, len(self._importance))
            self._kept[:n_known] = known
        self._sum = double(self._zeros)
        # A copy of all in float64 would be too much.
        for client in np.flatnonzero(self._importance[:n_known]):
            share = float(self._importance[client])
            self._sum = self._sum + share * double(self._kept[client])

    def _arrays(self) -> dict[str, Array]:
        return {"kept": self._kept, "sum": self._sum}

    def _take(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._kept = like(state["kept"], self._kept)
        self._sum = like(state["sum"], self._sum)

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        return self._kept[clients]

    def _mean(self) -> Array:
        return like(self._sum, self._zeros)
