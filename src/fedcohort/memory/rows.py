"""Clients' last updates, a row each: whole, quantised or of low rank, on the updates' device."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._display import short_repr
from fedcohort._updates import (
    Array,
    as_numpy,
    double,
    joined,
    largest_entries,
    like,
    reordered,
    zero_rows,
)
from fedcohort.memory.base import NEVER, Estimator
from fedcohort.similarity.measures import BLOCK_ENTRIES

#: Add up all rows again if an entry is removed that is this many times as large as the sum that
#: is left: of the 16 digits of float64 10 are still right.
CANCELLATION = 1e6
#: How the numbers of a row are kept.
RowForm = Literal["float32", "float16", "int8"]
#: How updates are kept: a row each, or all in a basis of low rank.
Keep = Literal["float32", "float16", "int8", "rank"]


def encoded(rows: Array, form: RowForm) -> tuple[Array, Array]:
    """Return what is kept of rows: values, shape (n, dimension), and scales, shape (n,).

    ``int8`` keeps x as rint(x / scale) with scale = max |x| / 127. Numbers beyond the range of a
    form are clipped.
    """
    if form == "int8":
        kind = _float_type(rows)
        # Smaller scales round coarsely; 127 times a larger one could be infinite.
        largest = like(largest_entries(rows), rows[:0, 0])  # in the type that is kept
        scale = (largest / 127).clip(float(kind.tiny), float(kind.max) / 127.001)
        return _cast((rows / scale[:, None]).round(), "int8"), scale
    most = float(np.finfo(form).max)
    if most < float(_float_type(rows).max):
        rows = rows.clip(-most, most)
        if form == "float16":  # by float32, as torch does: numpy rounds the same then
            rows = _cast(rows, "float32")
    return _cast(rows, form), rows[:, 0] * 0


def decoded(values: Array, scale: Array | None, zeros: Array) -> Array:
    """Return the rows, in the kind and type of ``zeros``; without a scale they are the values."""
    rows = values if values.dtype == zeros.dtype else like(values, zeros)
    return rows if scale is None else rows * scale[:, None]


def _cast(array: Array, dtype: str) -> Array:
    if isinstance(array, np.ndarray):
        return array.astype(dtype, copy=False)
    return array.to(getattr(sys.modules["torch"], dtype))


def _float_type(array: Array) -> np.finfo[Any]:
    return np.finfo(str(array.dtype).removeprefix("torch."))


class ClientRows(Estimator):
    """The difference estimator's memory: h is ``shrink`` times a client's last update.

    It knows the round of each client's last update. With ``max_remembered``, it forgets the
    oldest. :func:`rows_of` makes one.
    """

    shrink: float = 1.0
    max_remembered: int | None = None

    def __init__(self, importance: ArrayLike, zeros: Array) -> None:
        super().__init__(importance, zeros)
        self._arrays |= {"last_seen": np.full(self.n_clients, NEVER, dtype=np.int64)}

    @property
    def last_seen(self) -> NDArray[np.int64]:
        """The round of each client's last update, shape (n_clients,); -1 before the first."""
        return np.array(self._arrays["last_seen"])

    @property
    def n_remembered(self) -> int:
        """How many clients are remembered."""
        return len(self._remembered())

    def _remembered(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._arrays["last_seen"] != NEVER)

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        """Return v, shape (dimension,); with a ``shrink`` of 0 the plain sum, bit for bit."""
        if self.shrink:
            return super().aggregate(clients, weights, updates)
        _, given = self._checked_cohort(clients, weights, updates)
        return like(given, updates) @ updates

    def of(self, clients: NDArray[np.int64]) -> Array:
        """Return h of these clients, shape (len(clients), dimension)."""
        rows = self._rows(clients)
        return rows if self.shrink == 1 else self.shrink * rows

    def expected(self) -> Array:
        """Return the sum of p h over all clients, shape (dimension,)."""
        mean = self._mean()
        return mean if self.shrink == 1 else self.shrink * mean

    def __repr__(self) -> str:
        n, dimension = self.n_clients, self.dimension
        return short_repr(self, n_clients=n, dimension=dimension, shrink=self.shrink)

    def record_kept(self, clients: NDArray[np.int64], kept: Array, *, round_: int) -> None:
        """Remember valid updates of the memory's type, one row per client."""
        self._replace(clients, kept)
        seen = self._arrays["last_seen"]
        seen[clients] = round_
        if self.max_remembered is not None and self.n_remembered > self.max_remembered:
            known = self._remembered()
            oldest = known[np.argsort(seen[known], kind="stable")]
            gone = np.sort(oldest[: len(known) - self.max_remembered])
            self._erase(gone)
            seen[gone] = NEVER
        self._forget_cached()

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        self._arrays["last_seen"] = reordered(self._arrays["last_seen"], order, fill=NEVER)

    @abstractmethod
    def _replace(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Replace the clients' last updates by these."""

    @abstractmethod
    def _erase(self, clients: NDArray[np.int64]) -> None:
        """Erase what is remembered of clients."""

    @abstractmethod
    def _rows(self, clients: NDArray[np.int64]) -> Array:
        """Return the rows of these clients, zeros for those that are not remembered."""

    @abstractmethod
    def _mean(self) -> Array:
        """Return the importance-weighted sum of all rows."""


@final
class KeptRows(ClientRows):
    """Every client's last update, whole or quantised, in a row each.

    Only clients that were seen have a row. The sum of p times the rows is kept: a round costs as
    much as its own updates. If p changes, the sum follows when it is needed.
    """

    def __init__(self, importance: ArrayLike, zeros: Array, form: RowForm) -> None:
        super().__init__(importance, zeros)
        self._form: RowForm = form
        #: What is kept of each client that was seen, by position.
        self._kept: dict[int, Array] = {}
        #: The sum of rows, and the shares that it was taken with.
        self._arrays |= {"sum": double(zeros), "summed": np.zeros(self.n_clients)}
        if form == "int8":
            self._arrays["scale"] = zero_rows(zeros[:1], self.n_clients)
            self._limits["rows"] = (-127, 127)
        #: The sum with the present shares; None until it is needed.
        self._now: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return super().nbytes + len(self._kept) * self._row_bytes

    @property
    def nbytes_at_most(self) -> int:
        """Bytes in use once every client was seen."""
        most = min(self.n_clients, self.max_remembered or self.n_clients)
        return super().nbytes + most * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return self.dimension * np.dtype(self._form).itemsize

    def _replace(self, clients: NDArray[np.int64], updates: Array) -> None:
        values, scale = encoded(updates, self._form)
        old, shares = self._rows(clients), self._importance[clients]
        is_scaled = "scale" in self._arrays
        change = _difference(decoded(values, scale if is_scaled else None, self.zeros), old)
        total = self._present_sum() + like(shares, change) @ change
        self._store(clients, values)
        self._arrays["sum"], self._arrays["summed"] = total, self._importance.copy()
        if _has_cancelled(total, _largest(shares, old)):
            self._drop_sum()
        if is_scaled:
            self._arrays["scale"][clients] = scale

    def _store(self, clients: NDArray[np.int64], values: Array) -> None:
        new = [each for each in clients.tolist() if each not in self._kept]
        # First, since they may not fit into memory. One by one, so that each can be freed.
        self._kept |= {each: zero_rows(values[:1], 1)[0] for each in new}
        for each, row in zip(clients.tolist(), values, strict=True):
            self._kept[each][...] = row

    def _erase(self, clients: NDArray[np.int64]) -> None:
        rows, shares = double(self._rows(clients)), self._arrays["summed"][clients]
        self._arrays["sum"] = self._arrays["sum"] - like(shares, rows) @ rows
        if _has_cancelled(self._arrays["sum"], _largest(shares, rows)):
            self._drop_sum()
        self._drop(clients)
        if "scale" in self._arrays:
            self._arrays["scale"][clients] = 0

    def _drop(self, clients: NDArray[np.int64]) -> None:
        for each in clients.tolist():
            self._kept.pop(each)[...] = 0

    def _rows(self, clients: NDArray[np.int64]) -> Array:
        known = np.flatnonzero(self._arrays["last_seen"][clients] != NEVER)
        seen = clients[known]
        scale = self._arrays["scale"][seen] if "scale" in self._arrays else None
        found = decoded(self._values(seen), scale, self.zeros)
        if len(known) == len(clients):
            return found
        rows = zero_rows(self.zeros[None], len(clients))
        rows[known] = found
        return rows

    def _values(self, clients: NDArray[np.int64]) -> Array:
        """Return a copy of what is kept of clients that were seen, shape (n, dimension)."""
        if not len(clients):
            return zero_rows(encoded(self.zeros[None], self._form)[0], 0)
        values = joined([self._kept[each] for each in clients.tolist()], stacked=True)
        return values + 0 if len(clients) == 1 else values  # one alone is not copied

    def _mean(self) -> Array:
        total = self._present_sum()
        mean = like(total, self.zeros)
        return mean + 0 if mean is total else mean  # callers may change it

    def _present_sum(self) -> Array:
        """Return the sum of p times the rows in float64; what is kept does not change.

        If a few clients come or go, p of all others changes by one factor: scale the sum by it,
        and add what is left for the few. If most change, add up all rows.
        """
        if self._now is not None:
            return self._now
        before, now, known = self._arrays["summed"], self._importance, self._remembered()
        total = self._arrays["sum"]
        if not np.array_equal(before[known], now[known]):  # else a new sum would round differently
            both = known[(before[known] > 0) & (now[known] > 0)]
            factor = float(np.median(now[both] / before[both])) if len(both) else 0.0
            left = now[known] - factor * before[known]
            # Shares are quotients of integers: a common factor is exact but for rounding.
            differs = np.abs(left) > 4 * np.finfo(np.float64).eps * now[known]
            is_few, largest = 2 * np.count_nonzero(differs) <= len(known), 0.0
            if is_few:
                total, largest = self._plus(factor * total, left[differs], known[differs])
            if not is_few or _has_cancelled(total, largest):
                total, _ = self._plus(double(self.zeros), now[known], known)
        self._now = total
        return total

    def _plus(
        self, total: Array, shares: NDArray[np.float64], clients: NDArray[np.int64]
    ) -> tuple[Array, float]:
        """Add shares of rows to a sum; return it, and the largest entry that was added."""
        largest = 0.0
        # In blocks, since a float64 copy of all rows is large.
        at_once = max(1, BLOCK_ENTRIES // self.dimension)
        for start in range(0, len(clients), at_once):
            some, rows = (
                shares[start : start + at_once],
                self._rows(clients[start : start + at_once]),
            )
            largest, rows = max(largest, _largest(some, rows)), double(rows)
            total = total + like(some, rows) @ rows
        return total, largest

    def _drop_sum(self) -> None:
        """Let the next use add up all rows again."""
        self._arrays["sum"], self._arrays["summed"] = double(self.zeros), 0 * self._importance

    def _forget_cached(self) -> None:
        self._now = None

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        gone = np.setdiff1d(self._remembered(), order)
        self._drop(gone)
        place = {old: new for new, old in enumerate(order.tolist()) if old >= 0}
        self._kept = {place[each]: row for each, row in self._kept.items()}
        if self._arrays["summed"][gone].any():
            self._drop_sum()
        for name in ("scale", "summed"):
            if name in self._arrays:
                self._arrays[name] = reordered(self._arrays[name], order)
        super()._rearrange(order)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as numpy arrays: rows of remembered clients in the order of clients."""
        known = self._remembered()
        return {**super().state(), "clients": known, "rows": as_numpy(self._values(known))}

    def _like_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        clients = state.get("clients")
        n = clients.size if isinstance(clients, np.ndarray) else 0
        rows = np.broadcast_to(np.zeros((), dtype=self._form), (n, self.dimension))
        return {**self._arrays, "clients": np.broadcast_to(0, n), "rows": rows}

    def _read(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        arrays = super()._read(state)
        if not np.array_equal(arrays["clients"], np.flatnonzero(arrays["last_seen"] != NEVER)):
            raise self._error(
                "clients of the memory's state must be those that were seen. Pass what state() "
                "gave."
            )
        return arrays

    def _adopt(self, arrays: dict[str, Array]) -> None:
        clients, rows = arrays.pop("clients"), arrays.pop("rows")
        self._kept = {}
        self._store(clients, like(rows, self._values(clients[:0]), copy=False))
        super()._adopt(arrays)


def _largest(shares: NDArray[np.float64], rows: Array) -> float:
    """Return the largest magnitude among the rows times their shares."""
    return float(np.max(np.abs(shares) * as_numpy(largest_entries(rows)), initial=0.0))


def _has_cancelled(total: Array, removed: float) -> bool:
    """Return whether a sum lost its precision when an entry of this size was removed."""
    return removed > CANCELLATION * float(largest_entries(total[None])[0])


def _difference(one: Array, other: Array) -> Array:
    """Return one array minus the other in float64, without copies of both in float64."""
    if isinstance(one, np.ndarray):
        return np.subtract(one, other, dtype=np.float64)
    return one.double() - other


#: The factor on what the basis has learned, at every round with new updates.
BASIS_FADING = 0.98
#: Directions weaker than this part of the strongest are dropped.
WEAKEST = 1e-6
#: Directions of this strength or less are dropped too: its inverse must be a float32 number.
SMALLEST = 1e-30


@final
class LowRankRows(ClientRows):
    r"""Every client's last update in a basis of ``rank`` directions that follows the updates.

    A client has :math:`z_i` of r numbers and :math:`h_i = z_i U`, with orthonormal rows of U. A
    round with the updates X takes the r leading right singular vectors of :math:`[0.98\, s U; X]`
    as the new U, with s their singular values; it rotates all z to the new basis and projects X
    on it. That needs r (n + d) numbers.

    Examples
    --------
    >>> memory = LowRankRows([0.5, 0.5], np.zeros(3), 1)
    >>> memory.record([0], [[0.0, 2.0, 0.0]])
    >>> memory.of(np.array([0, 1])).round(6).tolist()
    [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, importance: ArrayLike, zeros: Array, rank: int) -> None:
        super().__init__(importance, zeros)
        rank = min(rank, self.dimension)
        self._arrays |= {
            "basis": zero_rows(zeros[None], rank),
            "strength": np.zeros(rank),
            "coefficients": zero_rows(like(np.zeros((1, rank)), zeros), self.n_clients),
        }

    def _replace(self, clients: NDArray[np.int64], updates: Array) -> None:
        if not len(clients):
            return
        basis, strength = self._arrays["basis"], self._arrays["strength"]
        rank, products = len(strength), self._products(basis, updates)
        across, own = products[:rank], products[rank:]
        faded = BASIS_FADING * strength
        gram = np.block(
            [[np.diag(faded**2), faded[:, None] * across], [across.T * faded[None, :], own]]
        )
        combined, found = self._leading(gram, rank)
        if not found.any():  # all updates are zero, and so were all before
            return
        combined[:, :rank] *= faded
        turned = combined[:, :rank].T + across @ combined[:, rank:].T
        most = float(_float_type(basis).max) / (2 * rank)  # so that all h are finite
        projected = (products.T @ combined.T).clip(-most, most)
        weights = like(combined, basis)
        self._arrays["basis"] = weights[:, :rank] @ basis + weights[:, rank:] @ updates
        coefficients = self._arrays["coefficients"]
        new = like(np.concatenate([turned, projected]), coefficients)
        coefficients = coefficients @ new[:rank]
        coefficients[clients] = new[rank:]
        self._arrays["coefficients"], self._arrays["strength"] = coefficients, found

    def _leading(
        self, gram: NDArray[np.float64], rank: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights of the stacked rows in each new direction, and its strength.

        ``gram`` has the inner products of the stacked rows.
        """
        squares, vectors = np.linalg.eigh(gram)
        strength = np.sqrt(np.maximum(squares[::-1][:rank], 0))
        strength[strength <= max(WEAKEST * strength[0], SMALLEST)] = 0
        inverse = np.divide(1, strength, out=np.zeros_like(strength), where=strength > 0)
        return inverse[:, None] * vectors[:, ::-1][:, :rank].T, strength

    def _products(self, basis: Array, updates: Array) -> NDArray[np.float64]:
        """Return inner products of the basis and the updates, stacked, with the updates.

        They are computed in float64, in blocks of columns.
        """
        n_rows = len(basis) + len(updates)
        at_once = max(1, BLOCK_ENTRIES // n_rows)
        found = np.zeros((n_rows, len(updates)))
        for start in range(0, self.dimension, at_once):
            left, right = (double(each[:, start : start + at_once]) for each in (basis, updates))
            found += as_numpy(joined([left @ right.T, right @ right.T]))
        return found

    def _erase(self, clients: NDArray[np.int64]) -> None:
        self._arrays["coefficients"][clients] = 0

    def _rows(self, clients: NDArray[np.int64]) -> Array:
        return self._arrays["coefficients"][clients] @ self._arrays["basis"]

    def _mean(self) -> Array:
        coefficients = self._arrays["coefficients"]
        total: Array = 0.0
        step = max(1, BLOCK_ENTRIES // coefficients.shape[1])
        for start in range(0, self.n_clients, step):
            some = double(coefficients[start : start + step])
            total = total + like(self._importance[start : start + step], some) @ some
        return like(total, self.zeros) @ self._arrays["basis"]

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        self._arrays["coefficients"] = reordered(self._arrays["coefficients"], order)
        super()._rearrange(order)


def rows_of(keep: Keep, rank: int, importance: ArrayLike, zeros: Array) -> ClientRows:
    """Make an empty memory that keeps updates in this form; ``rank`` is for ``"rank"``."""
    if keep == "rank":
        return LowRankRows(importance, zeros, rank)
    return KeptRows(importance, zeros, keep)
