"""The bases of all memories: one records clients' updates, the other also aggregates with them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import as_array, brief, checked_number, checked_whole
from fedcohort._display import short_repr
from fedcohort._updates import LARGEST, Array, Rows, as_numpy, like, moved, usable_rows
from fedcohort.errors import AggregationError, MemoryOfUpdatesError
from fedcohort.population import IMPORTANCE_TOLERANCE


class Memory(ABC):
    """What the server remembers of its clients' updates.

    Only ``record``, ``rearrange`` and ``restore`` change it.

    Parameters
    ----------
    n_clients
        The number of clients.
    zeros
        Zeros of shape (dimension,), with the array kind, type and device of the updates.
    """

    def __init__(self, n_clients: int, zeros: Array) -> None:
        is_flat = len(getattr(zeros, "shape", ())) == 1
        if not is_flat or "float" not in str(zeros.dtype) or bool((zeros != 0).any()):
            raise self._error(
                f"a memory needs a flat model of floats, all 0; got {brief(zeros)}. Pass "
                f"numpy.zeros(model.size)."
            )
        self.n_clients, self.zeros = n_clients, zeros
        #: All that is remembered, by its name in the state.
        self._arrays: dict[str, Array] = {}
        #: The smallest and the largest number of the arrays of integers.
        self._limits: dict[str, tuple[int, int]] = {}

    def record(self, clients: object, updates: Any, *, round_: int = 0) -> None:
        """Remember one update per client.

        Parameters
        ----------
        clients
            Positions, each once.
        updates
            One update of ``dimension`` numbers for each of them.
        round_
            When they were sent, from 0.

        Raises
        ------
        MemoryOfUpdatesError
            If an update is invalid. Nothing is recorded then.
        """
        name, error = type(self).__name__, MemoryOfUpdatesError
        when = checked_whole(name, "round_", round_, way_out="Count rounds from 0.", error=error)
        positions = self._positions(clients)
        if not len(positions) and isinstance(updates, (list, tuple)) and not updates:
            return
        try:
            rows = Rows.of(name, updates, len(positions), counters=False).flat
        except AggregationError as wrong:
            raise MemoryOfUpdatesError(str(wrong)) from wrong
        self._check_rows(rows, len(positions))
        with np.errstate(over="ignore"):  # an overflow becomes infinite, and is refused
            kept = self._kept(rows)
        self.record_kept(positions, kept, round_=when)

    def record_kept(self, clients: NDArray[np.int64], kept: Array, *, round_: int) -> None:
        """Remember what is kept of updates, one row per client."""
        clients, usable = self._positions(clients), usable_rows(kept)
        if not usable.all():
            raise self._error(
                f"updates must be finite {str(self.zeros.dtype).removeprefix('torch.')} numbers "
                f"below {LARGEST:g}; client {clients[np.argmin(usable)]}'s is not. Leave the "
                f"client out, and keep what it sent before."
            )
        self._record(clients, kept, round_)

    @property
    def dimension(self) -> int:
        """The number of entries of an update."""
        return int(self.zeros.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(int(array.nbytes) for array in self._arrays.values())

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients: ``order`` has each client's old position, -1 for a new client.

        Clients that are not in ``order`` are forgotten.
        """
        way_out = "Give each client's old position, or -1 for a new client."
        order = self._distinct(order, -1, "order", way_out)
        self._rearrange(order)
        self.n_clients = len(order)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the memory's state as numpy arrays."""
        return {name: as_numpy(array).copy() for name, array in self._arrays.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned; if it is invalid, raise and change nothing.

        Every array must be there, finite, and of the shape that it has in this memory.
        """
        state = state if isinstance(state, Mapping) else {}
        own = self._like_state(state)
        needed = {name: tuple(array.shape) for name, array in own.items()}
        found = {
            name: array.shape
            for name, array in state.items()
            if isinstance(array, np.ndarray) and array.dtype.kind in "iufb"
        }
        if any(found.get(name) != shape for name, shape in needed.items()):
            raise self._error(
                f"the memory's state must have numbers of shapes {needed}; got {found}. Restore it "
                f"with the clients, the model and the settings of its own."
            )
        for name, array in own.items():
            if not self._is_valid(name, state[name], array):
                raise self._error(
                    f"{name} of the memory's state must be finite and in its range. Pass what "
                    f"state() gave."
                )
        self._adopt({name: like(state[name], array) for name, array in own.items()})

    def _adopt(self, arrays: dict[str, Array]) -> None:
        """Take over the validated arrays of a state."""
        self._arrays = arrays

    def _like_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        """Return arrays of the shapes and types that a state must have."""
        return self._arrays

    def _is_valid(self, name: str, given: NDArray[Any], own: Array) -> bool:
        """Return whether an array of a state has values that this memory can have."""
        if name in self._limits:
            least, most = self._limits[name]
            is_whole = given.dtype.kind in ("b" if own.dtype == np.bool_ else "iu")
            return is_whole and bool(((given >= least) & (given <= most)).all())
        with np.errstate(over="ignore"):
            kept = as_numpy(like(given, own))
        return bool(usable_rows(kept.reshape(1, -1)).all())

    def __repr__(self) -> str:
        return short_repr(self, n_clients=self.n_clients, dimension=self.dimension)

    def _check_rows(self, rows: Array, n: int) -> None:
        """Raise if the updates have another array kind or shape than this memory."""
        if isinstance(rows, np.ndarray) != isinstance(self.zeros, np.ndarray):
            raise self._error(
                f"this memory is of {type(self.zeros).__name__}s; got updates as "
                f"{type(rows).__name__}. Make the memory with zeros of the updates' kind."
            )
        if tuple(rows.shape) != (n, self.dimension):
            raise self._error(
                f"this memory is for updates of shape ({n}, {self.dimension}), one row per client; "
                f"got {tuple(rows.shape)}. Make a memory for each model."
            )

    def _positions(self, clients: object) -> NDArray[np.int64]:
        """Validate distinct positions of clients."""
        return self._distinct(clients, 0, "clients", "Name each client once, by its position.")

    def _distinct(self, given: object, least: int, what: str, way_out: str) -> NDArray[np.int64]:
        """Validate distinct positions of at least ``least``; negative ones may repeat."""
        places = as_array(given)
        whole = places.ndim == 1 and (places.dtype.kind in "iu" or places.size == 0)
        known = places[places >= 0] if whole else places
        if (
            not whole
            or (places.size and not least <= places.min() <= places.max() < self.n_clients)
            or len(np.unique(known)) < len(known)
        ):
            raise self._error(
                f"{what} must be distinct numbers from 0 to {self.n_clients - 1}; got "
                f"{brief(given)}. {way_out}"
            )
        return places.astype(np.int64)

    @classmethod
    def _error(cls, sentence: str) -> MemoryOfUpdatesError:
        return MemoryOfUpdatesError(f"{cls.__name__}: {sentence}")

    def _kept(self, rows: Array) -> Array:
        """Return what is kept of flat updates, one row each."""
        return like(rows, self.zeros)

    @abstractmethod
    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        """Remember validated updates, in the memory's type."""

    @abstractmethod
    def _rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients; ``n_clients`` is still the number before."""


class Variates(Memory):
    """What the difference estimator remembers of the clients; h is ``shrink`` times that.

    h is fixed during a round: only ``record``, ``reweigh``, ``rearrange`` and ``restore`` change
    it, between rounds. The estimator is then unbiased, whatever is remembered.

    Parameters
    ----------
    importance
        p, shape (n_clients,): at least 0, with the sum 1.
    zeros
        Zeros of shape (dimension,), with the array kind, type and device of the updates.
    shrink
        The factor on what is remembered, from 0 to 1.
    """

    def __init__(self, importance: ArrayLike, zeros: Array, *, shrink: float) -> None:
        super().__init__(max(as_array(importance).size, 1), zeros)
        name, error = type(self).__name__, MemoryOfUpdatesError
        self._shrink = checked_number(name, "shrink", shrink, least=0, most=1, error=error)
        self._importance = self._shares(importance)

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        r"""Return :math:`v = \sum_i w_i (\Delta_i - h_i) + \sum_j p_j h_j`, shape (dimension,).

        ``updates`` has one row for each of ``clients``.
        """
        positions = self._positions(clients)
        self._check_rows(updates, len(positions))
        weighed = like(weights, updates)
        if self._shrink == 0:
            return weighed @ updates
        return weighed @ (updates - self.of(positions)) + self.expected()

    def of(self, clients: NDArray[np.int64]) -> Array:
        """Return h of these clients, shape (len(clients), dimension)."""
        rows = self._remembered(clients)
        return rows if self._shrink == 1 else self._shrink * rows

    def expected(self) -> Array:
        """Return the sum of p h over all clients, shape (dimension,)."""
        mean = self._mean()
        return mean if self._shrink == 1 else self._shrink * mean

    @property
    def nbytes_at_most(self) -> int:
        """Bytes in use once every client was seen."""
        return self.nbytes

    def reweigh(self, importance: ArrayLike) -> None:
        """Set another p. A client with p = 0 is away, but its update is kept."""
        shares = self._shares(importance)
        # If p did not change, keep the mean: a new sum would round differently.
        if not np.array_equal(shares, self._importance):
            before, self._importance = self._importance, shares
            self._reweigh(before)

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients, as :meth:`Memory.rearrange` does; p is rescaled to the sum 1.

        New clients have p = 0 until ``reweigh``.
        """
        n_before = self.n_clients
        super().rearrange(order)
        places = np.asarray(order, dtype=np.int64)
        shares = self._importance = moved(self._importance, places)
        if np.count_nonzero(places >= 0) < n_before:
            # p must sum to 1, or ``restore`` would refuse the state.
            total, equal = shares.sum(), np.full(len(places), 1 / max(len(places), 1))
            self._importance = shares / total if total else equal
            self._reweigh(None)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the memory's state and p as numpy arrays."""
        return {"importance": self._importance.copy(), **super().state()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned; an invalid one changes nothing."""
        found = state.get("importance") if isinstance(state, Mapping) else None
        shares = self._shares([] if found is None else found)
        super().restore(state)
        self._importance = shares

    def __repr__(self) -> str:
        return short_repr(
            self, n_clients=self.n_clients, dimension=self.dimension, shrink=self._shrink
        )

    def _shares(self, importance: ArrayLike) -> NDArray[np.float64]:
        """Validate and copy importances: one share per client, with the sum 1."""
        given = as_array(importance)
        shares = given.astype(np.float64) if given.dtype.kind in "iuf" else np.empty(0)
        total = float(shares.sum()) if shares.shape == (self.n_clients,) else math.nan
        # ``not (...)`` also catches NaN.
        if not (abs(total - 1) <= IMPORTANCE_TOLERANCE and shares.min(initial=0.0) >= 0):
            raise self._error(
                f"importance must be one share per client ({self.n_clients}), non-negative, "
                f"with sum 1; got shape {shares.shape} with the sum {shares.sum():.12g}. Pass "
                f"population.importance, 0 for those that are away, and rearrange the memory "
                f"where clients are new."
            )
        return shares

    def _reweigh(self, before: NDArray[np.float64] | None) -> None:
        """Adapt what depends on the importance, which was ``before``; None: compute it again."""

    @abstractmethod
    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        """Return what is remembered of these clients, without ``shrink``."""

    @abstractmethod
    def _mean(self) -> Array:
        """Return the importance-weighted mean of what is remembered, without ``shrink``."""
