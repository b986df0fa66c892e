"""What a selector remembers of its clients, by position: updates, signals, control variates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._updates import (
    Array,
    as_numpy,
    finite_rows,
    like,
    row_norms,
    same_place,
    usable_rows,
)
from fedcohort.cohort import Cohort
from fedcohort.designs import Recipe
from fedcohort.designs.signals import ASKED, PAST
from fedcohort.errors import SelectorError
from fedcohort.memory import Difference, Memory, UpdateMemory
from fedcohort.population import Population

State = dict[str, NDArray[Any]]
#: A recipe's own arrays, by name.
Notes = dict[str, NDArray[np.float64]]
#: Updates that the memory does not show yet: positions, what is kept of each, the numbers that
#: each had, and the round.
Pending = tuple[NDArray[np.int64], NDArray[np.float32], int, int]


@final
class ClientRecords:
    """What is remembered of the clients, for a recipe and an estimator.

    Parameters
    ----------
    recipe
        Says what is to be remembered: updates (``learns``), past signals, arrays of its own.
    difference
        Settings of the difference estimator; None for the plain one.
    sketch, seed
        Numbers that the memory keeps of an update, None for all; and the seed of the sketch.

    Attributes
    ----------
    memory
        The clients' last updates; None before the first, and where the recipe does not learn.
    variates
        The estimator's memory; None before the first update, and for the plain estimator.
    pending
        Updates that the memory does not show yet, by round; with overlap those of the last round,
        which the next design must not know.
    """

    def __init__(
        self, recipe: Recipe, difference: Difference | None, *, sketch: int | None, seed: int
    ) -> None:
        self._recipe, self._difference = recipe, difference
        self._sketch, self._seed = sketch, seed
        self.n_clients = 0
        self.memory: UpdateMemory | None = None
        self.variates: Memory | None = None
        self.pending: list[Pending] = []
        self._shortens: UpdateMemory | None = None
        #: Past signals, and the recipe's own arrays; NaN before the first.
        self._signals = {name: np.zeros(0) for name in recipe.signals if name not in ASKED}

    def signals(self) -> dict[str, NDArray[np.float64]]:
        """Return copies of the past signals and the recipe's own arrays, by name."""
        return {name: values.copy() for name, values in self._signals.items()}

    @property
    def wants_loss(self) -> bool:
        """Whether clients are to report their losses."""
        return "past_loss" in self._signals

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        held = sum(values.nbytes for values in self._signals.values())
        held += 0 if self.memory is None else self.memory.nbytes
        held += 0 if self.variates is None else self.variates.nbytes
        return held + sum(kept.nbytes for _, kept, _, _ in self.pending)

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client."""
        is_known, n_before, self.n_clients = order >= 0, self.n_clients, len(order)
        for name, values in self._signals.items():
            self._signals[name] = np.full(len(order), np.nan)
            self._signals[name][is_known] = values[order[is_known]]
        if not len(order):
            self.memory, self.variates, self.pending = None, None, []
        if self.memory is not None:
            self.memory.rearrange(order)
        if self.variates is not None:
            self.variates.rearrange(order)
        new = np.full(n_before, -1)
        new[order[is_known]] = np.flatnonzero(is_known)
        self.pending = [
            (new[clients][new[clients] >= 0], kept[new[clients] >= 0], dimension, round_)
            for clients, kept, dimension, round_ in self.pending
        ]

    def check(self, dimension: int) -> None:
        """Refuse updates of another model than the remembered ones."""
        known = [each.dimension for each in (self.memory, self.variates) if each is not None]
        known += [dimension for _, _, dimension, _ in self.pending]
        if known and known[0] != dimension:
            raise SelectorError(
                f"Selector: remembers updates of {known[0]} numbers; got {dimension}. Make a "
                f"selector for each model."
            )

    def reweigh(self, population: Population) -> None:
        """Let the estimator expect what these clients would send."""
        if self.variates is not None:
            self.variates.reweigh(population.importance)

    def estimator(self, rows: Array) -> Memory | None:
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

    def finite(self, rows: Array) -> NDArray[np.bool_]:
        """Say which updates are finite, also in the type that the estimator remembers them in."""
        good = finite_rows(rows) if self._difference is None else usable_rows(rows)
        if self.variates is not None and self.variates.zeros.dtype != rows.dtype:
            with np.errstate(over="ignore", invalid="ignore"):
                good &= finite_rows(like(rows, self.variates.zeros))
        return good

    def _zeros(self, rows: Array) -> Array:
        """Return a flat model of zeros; means of clusters are few, and kept in float64."""
        if isinstance(rows, np.ndarray):
            clustered = self._difference is not None and self._difference.clusters is not None
            return np.zeros(rows.shape[1], dtype=np.float64 if clustered else rows.dtype)
        return rows.new_zeros(rows.shape[1])

    def shortened(self, rows: Array) -> NDArray[np.float32] | None:
        """Return what the memory keeps of updates; None where it keeps nothing."""
        if not self._recipe.learns:
            return None
        memory = self.memory
        if memory is None:
            if self._shortens is None or self._shortens.dimension != rows.shape[1]:
                self._shortens = UpdateMemory(
                    1, rows.shape[1], sketch=self._sketch, seed=self._seed
                )
            memory = self._shortens
        return memory.shortened(as_numpy(rows))

    def record(
        self,
        clients: NDArray[np.int64],
        rows: Array | None,
        kept: NDArray[np.float32] | None,
        *,
        population: Population,
        round_: int,
    ) -> None:
        """Take updates; the memory shows what is kept of them when that is settled.

        ``rows`` are whole, for the estimator; ``kept`` is what :meth:`shortened` gave.
        """
        if not len(clients):
            return
        if rows is not None and self._difference is not None:
            if self.variates is None:
                zeros = self._zeros(rows)
                self.variates = self._difference.memory(population.importance, zeros)
            variates = self.estimator(rows)
            assert variates is not None  # for mypy: it was made
            variates.record(clients, rows, round_=round_)
        if kept is not None:
            shortens = self.memory if self.memory is not None else self._shortens
            assert shortens is not None  # for mypy: it shortened them
            self.pending.append((clients, kept, shortens.dimension, round_))

    def settle(self, before: int, ahead: UpdateMemory | None = None) -> None:
        """Let the memory show the updates of rounds before one; ``ahead`` shows them already."""
        due = [each for each in self.pending if each[3] < before]
        self.pending = [each for each in self.pending if each[3] >= before]
        self.memory = self._with(due, self.memory) if ahead is None else ahead

    def ahead(self) -> Callable[[], UpdateMemory | None]:
        """Return what copies the memory and lets it show all updates so far, also in a thread."""
        memory, pending = self.memory, list(self.pending)
        return lambda: self._with(pending, deepcopy(memory))

    def _with(self, updates: list[Pending], memory: UpdateMemory | None) -> UpdateMemory | None:
        """Record updates in a memory; make one where there is none."""
        for clients, kept, dimension, round_ in updates:
            if memory is None:
                memory = UpdateMemory(
                    self.n_clients, dimension, sketch=self._sketch, seed=self._seed
                )
            memory.record_shortened(clients, kept, round_=round_)
        return memory

    @property
    def wants_norms(self) -> bool:
        """Whether the recipe takes notes of its own."""
        return type(self._recipe).observe is not Recipe.observe

    @property
    def wants_updates(self) -> bool:
        """Whether the memory keeps something of an update."""
        return self._recipe.learns

    @property
    def wants_rows(self) -> bool:
        """Whether whole updates are needed at the end of a round."""
        return self._difference is not None or self.wants_norms

    def hear(self, clients: NDArray[np.int64], heard: Mapping[str, NDArray[np.float64]]) -> None:
        """Record past signals of clients that answered; ignore negative and non-finite values."""
        for name, values in heard.items():
            if name in self._signals:
                known = np.isfinite(values) & (values >= 0)
                self._signals[name][clients[known]] = values[known]

    def observed(self, cohort: Cohort, clients: NDArray[np.int64], rows: Array | None) -> Notes:
        """Return the recipe's own notes after a round; ``rows`` are the updates of ``clients``."""
        own = {name: v.copy() for name, v in self._signals.items() if name not in PAST}
        if self.wants_norms and rows is not None and len(cohort):
            norms = row_norms(rows)[np.searchsorted(clients, cohort.clients)]
            self._recipe.observe(MappingProxyType(own), cohort, norms)
        return own

    def note(self, notes: Notes) -> None:
        """Keep what :meth:`observed` gave."""
        self._signals |= notes

    def state(self) -> State:
        """Return everything that is to be kept, as arrays."""
        kept: State = {f"signal.{name}": values for name, values in self._signals.items()}
        if self.memory is not None:
            kept |= {f"memory.{name}": array for name, array in self.memory.state().items()}
        if self.variates is not None:
            kept |= {f"variates.{name}": array for name, array in self.variates.state().items()}
        for clients, rows, dimension, round_ in self.pending:  # between rounds at most one
            kept |= {"pending.clients": clients, "pending.rows": rows}
            kept["pending.of"] = np.array([dimension, round_])
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]], n_clients: int) -> None:
        """Take over what :meth:`state` gave; refuse what does not fit with a ``ValueError``."""
        self.n_clients = n_clients
        # Another dictionary: a copy of these records keeps its own.
        self._signals = {name: state[f"signal.{name}"].astype(np.float64) for name in self._signals}
        memory, variates = below("memory.", state), below("variates.", state)
        self.memory = UpdateMemory.of_state(memory) if memory else None
        self.variates = None
        if variates and self._difference is not None:
            wide = variates["updates" if self._difference.clusters is None else "means"]
            zeros = np.zeros(wide.shape[1], dtype=wide.dtype)
            self.variates = self._difference.memory(variates["importance"], zeros)
            self.variates.restore(variates)
        self.pending = []
        if any(name.startswith("pending.") for name in state):
            clients, rows = state["pending.clients"], state["pending.rows"]
            dimension, round_ = state["pending.of"].tolist()
            self.pending = [(clients.astype(np.int64), rows.astype(np.float32), dimension, round_)]
        self._check()

    def _check(self) -> None:
        """Refuse parts that are not of these clients, or not of one model."""
        n = self.n_clients
        of_clients = [values.shape == (n,) for values in self._signals.values()]
        of_clients += [self.memory is None or self.memory.n_clients == n]
        models = {each.dimension for each in (self.memory, self.variates) if each is not None}
        for clients, kept, dimension, _ in self.pending:
            models.add(dimension)
            of_clients += [clients.shape == kept.shape[:1], kept.ndim == 2]
            of_clients += [bool(((clients >= 0) & (clients < n)).all())]
            if not np.isfinite(kept).all():
                raise ValueError("pending updates must be finite")
        if not all(of_clients) or len(models) > 1:
            raise ValueError(f"what it remembers must be of its {n} clients, and of one model")


def below(prefix: str, state: Mapping[str, NDArray[Any]]) -> State:
    """Return the arrays whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}
