"""The base of all memories: it records clients' updates and aggregates with them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import brief, checked_number, checked_whole
from fedcohort._display import short_repr
from fedcohort._updates import LARGEST, Array, as_numpy, like, usable_rows
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.population import IMPORTANCE_TOLERANCE


class Memory(ABC):
    """What the server remembers of its clients; h is ``shrink`` times that.

    Designs that learn read ``updates``. The difference estimator aggregates with h
    (:meth:`aggregate`). Only ``record``, ``reweigh``, ``rearrange`` and ``restore`` change it: h
    is fixed during a round.

    Parameters
    ----------
    n_clients
        The number of clients.
    zeros
        Zeros of shape (dimension,), with the array kind, type and device of the updates.
    importance
        p, shape (n_clients,): at least 0, with the sum 1. Needed to aggregate.
    shrink
        The factor on what is remembered, from 0 to 1.
    """

    def __init__(
        self, n_clients: int, zeros: Array, *, importance: ArrayLike | None, shrink: float
    ) -> None:
        shape = tuple(getattr(zeros, "shape", ()))
        if (
            len(shape) != 1
            or "float" not in str(getattr(zeros, "dtype", ""))
            or bool((zeros != 0).any())
        ):
            raise self._error(
                f"a memory needs a flat model of floats, all 0; got {brief(zeros)}. Pass "
                f"numpy.zeros(model.size)."
            )
        self.n_clients, self._zeros = n_clients, zeros
        name, error = type(self).__name__, MemoryOfUpdatesError
        self._shrink = checked_number(name, "shrink", shrink, least=0, most=1, error=error)
        self._importance = None if importance is None else self._shares(importance)

    @property
    @abstractmethod
    def updates(self) -> NDArray[np.floating]:
        """What is remembered of each client, zero before the first; shape (n_clients, width)."""

    def record(self, clients: object, updates: Any, *, round_: int = 0) -> None:
        """Remember one update per client.

        Parameters
        ----------
        clients
            Positions, each once.
        updates
            One row of ``dimension`` numbers for each of them.
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
        rows = self._rows(updates, len(positions))
        self._check_finite(positions, rows)
        self._record(positions, rows, when)

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
        return self._shrink * self._remembered(clients)

    def expected(self) -> Array:
        """Return the sum of p h over all clients, shape (dimension,)."""
        self._shared()
        return self._shrink * self._mean()

    @property
    def dimension(self) -> int:
        """The number of entries of an update."""
        return int(self._zeros.shape[0])

    @property
    def zeros(self) -> Array:
        """A flat model of zeros, with the array kind, type and device of the updates."""
        return self._zeros

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(int(array.nbytes) for array in self._arrays().values())

    def reweigh(self, importance: ArrayLike) -> None:
        """Set another p. A client with p = 0 is away, but its update is kept."""
        shares = self._shares(importance)
        # If p did not change, keep the mean: a new sum would round differently.
        if self._importance is None or not np.array_equal(shares, self._importance):
            self._importance = shares
            self._reweigh()

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients: ``order`` has each client's old position, -1 for a new client.

        Clients that are not in ``order`` are forgotten; p is rescaled to the sum 1. New clients
        have p = 0 until ``reweigh``.

        Raises
        ------
        MemoryOfUpdatesError
            If ``order`` has a position twice, or one that no client has.
        """
        way_out = "Give each client's old position, or -1 for a new client."
        order = self._distinct(order, -1, "order", way_out)
        forgets = np.count_nonzero(order >= 0) < self.n_clients
        self.n_clients = len(order)
        self._rearrange(order)
        if self._importance is None:
            return
        self._importance = moved(self._importance, order, fill=0.0)
        if forgets:
            # p must sum to 1, or ``restore`` would refuse the state.
            total = self._importance.sum()
            equal = np.full(len(order), 1 / max(len(order), 1))
            self._importance = self._importance / total if total else equal
            self._reweigh()

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the memory's state as numpy arrays."""
        kept = {name: as_numpy(array).copy() for name, array in self._arrays().items()}
        return kept if self._importance is None else {"importance": self._importance.copy(), **kept}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned; if it is invalid, change nothing.

        Raises
        ------
        MemoryOfUpdatesError
            If an array is missing, has another shape, or is not finite.
        """
        needed = {name: tuple(array.shape) for name, array in self._arrays().items()}
        state = state if isinstance(state, Mapping) else {}
        if self._importance is not None:
            needed["importance"] = self._importance.shape
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
        shares = None if self._importance is None else self._shares(state["importance"])
        if invalid := [name for name in self._arrays() if not self._can_take(name, state[name])]:
            raise self._error(
                f"{invalid[0]} of the memory's state must be finite and in its range. Pass what "
                f"state() gave."
            )
        self._importance = shares
        self._take(state)

    def __repr__(self) -> str:
        return short_repr(
            self, n_clients=self.n_clients, dimension=self.dimension, shrink=self._shrink
        )

    def _can_take(self, name: str, array: NDArray[Any]) -> bool:
        """Return whether an array of a state, of the right shape, has valid values."""
        with np.errstate(over="ignore"):
            kept = as_numpy(like(array, self._arrays()[name]))
        return bool(usable_rows(kept.reshape(1, -1)).all())

    def _rows(self, updates: Any, n: int) -> Array:
        """Return updates as rows of the memory's type."""
        self._check_rows(updates, n)
        with np.errstate(over="ignore"):
            return like(updates, self._zeros)

    def _check_rows(self, updates: Any, n: int) -> None:
        """Raise if the updates have another array kind or shape than this memory."""
        if isinstance(updates, np.ndarray) != isinstance(self._zeros, np.ndarray):
            raise self._error(
                f"this memory is of {type(self._zeros).__name__}s; got updates as "
                f"{type(updates).__name__}. Make the memory with zeros of the updates' kind."
            )
        shape = tuple(getattr(updates, "shape", ()))
        if shape != (n, self.dimension):
            raise self._error(
                f"this memory is for updates of shape ({n}, {self.dimension}), one row per client; "
                f"got {shape}. Make a memory for each model."
            )

    def _check_finite(self, clients: NDArray[np.int64], rows: Array) -> None:
        usable = usable_rows(rows)
        if not usable.all():
            client = clients[np.argmin(usable)]
            raise self._error(
                f"updates must be finite {str(self._zeros.dtype).removeprefix('torch.')} numbers "
                f"below {LARGEST:g}; client {client}'s is not. Leave the client out, and keep what "
                f"it sent before."
            )

    def _positions(self, clients: object) -> NDArray[np.int64]:
        """Validate distinct positions of clients."""
        return self._distinct(clients, 0, "clients", "Name each client once, by its position.")

    def _distinct(self, given: object, least: int, what: str, way_out: str) -> NDArray[np.int64]:
        """Validate distinct positions of at least ``least``; negative ones may repeat."""
        try:
            places = np.asarray(given)
        except ValueError:  # rows of different lengths
            places = np.empty((0, 0))
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

    def _shares(self, importance: ArrayLike) -> NDArray[np.float64]:
        """Validate and copy importances: one share per client, with the sum 1."""
        try:
            given = np.array(importance)
            shares = given.astype(np.float64) if given.dtype.kind in "iuf" else np.empty(0)
        except (ValueError, TypeError):
            shares = np.empty(0)
        total = float(shares.sum()) if shares.shape == (self.n_clients,) else math.nan
        # ``not (...)`` also catches NaN.
        if not (abs(total - 1) <= IMPORTANCE_TOLERANCE and shares.min(initial=0.0) >= 0):
            raise self._error(
                f"importance must be one share per client ({self.n_clients}), at least 0 and 1 "
                f"together; got shape {shares.shape} with the sum {shares.sum():.12g}. Pass "
                f"population.importance, 0 for those that are away, and rearrange the memory "
                f"where clients are new."
            )
        return shares

    def _shared(self) -> NDArray[np.float64]:
        """Return p; raise if it is unknown."""
        if self._importance is None:
            raise self._error(
                "needs the clients' importance to aggregate; got none. Pass "
                "importance=population.importance, or call reweigh."
            )
        return self._importance

    @classmethod
    def _error(cls, sentence: str) -> MemoryOfUpdatesError:
        return MemoryOfUpdatesError(f"{cls.__name__}: {sentence}")

    @abstractmethod
    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        """Remember validated updates, in the memory's type."""

    @abstractmethod
    def _reweigh(self) -> None:
        """Recompute what depends on the importance."""

    @abstractmethod
    def _rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients."""

    @abstractmethod
    def _arrays(self) -> dict[str, Array]:
        """Return the arrays of the state, by name."""

    @abstractmethod
    def _take(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Copy validated arrays into the memory."""

    @abstractmethod
    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        """Return what is remembered of these clients, without ``shrink``."""

    @abstractmethod
    def _mean(self) -> Array:
        """Return the importance-weighted mean of what is remembered, without ``shrink``."""


def moved(values: NDArray[Any], order: NDArray[np.int64], *, fill: float) -> NDArray[Any]:
    """Return one value per client at its new position; ``fill`` for new clients.

    Examples
    --------
    >>> moved(np.array([5, 6, 7]), np.array([2, -1, 0]), fill=0).tolist()
    [7, 0, 5]
    """
    found = np.full(len(order), fill, dtype=values.dtype)
    found[order >= 0] = values[order[order >= 0]]
    return found
