"""The bases of all memories: one records clients' updates, the other estimates with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import as_array, brief, checked_numbers, checked_whole
from fedcohort._display import short_repr
from fedcohort._fields import Record
from fedcohort._updates import (
    LARGEST_ENTRY,
    Array,
    Layout,
    Rows,
    as_numpy,
    is_finite,
    like,
    reordered,
    usable_rows,
)
from fedcohort.cohort import Cohort
from fedcohort.errors import AggregationError, MemoryOfUpdatesError
from fedcohort.population import IMPORTANCE_TOLERANCE

#: The last round of a client that has sent nothing, and the latest round that there can be.
NEVER, LATEST = -1, 2**63 - 1


class Memory(ABC):
    """The base of memories of client updates.

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
        #: The number of entries of an update.
        self.dimension = int(zeros.shape[0])
        #: Everything that is remembered, by its name in the state.
        self._arrays: dict[str, Array] = {}
        #: The smallest and the largest number of arrays of integers, if they are not 0 and LATEST.
        self._limits: dict[str, tuple[int, int]] = {"last_seen": (NEVER, LATEST)}

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
            kept = self.shortened(rows)
        usable = usable_rows(kept)
        if not usable.all():
            raise self._error(
                f"updates must be finite {str(self.zeros.dtype).removeprefix('torch.')} numbers "
                f"below {LARGEST_ENTRY:g}; client {positions[np.argmin(usable)]}'s is not. Leave "
                f"the client out, and keep what it sent before."
            )
        self.record_kept(positions, kept, round_=when)

    def shortened(self, rows: Array) -> Array:
        """Return what is kept of flat updates, one row each."""
        return rows if rows.dtype == self.zeros.dtype else like(rows, self.zeros)

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(int(array.nbytes) for array in list(self._arrays.values()))

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients: ``order`` has each client's old position, -1 for a new client.

        Clients that are not in ``order`` are forgotten.
        """
        way_out = "Give each client's old position, or -1 for a new client."
        order = self._positions(order, "order", least=-1, way_out=way_out)
        self._rearrange(order)
        self.n_clients = len(order)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the memory's state as numpy arrays."""
        return {name: as_numpy(array).copy() for name, array in list(self._arrays.items())}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned; if it is invalid, raise and change nothing.

        Every array must be there, finite, and of the shape that it has in this memory.
        """
        self._adopt(self._read(state if isinstance(state, Mapping) else {}))

    def _read(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        """Return the arrays of a state in this memory's kind; raise if they are invalid."""
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
                f"into a memory of the same clients, model and settings."
            )
        for name, array in own.items():
            if not self._is_valid(name, state[name], array):
                raise self._error(
                    f"{name} of the memory's state must be finite and in its range. Pass what "
                    f"state() gave."
                )
        return {name: like(state[name], array) for name, array in own.items()}

    def _adopt(self, arrays: dict[str, Array]) -> None:
        """Take over the arrays of a valid state."""
        self._arrays = arrays

    def _like_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        """Return arrays of the shapes and types that a state must have."""
        return self._arrays

    def _is_valid(self, name: str, given: NDArray[Any], own: Array) -> bool:
        """Return whether an array of a state has values that this memory can have."""
        if isinstance(own, np.ndarray) and own.dtype.kind in "ib":
            least, most = self._limits.get(name, (0, LATEST))
            if given.dtype.kind not in ("b" if own.dtype.kind == "b" else "iu"):
                return False
            return not given.size or least <= int(given.min()) <= int(given.max()) <= most
        with np.errstate(over="ignore"):
            return is_finite(like(given, own, copy=False))

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

    def _positions(
        self,
        given: object,
        what: str = "clients",
        *,
        least: int = 0,
        way_out: str = "Name each client once, by its position.",
    ) -> NDArray[np.int64]:
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

    @abstractmethod
    def record_kept(self, clients: NDArray[np.int64], kept: Array, *, round_: int) -> None:
        """Remember what is kept of valid updates, one row per client; nothing is checked."""

    @abstractmethod
    def _rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients; ``n_clients`` is still the number before."""


@dataclass(frozen=True, slots=True)
class EstimatorSettings(Record, ABC):
    """The settings of an estimator that keeps something."""

    _error = AggregationError

    @property
    def over_members(self) -> bool:
        """Whether every member counts in every round, with h where it is away: the step is H then.

        Otherwise H runs over the available clients, and a round without answers does not move.
        """
        return False

    @property
    def own_weights(self) -> bool:
        """Whether the weights are not those of the design."""
        return False

    def weighed(self, cohort: Cohort, importance: NDArray[np.float64]) -> Cohort:
        """Return a drawn cohort with the weights that the estimator wants: the design's.

        ``importance`` is that of the members.
        """
        return cohort

    @property
    def data(self) -> Any:
        """The features of clients that they hold; None without."""
        return None

    @property
    def source(self) -> str | None:
        """Where features come from, such as ``"given"``; None without."""
        return None

    @property
    def plain(self) -> EstimatorSettings:
        """The settings alone: without the values of features."""
        return self

    def _with_classes(self, counts: Callable[[], NDArray[np.integer]]) -> EstimatorSettings:
        """Return the settings with the shares of classes as features, if they want them.

        ``counts`` returns the samples of each client and class.
        """
        return self

    def _check_layout(self, layout: Layout) -> None:
        """Refuse updates without an array that the estimator needs."""

    @abstractmethod
    def _memory(
        self, importance: ArrayLike, zeros: Array, *, layout: Layout, n_given: int, seed: int
    ) -> Estimator:
        """Make an empty memory; the arguments are those of ``RegressionEstimator``."""


class Estimator(Memory):
    r"""An estimator that subtracts h from every update before it is weighed.

    .. math:: v = \sum_i w_i (\Delta_i - h_i) + \sum_j p_j h_j

    h is fixed during a round: only ``record``, ``reweigh``, ``rearrange`` and ``restore`` change
    it, between rounds. The estimator is then unbiased for every design with :math:`E[w] = p`,
    whatever h is.

    Parameters
    ----------
    importance
        p, shape (n_clients,): at least 0, with the sum 1.
    zeros
        Zeros of shape (dimension,), with the array kind, type and device of the updates.
    """

    def __init__(self, importance: ArrayLike, zeros: Array) -> None:
        super().__init__(max(as_array(importance).size, 1), zeros)
        self._arrays["importance"] = self._shares(importance)

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        """Return v, shape (dimension,); ``updates`` has one row for each of ``clients``."""
        positions, given = self._checked_cohort(clients, weights, updates)
        return like(given, updates) @ (updates - self.of(positions)) + self.expected()

    def _checked_cohort(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Validate the arguments of :meth:`aggregate`; return positions and weights."""
        positions, name = self._positions(clients), type(self).__name__
        self._check_rows(updates, len(positions))
        n, error = len(positions), MemoryOfUpdatesError
        return positions, checked_numbers(name, "weights", weights, n, error=error)

    @abstractmethod
    def of(self, clients: NDArray[np.int64]) -> Array:
        """Return h of these clients, shape (len(clients), dimension)."""

    @abstractmethod
    def expected(self) -> Array:
        """Return H, the sum of p h over all clients, shape (dimension,)."""

    @property
    def nbytes_at_most(self) -> int:
        """Bytes in use once every client was seen."""
        return self.nbytes

    def reweigh(self, importance: ArrayLike) -> None:
        """Set p. A client with p = 0 is away, but its update is kept."""
        shares = self._shares(importance)
        if not np.array_equal(shares, self._importance):
            self._arrays["importance"] = shares
            self._forget_cached()

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Reorder the clients, as :meth:`Memory.rearrange` does; p is rescaled to the sum 1.

        New clients have p = 0 until ``reweigh``.
        """
        n_before = self.n_clients
        super().rearrange(order)
        places = np.asarray(order, dtype=np.int64)
        shares = reordered(self._importance, places)
        if np.count_nonzero(places >= 0) < n_before:
            # p must sum to 1, or ``restore`` would refuse the state.
            total, equal = shares.sum(), np.full(len(places), 1 / max(len(places), 1))
            shares = shares / total if total else equal
        self._arrays["importance"] = shares
        self._forget_cached()

    @property
    def _importance(self) -> NDArray[np.float64]:
        return self._arrays["importance"]  # type: ignore[no-any-return]  # a numpy array

    def _is_valid(self, name: str, given: NDArray[Any], own: Array) -> bool:
        return super()._is_valid(name, given, own) and (name != "importance" or _is_share(given))

    def _adopt(self, arrays: dict[str, Array]) -> None:
        super()._adopt(arrays)
        self._forget_cached()

    def _shares(self, importance: ArrayLike) -> NDArray[np.float64]:
        """Validate and copy importances: one share per client, with the sum 1."""
        given = as_array(importance)
        shares = given.astype(np.float64) if given.dtype.kind in "iuf" else np.empty(0)
        if shares.shape != (self.n_clients,) or not _is_share(shares):
            raise self._error(
                f"importance must be one share per client ({self.n_clients}), non-negative, "
                f"with sum 1; got shape {shares.shape} with the sum {shares.sum():.12g}. Pass "
                f"population.importance, 0 for those that are away, and rearrange the memory "
                f"where clients are new."
            )
        return shares

    def _forget_cached(self) -> None:
        """Drop what was computed from the importance and the arrays: they have changed."""


def _is_share(values: NDArray[Any]) -> bool:
    """Return whether numbers are shares of 1; False if one is NaN."""
    total = float(values.sum())
    return abs(total - 1) <= IMPORTANCE_TOLERANCE and float(values.min(initial=0.0)) >= 0
