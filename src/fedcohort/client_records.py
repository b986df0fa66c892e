"""What a selector remembers of its clients, by position: updates, signals, control variates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.arrays import Array, as_numpy, row_norms, same_place
from fedcohort.cohort import Cohort
from fedcohort.designs import Recipe
from fedcohort.designs.signals import ASKED, PAST
from fedcohort.difference import ControlVariates, Difference
from fedcohort.errors import SelectorError
from fedcohort.similarity import UpdateMemory

State = dict[str, NDArray[Any]]
#: Positions, flat rows and the round of updates that the memory does not show yet.
Pending = tuple[NDArray[np.int64], NDArray[np.float32], int]


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
        With overlap: updates that the next design must not know yet.
    """

    def __init__(
        self, recipe: Recipe, difference: Difference | None, *, sketch: int | None, seed: int
    ) -> None:
        self._recipe, self._difference = recipe, difference
        self._sketch, self._seed = sketch, seed
        self.n_clients = 0
        self.memory: UpdateMemory | None = None
        self.variates: ControlVariates | None = None
        self.pending: Pending | None = None
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
        return held + (0 if self.pending is None else self.pending[1].nbytes)

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client."""
        is_known, self.n_clients = order >= 0, len(order)
        for name, values in self._signals.items():
            self._signals[name] = np.full(len(order), np.nan)
            self._signals[name][is_known] = values[order[is_known]]
        if self.memory is not None:
            self.memory.rearrange(order)
        if self.variates is not None:
            self.variates.rearrange(order)
        if self.pending is not None:
            clients, rows, round_ = self.pending
            at = {old: new for new, old in enumerate(order.tolist()) if old >= 0}
            stays = np.array([client in at for client in clients.tolist()], dtype=bool)
            moved = np.array([at[client] for client in clients[stays].tolist()], dtype=np.int64)
            self.pending = (moved, rows[stays], round_)

    def check(self, dimension: int) -> None:
        """Refuse updates of another model than the remembered ones."""
        known = [each.dimension for each in (self.memory, self.variates) if each is not None]
        if known and known[0] != dimension:
            raise SelectorError(
                f"Selector: remembers updates of {known[0]} numbers; got {dimension}. Make a "
                f"selector for each model."
            )

    def estimator(self, rows: Array, importance: NDArray[np.float64]) -> ControlVariates | None:
        """Return the estimator's memory in the kind of ``rows``, with these importances."""
        if self._difference is None:
            return None
        if self.variates is None:
            self.variates = self._difference.memory(importance, self._zeros(rows))
        elif not same_place(self.variates.zeros, rows):
            state, zeros = self.variates.state(), self._zeros(rows)
            self.variates = self._difference.memory(state["importance"], zeros)
            self.variates.restore(state)
        self.variates.reweigh(importance)
        return self.variates

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
        if self.memory is None:
            self.memory = UpdateMemory(self.n_clients, rows.shape[1], self._sketch, self._seed)
        return self.memory.shortened(as_numpy(rows))

    def record(
        self, clients: NDArray[np.int64], kept: NDArray[np.float32] | None, *, round_: int
    ) -> None:
        """Take what :meth:`shortened` gave of updates; the memory shows it when it is settled."""
        if kept is not None and len(clients):
            self.pending = (clients, kept, round_)

    def settle_pending(self) -> None:
        """Let the memory show the updates that were taken last."""
        if self.pending is not None and self.memory is not None:
            clients, kept, round_ = self.pending
            self.memory.record_shortened(clients, kept, round_=round_)
            self.pending = None

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
        """Note past signals of clients that answered; NaN leaves what was known."""
        for name, values in heard.items():
            if name in self._signals:
                known = ~np.isnan(values)
                self._signals[name][clients[known]] = values[known]

    def observe(self, cohort: Cohort, clients: NDArray[np.int64], rows: Array) -> None:
        """Let the recipe take its own notes; ``rows`` are the updates of ``clients``."""
        own = {name: values for name, values in self._signals.items() if name not in PAST}
        self._recipe.observe(own, cohort, row_norms(rows)[np.searchsorted(clients, cohort.clients)])

    def state(self) -> State:
        """Return everything that is to be kept, as arrays."""
        kept: State = {f"signal.{name}": values for name, values in self._signals.items()}
        if self.memory is not None:
            kept |= {f"memory.{name}": array for name, array in self.memory.state().items()}
        if self.variates is not None:
            kept |= {f"variates.{name}": array for name, array in self.variates.state().items()}
        if self.pending is not None:
            clients, rows, round_ = self.pending
            kept |= {"pending.clients": clients, "pending.rows": rows}
            kept["pending.round"] = np.array(round_)
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]], n_clients: int) -> None:
        """Take over what :meth:`state` gave."""
        self.n_clients = n_clients
        for name in self._signals:
            self._signals[name] = state[f"signal.{name}"].astype(np.float64)
        memory, variates = below("memory.", state), below("variates.", state)
        self.memory = UpdateMemory.of_state(memory) if memory else None
        self.variates = None
        if variates and self._difference is not None:
            wide = next(variates[name] for name in ("kept", "means") if name in variates)
            zeros = np.zeros(wide.shape[1], dtype=wide.dtype)
            self.variates = self._difference.memory(variates["importance"], zeros)
            self.variates.restore(variates)
        self.pending = None
        if "pending.clients" in state:
            clients, rows = state["pending.clients"], state["pending.rows"]
            self.pending = (
                clients.astype(np.int64),
                rows.astype(np.float32),
                int(state["pending.round"]),
            )


def below(prefix: str, state: Mapping[str, NDArray[Any]]) -> State:
    """Return the arrays whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): a for name, a in state.items() if name.startswith(prefix)}
