"""The difference estimator's memories of every client's last update: row by row, or of low rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._updates import Array, as_numpy, double, joined, like, moved, zero_rows
from fedcohort.memory.base import Variates
from fedcohort.memory.row_files import FileStore
from fedcohort.memory.row_stores import NONE, Encoding, RowForm, RowStore, float_type
from fedcohort.similarity.measures import BLOCK_ENTRIES

NEVER = -1
LATEST = 2**63 - 1


class Remembering(Variates):
    """A memory that knows when it heard from each client, and forgets the longest silent ones."""

    def __init__(
        self, importance: ArrayLike, zeros: Array, *, shrink: float, most: int | None
    ) -> None:
        super().__init__(importance, zeros, shrink=shrink)
        self._most = most
        self._arrays = {"last_seen": np.full(self.n_clients, NEVER, dtype=np.int64)}
        self._limits = {"last_seen": (NEVER, LATEST)}

    @property
    def n_remembered(self) -> int:
        """How many clients are remembered."""
        return int(np.count_nonzero(self._arrays["last_seen"] != NEVER))

    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        self._replace(clients, updates)
        seen = self._arrays["last_seen"]
        seen[clients] = round_
        if self._most is not None and self.n_remembered > self._most:
            known = np.flatnonzero(seen != NEVER)
            oldest = known[np.argsort(seen[known], kind="stable")]
            self._forget(np.sort(oldest[: len(known) - self._most]))

    def _forget(self, clients: NDArray[np.int64]) -> None:
        self._erase(clients)
        self._arrays["last_seen"][clients] = NEVER

    @abstractmethod
    def _replace(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Replace the clients' last updates by these."""

    @abstractmethod
    def _erase(self, clients: NDArray[np.int64]) -> None:
        """Erase what is remembered of clients."""


@final
class LastUpdates(Remembering):
    """Every client's last update, whole or quantised, in a row each.

    Only clients that were seen have a row. H, the sum of p h, is kept up to date: a round costs
    as much as its own updates.

    Parameters
    ----------
    importance, zeros, shrink
        Those of :class:`Variates`.
    keep
        How a row is kept.
    max_remembered
        The most clients that are remembered; None for all.
    file
        The file of the rows; None keeps them in memory, on the device of ``zeros``.

    Examples
    --------
    >>> memory = LastUpdates([0.5, 0.5], np.zeros(1), shrink=1.0, keep="float32")
    >>> memory.record([0], [[4.0]])
    >>> memory.aggregate(np.array([0]), np.array([1.0]), np.array([[5.0]])).tolist()
    [3.0]
    """

    def __init__(
        self,
        importance: ArrayLike,
        zeros: Array,
        *,
        shrink: float,
        keep: RowForm,
        max_remembered: int | None = None,
        file: str | None = None,
    ) -> None:
        super().__init__(importance, zeros, shrink=shrink, most=max_remembered)
        encoding = Encoding(keep, self.dimension)
        self._store = (
            RowStore(encoding, zeros) if file is None else FileStore(encoding, zeros, Path(file))
        )
        self._arrays["sum"] = double(zeros)
        if not keep.startswith("float"):
            self._arrays["scale"] = zero_rows(zeros[:1], self.n_clients)
        self._slots = np.full(self.n_clients, NONE, dtype=np.int64)
        ranges = {"int8": (-127, 127), "sign": (0, 255)}
        self._limits |= dict.fromkeys(("clients", "slots", "checksums", "file"), (0, LATEST))
        if keep in ranges:
            self._limits["rows"] = ranges[keep]

    @property
    def nbytes(self) -> int:
        """Bytes in use, without the file's."""
        return super().nbytes + self._slots.nbytes + self._store.nbytes

    @property
    def nbytes_at_most(self) -> int:
        """Bytes in use once every client was seen, without the file's."""
        most = min(self.n_clients, self._most or self.n_clients)
        rows = 0 if isinstance(self._store, FileStore) else most * self._store.encoding.nbytes
        return self.nbytes - self._store.nbytes + rows

    def _replace(self, clients: NDArray[np.int64], updates: Array) -> None:
        values, scale = self._store.encoding.encode(updates)
        new = self._store.encoding.decode(values, scale, self.zeros)
        change = _difference(new, self._remembered(clients))
        self._slots[clients] = self._store.write(self._slots[clients], values)  # it may fail
        self._add(clients, change)
        if "scale" in self._arrays:
            self._arrays["scale"][clients] = scale

    def _erase(self, clients: NDArray[np.int64]) -> None:
        self._add(clients, -double(self._remembered(clients)))
        known = clients[self._slots[clients] != NONE]
        self._store.drop(self._slots[known])
        self._slots[known] = NONE
        if "scale" in self._arrays:
            self._arrays["scale"][known] = 0

    def _add(self, clients: NDArray[np.int64], change: Array) -> None:
        """Add to the sum what changes for clients, one row each."""
        shares = like(self._importance[clients], change)
        self._arrays["sum"] = self._arrays["sum"] + shares @ change

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        known = np.flatnonzero(self._slots[clients] != NONE)
        seen = clients[known]
        scale = self._arrays["scale"][seen] if "scale" in self._arrays else self.zeros
        found = self._store.encoding.decode(self._store.read(self._slots[seen]), scale, self.zeros)
        if len(known) == len(clients):
            return found
        rows = zero_rows(self.zeros[None], len(clients))
        rows[known] = found
        return rows

    def _mean(self) -> Array:
        return like(self._arrays["sum"], self.zeros)

    def _reweigh(self, before: NDArray[np.float64] | None) -> None:
        """Adapt the sum to another p.

        If a few clients come or go, p of all others changes by one factor: scale the sum by it,
        and add what is left for the few. If most change, add up all rows.
        """
        now, known = self._importance, np.flatnonzero(self._slots != NONE)
        if before is not None:
            both = known[(before[known] > 0) & (now[known] > 0)]
            factor = float(np.median(now[both] / before[both])) if len(both) else 0.0
            change = now[known] - factor * before[known]
            # Shares are quotients of integers: a common factor is exact but for rounding.
            differs = np.abs(change) > 4 * np.finfo(np.float64).eps * now[known]
            if 2 * np.count_nonzero(differs) <= len(known):
                self._arrays["sum"] = factor * self._arrays["sum"]
                self._add_rows(known[differs], change[differs])
                return
        self._arrays["sum"] = double(self.zeros)
        self._add_rows(known, now[known])

    def _add_rows(self, clients: NDArray[np.int64], shares: NDArray[np.float64]) -> None:
        """Add rows to the sum, by these shares; in blocks, since a float64 copy of all is large."""
        at_once = max(1, BLOCK_ENTRIES // max(self.dimension, 1))
        for start in range(0, len(clients), at_once):
            rows = double(self._remembered(clients[start : start + at_once]))
            weighed = like(shares[start : start + at_once], rows) @ rows
            self._arrays["sum"] = self._arrays["sum"] + weighed

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        gone = np.setdiff1d(np.flatnonzero(self._slots != NONE), order)
        self._store.drop(self._slots[gone])
        self._slots = moved(self._slots, order, fill=NONE)
        self._arrays["last_seen"] = moved(self._arrays["last_seen"], order, fill=NEVER)
        if "scale" in self._arrays:
            self._arrays["scale"] = moved(self._arrays["scale"], order)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as numpy arrays: rows of remembered clients in the order of clients.

        If the rows are in a file, return where they are in it.
        """
        known = np.flatnonzero(self._slots != NONE)
        kept = super().state()
        if isinstance(self._store, FileStore):
            return {**kept, "clients": known, **self._store.state(self._slots[known])}
        return {**kept, "clients": known, "rows": as_numpy(self._store.read(self._slots[known]))}

    def _like_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        clients, encoding = state.get("clients"), self._store.encoding
        n = clients.size if isinstance(clients, np.ndarray) else 0
        own = {**self._arrays, "clients": _filled(n)}
        if isinstance(self._store, FileStore):
            letters = _filled(np.size(state.get("file", ())), dtype="uint8")
            return {**own, "slots": _filled(n), "checksums": _filled(n), "file": letters}
        return {**own, "rows": _filled(n, encoding.width, dtype=encoding.dtype)}

    def _adopt(self, arrays: dict[str, Array]) -> None:
        clients, seen = arrays.pop("clients"), arrays["last_seen"]
        if not np.array_equal(clients, np.flatnonzero(seen != NEVER)):
            raise self._error(
                "clients of the memory's state must be those that were seen. Pass what state() "
                "gave."
            )
        self._store, slots = self._refilled(arrays, len(clients))
        self._arrays = {name: arrays[name] for name in self._arrays}
        self._slots = np.full(self.n_clients, NONE, dtype=np.int64)
        self._slots[clients] = slots

    def _refilled(self, arrays: dict[str, Array], n: int) -> tuple[RowStore, NDArray[np.int64]]:
        """Return a store with the rows of a state, and their slots."""
        encoding = self._store.encoding
        if isinstance(self._store, FileStore):
            mapped = FileStore(encoding, self.zeros, self._store.path)
            mapped.restore(arrays)
            return mapped, arrays["slots"]
        store = RowStore(encoding, self.zeros)
        values = like(arrays["rows"], store.read(np.empty(0, dtype=np.int64)))
        return store, store.write(np.full(n, NONE, dtype=np.int64), values)


def _difference(one: Array, other: Array) -> Array:
    """Return one array minus the other in float64, without copies of both in float64."""
    if isinstance(one, np.ndarray):
        return np.subtract(one, other, dtype=np.float64)
    return one.double() - other


def _filled(*shape: int, dtype: str = "int64") -> NDArray[Any]:
    """Return an array of a shape and type that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype=dtype), shape)


#: The factor on what the basis has learned, at every round with new updates.
FADING = 0.98
#: Directions weaker than this part of the strongest are dropped.
WEAKEST = 1e-6
#: Directions of this strength or less are dropped too: its inverse must be a float32 number.
SMALLEST = 1e-30


@final
class LowRankUpdates(Remembering):
    r"""Every client's last update in a basis of ``rank`` directions that follows the updates.

    A client has :math:`z_i` of r numbers and :math:`h_i = z_i U`, with orthonormal rows of U. A
    round with the updates X takes the r leading right singular vectors of :math:`[0.98\, s U; X]`
    as the new U, with s their singular values; it rotates all z to the new basis and projects X
    on it. That needs r (n + d) numbers.

    Examples
    --------
    >>> memory = LowRankUpdates([0.5, 0.5], np.zeros(3), shrink=1.0, rank=1)
    >>> memory.record([0], [[0.0, 2.0, 0.0]])
    >>> memory.of(np.array([0, 1])).round(6).tolist()
    [[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        importance: ArrayLike,
        zeros: Array,
        *,
        shrink: float,
        rank: int,
        max_remembered: int | None = None,
    ) -> None:
        super().__init__(importance, zeros, shrink=shrink, most=max_remembered)
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
        faded = FADING * strength
        gram = np.block(
            [[np.diag(faded**2), faded[:, None] * across], [across.T * faded[None, :], own]]
        )
        combined, found = self._leading(gram, rank)
        if not found.any():  # all updates are zero, and so were all before
            return
        combined[:, :rank] *= faded
        turned = combined[:, :rank].T + across @ combined[:, rank:].T
        most = float(float_type(basis).max) / (2 * rank)  # so that all h are finite
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

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
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
        self._arrays["coefficients"] = moved(self._arrays["coefficients"], order)
        self._arrays["last_seen"] = moved(self._arrays["last_seen"], order, fill=NEVER)
