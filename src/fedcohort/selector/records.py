"""The selector's records of its clients, by position, and how it reads their updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._updates import (
    Array,
    Layout,
    Rows,
    Update,
    as_numpy,
    finite_rows,
    joined,
    moved,
    row_norms,
    same_place,
    usable_rows,
)
from fedcohort._whole_file import with_prefix, without_prefix
from fedcohort.cohort import Cohort
from fedcohort.designs import Recipe
from fedcohort.designs.signals import ASKED, PAST
from fedcohort.errors import AggregationError, SelectorError
from fedcohort.memory import Difference, Memory, UpdateMemory, Variates
from fedcohort.population import Population

State = dict[str, NDArray[Any]]
#: A recipe's own arrays, by name.
Notes = dict[str, NDArray[np.float64]]
#: Updates that the memory does not show yet: positions, what is kept of each, the numbers that
#: each had, and the round.
Pending = tuple[NDArray[np.int64], NDArray[np.float32], int, int]
#: Whole updates, and what the memory keeps of each; None for what is not needed.
Read = tuple[Rows | None, NDArray[np.float32] | None]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The updates of a round that can be used."""

    #: Positions of all clients that sent an update, in order of arrival.
    given: NDArray[np.int64]
    #: Positions of the clients whose updates are finite, sorted.
    clients: NDArray[np.int64]
    #: Their updates, one row each; None if whole updates are not needed.
    rows: Rows | None = None
    #: The part of each that the memory keeps; None if it keeps nothing.
    kept: NDArray[np.float32] | None = None

    @property
    def arrived(self) -> NDArray[np.int64]:
        """The same as ``clients``, in order of arrival."""
        return self.given[np.isin(self.given, self.clients)]

    @property
    def unusable(self) -> NDArray[np.int64]:
        """Positions of the clients whose updates are not finite, sorted."""
        return np.setdiff1d(self.given, self.clients)


def _pending_of(state: Mapping[str, NDArray[Any]]) -> list[Pending]:
    """Return what is pending, round by round."""
    clients, rows = state["clients"].astype(np.int64), state["rows"].astype(np.float32)
    sizes, dimensions, rounds = state["of"].astype(np.int64).tolist()
    if clients.shape != (sum(sizes),) or rows.shape[:1] != clients.shape or min(sizes) < 0:
        raise ValueError("pending updates must have one row per client")
    ends = np.cumsum(sizes)[:-1]
    parts = zip(np.split(clients, ends), np.split(rows, ends), dimensions, rounds, strict=True)
    return list(parts)


@final
class ClientRecords:
    """The server's records of the clients, for a recipe and an estimator.

    The recipe says what to remember: updates (``learns``), past signals, arrays of its own.
    ``sketch`` is how many numbers the memory keeps of an update; None for all.
    """

    def __init__(
        self, recipe: Recipe, difference: Difference | None, *, sketch: int | None, seed: int
    ) -> None:
        self._recipe, self._difference = recipe, difference
        self._sketch, self._seed = sketch, seed
        self.n_clients = 0
        #: The clients' last updates; None before the first, and where the recipe does not learn.
        self.memory: UpdateMemory | None = None
        #: The estimator's memory; None before the first update, and for the plain estimator.
        self.variates: Variates | None = None
        #: Updates that the memory does not show yet, by round. With overlap these are the last
        #: round's: the next design must not know them.
        self.pending: list[Pending] = []
        #: An empty memory, which shortens updates before there is another.
        self._empty: UpdateMemory | None = None
        #: Past signals, and the recipe's own arrays; NaN before the first.
        self._signals = {name: np.zeros(0) for name in recipe.signals if name not in ASKED}

    def signals(self) -> dict[str, NDArray[np.float64]]:
        """Return copies of the past signals and the recipe's own arrays, by name."""
        return {name: values.copy() for name, values in self._signals.items()}

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        held: list[Any] = [*self._signals.values(), *self._memories]
        return sum(each.nbytes for each in (*held, *(kept for _, kept, _, _ in self.pending)))

    @property
    def _memories(self) -> list[Memory]:
        """The memories that there are."""
        return [each for each in (self.memory, self.variates) if each is not None]

    # Reading updates

    @property
    def wants_rows(self) -> bool:
        """Whether the end of a round needs whole updates."""
        return self._difference is not None or self._takes_notes

    def read(
        self, updates: Any, ids: Sequence[Any], positions: NDArray[np.int64], *, whole: bool
    ) -> Answers:
        """Read the updates of these clients, by id or as rows in their order.

        Updates that are not finite, also in the type that they are remembered in, are left out.
        Updates by id that are not needed whole are read one at a time, or not at all.
        """
        order = np.argsort(positions, kind="stable")
        try:
            if isinstance(updates, Mapping):
                rows, kept = self._one_by_one(updates, [ids[k] for k in order], whole=whole)
            else:
                rows, kept = self._at_once(updates, order)
        except AggregationError as error:
            raise SelectorError(str(error)) from error
        good = np.ones(len(ids), dtype=bool)
        if rows is not None:
            good &= self._finite(rows.flat)
        if kept is not None:
            good &= np.isfinite(kept).all(axis=1)
        return Answers(
            positions,
            positions[order][good],
            None if rows is None else rows.taken(np.flatnonzero(good)),
            None if kept is None else kept[good],
        )

    def _at_once(self, updates: Any, order: NDArray[np.int64]) -> Read:
        """Read rows, or a list of updates, and order them."""
        is_list = isinstance(updates, Sized) and len(getattr(updates, "shape", (0,))) == 1
        if len(order) == 0 and is_list and len(updates) == 0:
            return None, None
        rows = Rows.of("Selector", updates, len(order)).taken(order)
        self._check_dimension(rows.layout.size)
        return rows, self._shortened(rows.flat)

    def _one_by_one(self, updates: Mapping[Any, Update], ids: list[Any], *, whole: bool) -> Read:
        """Read updates by id: whole, or what the memory keeps of each."""
        if not ids or not (whole or self._recipe.learns):
            return None, None
        layout: Layout | None = None
        flat, kept, counters = [], [], []
        for each in ids:
            update = updates[each]  # once: a mapping may compute it when it is read
            own = Layout.of("Selector", update)
            if layout is None:
                layout = own
                self._check_dimension(layout.size)
            if not layout.matches(own):
                raise SelectorError(
                    f"Selector: updates must have the arrays of the others, {layout.shapes}; "
                    f"client {each!r} sent {own.shapes}. Drop its update: it then counts as lost."
                )
            vector = layout.flat(update)
            short = self._shortened(vector[None])
            if short is not None:
                kept.append(short[0])
            if whole:
                flat.append(vector)
                counters.append(layout.counters(update))
        assert layout is not None  # for mypy: there are ids
        rows = Rows(layout, joined(flat, stacked=True), counters) if whole else None
        return rows, np.stack(kept) if kept else None

    def _check_dimension(self, dimension: int) -> None:
        """Refuse updates of another model than the remembered ones."""
        known = self._dimensions()
        if known - {dimension}:
            raise SelectorError(
                f"Selector: remembers updates of {known.pop()} numbers; got {dimension}. Make a "
                f"selector for each model."
            )

    def _dimensions(self) -> set[int]:
        """Return how many numbers the remembered updates have."""
        pending = {dimension for _, _, dimension, _ in self.pending}
        return pending | {each.dimension for each in self._memories}

    def _finite(self, rows: Array) -> NDArray[np.bool_]:
        """Say which updates are finite, and small enough for the estimator to remember."""
        return finite_rows(rows) if self._difference is None else usable_rows(rows)

    def _shortened(self, rows: Array) -> NDArray[np.float32] | None:
        """Return what the memory keeps of updates; None where it keeps nothing."""
        if not self._recipe.learns:
            return None
        dimension, memory = rows.shape[1], self.memory or self._empty
        if memory is None or memory.dimension != dimension:
            memory = self._empty = self._new_memory(1, dimension)
        return memory.shortened(as_numpy(rows))

    def _new_memory(self, n_clients: int, dimension: int) -> UpdateMemory:
        return UpdateMemory(n_clients, dimension, sketch=self._sketch, seed=self._seed)

    # Remembering

    def reweigh(self, population: Population) -> None:
        """Give the estimator the importance of these clients."""
        if self.variates is not None:
            self.variates.reweigh(population.importance)

    def estimator(self, rows: Array) -> Variates | None:
        """Return the estimator's memory in the kind of ``rows``; None before the first update."""
        variates = self.variates
        if variates is None or self._difference is None:
            return None
        is_numpy = isinstance(rows, np.ndarray)
        if not same_place(variates.zeros, rows) or not (
            is_numpy or variates.zeros.dtype == rows.dtype
        ):
            state = variates.state()
            self.variates = self._difference.memory(state["importance"], self._zeros(rows))
            self.variates.restore(state)
        return self.variates

    def _zeros(self, rows: Array) -> Array:
        """Return a flat model of zeros; means of clusters are few, so they are kept in float64."""
        if isinstance(rows, np.ndarray):
            clustered = self._difference is not None and self._difference.clusters is not None
            return np.zeros(rows.shape[1], dtype=np.float64 if clustered else rows.dtype)
        return rows.new_zeros(rows.shape[1])

    def record(self, answers: Answers, population: Population, round_: int) -> None:
        """Remember updates; the memory shows them after :meth:`publish`."""
        clients, kept = answers.clients, answers.kept
        if not len(clients):
            return
        if answers.rows is not None and self._difference is not None:
            rows = answers.rows.flat
            if self.variates is None:
                zeros = self._zeros(rows)
                self.variates = self._difference.memory(population.importance, zeros)
            (self.estimator(rows) or self.variates).record(clients, rows, round_=round_)
        if kept is not None and (shortens := self.memory or self._empty) is not None:
            self.pending.append((clients, kept, shortens.dimension, round_))

    def publish(self, before_round: int, prepared: UpdateMemory | None = None) -> None:
        """Move pending updates of earlier rounds into the memory.

        If ``prepared`` is given, it already contains them and replaces the memory.
        """
        due = [each for each in self.pending if each[3] < before_round]
        self.pending = [each for each in self.pending if each[3] >= before_round]
        self.memory = self._with(due, self.memory) if prepared is None else prepared

    def ahead(self, before_round: int) -> Callable[[], UpdateMemory | None]:
        """Return a function, safe in a thread, that adds updates of earlier rounds to a copy."""
        memory, due = self.memory, [each for each in self.pending if each[3] < before_round]
        return lambda: self._with(due, deepcopy(memory)) if due else memory

    def _with(self, updates: list[Pending], memory: UpdateMemory | None) -> UpdateMemory | None:
        """Record updates in a memory; make one if there is none."""
        for clients, kept, dimension, round_ in updates:
            memory = memory or self._new_memory(self.n_clients, dimension)
            memory.record_kept(clients, kept, round_=round_)
        return memory

    @property
    def _takes_notes(self) -> bool:
        """Whether the recipe has arrays of its own."""
        return type(self._recipe).observe is not Recipe.observe

    def observed(self, cohort: Cohort, answers: Answers) -> Notes:
        """Return the recipe's own arrays after a round; what is remembered does not change."""
        own = {name: v.copy() for name, v in self._signals.items() if name not in PAST}
        if self._takes_notes and answers.rows is not None and len(cohort):
            places = np.searchsorted(answers.clients, cohort.clients)
            norms = row_norms(answers.rows.flat)[places]
            self._recipe.observe(MappingProxyType(own), cohort, norms)
        return own

    def hear(
        self, clients: NDArray[np.int64], heard: Mapping[str, NDArray[np.float64]], notes: Notes
    ) -> None:
        """Take past signals of clients, except negative and non-finite values, and the notes."""
        for name, values in heard.items():
            if name in self._signals:
                known = np.isfinite(values) & (values >= 0)
                self._signals[name][clients[known]] = values[known]
        self._signals |= notes

    # Moving and saving

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client."""
        new = np.full(self.n_clients, -1)
        new[order[order >= 0]] = np.flatnonzero(order >= 0)
        self.n_clients = len(order)
        for name, values in self._signals.items():
            self._signals[name] = moved(values, order, fill=np.nan)
        if not len(order):
            self.memory, self.variates, self.pending = None, None, []
        for memory in self._memories:
            memory.rearrange(order)
        self.pending = [
            (new[clients][new[clients] >= 0], kept[new[clients] >= 0], dimension, round_)
            for clients, kept, dimension, round_ in self.pending
        ]

    def state(self) -> State:
        """Return everything that is saved, as arrays."""
        kept = with_prefix("signal.", self._signals)
        if self.memory is not None:
            kept |= with_prefix("memory.", self.memory.state())
        if self.variates is not None:
            kept |= with_prefix("variates.", self.variates.state())
            kept["variates.zeros"] = as_numpy(self.variates.zeros)
        if self.pending:
            clients, rows, dimensions, rounds = zip(*self.pending, strict=True)
            kept |= {
                "pending.clients": np.concatenate(clients),
                "pending.rows": np.concatenate(rows),
            }
            sizes = list(map(len, clients))
            kept["pending.of"] = np.array([sizes, dimensions, rounds], dtype=np.int64)
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]], n_clients: int) -> None:
        """Take over what :meth:`state` gave; refuse what does not fit with a ``ValueError``."""
        self.n_clients = n_clients
        # A new dictionary: a copy of these records shares the old one.
        self._signals = {name: state[f"signal.{name}"].astype(np.float64) for name in self._signals}
        memory, variates = without_prefix("memory.", state), without_prefix("variates.", state)
        self.memory = UpdateMemory.of_state(memory) if memory else None
        self.variates = None
        if variates and self._difference is not None:
            self.variates = self._difference.memory(variates["importance"], variates["zeros"])
            self.variates.restore(variates)
        self.pending = []
        if any(name.startswith("pending.") for name in state):
            self.pending = _pending_of(without_prefix("pending.", state))
        self._check()

    def _check(self) -> None:
        """Refuse parts that are not of these clients, or not of one model."""
        n = self.n_clients
        of_clients = [values.shape == (n,) for values in self._signals.values()]
        of_clients += [self.memory is None or self.memory.n_clients == n]
        for clients, kept, _, _ in self.pending:
            of_clients += [clients.shape == kept.shape[:1], kept.ndim == 2]
            of_clients += [bool(((clients >= 0) & (clients < n)).all())]
            if not np.isfinite(kept).all():
                raise ValueError("pending updates must be finite")
        if not all(of_clients) or len(self._dimensions()) > 1:
            raise ValueError(f"what it remembers must be of its {n} clients, and of one model")
