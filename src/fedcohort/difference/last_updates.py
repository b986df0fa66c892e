"""Every client's last update: n x d numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._updates import Array, double, like, zero_rows
from fedcohort.difference.control_variates import ControlVariates

#: Numbers that are turned to float64 at a time, 32 MB.
NUMBERS_AT_ONCE = 2**22


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

    def _reweigh(self) -> None:
        self._sum = double(self._zeros)
        # Some clients at a time: a copy of all in float64 would be too much.
        at_once = max(1, NUMBERS_AT_ONCE // max(self.dimension, 1))
        there = np.flatnonzero(self._importance)
        for start in range(0, len(there), at_once):
            clients = there[start : start + at_once]
            kept = double(self._kept[clients])
            self._sum = self._sum + like(self._importance[clients], kept) @ kept

    def _rearrange(self, order: NDArray[np.int64], is_known: NDArray[np.bool_]) -> None:
        before, self._kept = self._kept, zero_rows(self._zeros, len(order))
        self._kept[np.flatnonzero(is_known)] = before[order[is_known]]

    def _arrays(self) -> dict[str, Array]:
        return {"kept": self._kept, "sum": self._sum}

    def _take(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        self._kept = like(state["kept"], self._kept)
        self._sum = like(state["sum"], self._sum)

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        return self._kept[clients]

    def _mean(self) -> Array:
        return like(self._sum, self._zeros)
