"""The state of a selector between rounds: its members, its memory of them, the next round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import Id, brief
from fedcohort._display import html_table, record_repr
from fedcohort._whole_file import with_prefix, without_prefix
from fedcohort.designs import Design
from fedcohort.errors import SelectorError
from fedcohort.memory import UpdateMemory, Variates
from fedcohort.population import Population
from fedcohort.selector.files import Origin, SelectionLog, refusing_states
from fedcohort.selector.open_round import OpenRound
from fedcohort.selector.planner import Planner
from fedcohort.selector.records import ClientRecords
from fedcohort.selector.roster import Clients, Roster


class SelectorState:
    """The part of a selector that is saved, and that changes between rounds only."""

    def __init__(self, origin: Origin, roster: Roster) -> None:
        self.recipe, self.seed, self.round_ = origin.recipe, origin.seed, 0
        self._origin, self._rule, self._roster = origin, origin.rule, roster
        self._records = ClientRecords(
            origin.recipe, origin.difference, sketch=origin.sketch, seed=origin.seed
        )
        self._planner = Planner(
            origin.recipe,
            origin.rule,
            self._records,
            seed=origin.seed,
            overlap=origin.overlap,
            rebuild_every=origin.rebuild_every,
        )
        self._open: OpenRound | None = None
        self._last_design: Design | None = None
        self._present: NDArray[np.bool_] | None = None
        self.selections: SelectionLog | None = None

    def __repr__(self) -> str:
        recipe, n = record_repr(self.recipe), self._roster.is_member.sum()
        return f"Selector({recipe}, {n} clients, seed={self.seed}, round_={self.round_})"

    def _repr_html_(self) -> str:
        rows = [
            ("recipe", record_repr(self.recipe)),
            ("clients", int(self._roster.is_member.sum())),
            ("estimator", record_repr(self._origin.difference or "plain")),
            ("on failure", self._rule.on_failure),
            ("seed", self.seed),
            ("round", f"{self.round_}, {'not drawn yet' if self._open is None else 'drawn'}"),
        ]
        return html_table("Selector", (), rows)

    # Members

    @property
    def clients(self) -> dict[Id, int]:
        """The members' sizes by id; assign sizes to let members come, go or change size."""
        return self._roster.members()

    @clients.setter
    def clients(self, clients: Clients) -> None:
        self._refuse_open("clients can change")
        self._catch_up()
        is_first = self._roster.n_clients == 0
        order = self._roster.set(clients, check=self._check_clients)
        if not is_first:  # else the check has built the first design
            self._planner.discard()
        self._move(order)

    @property
    def population(self) -> Population:
        """Everyone that is known, in the order of ids; who has left has size 0."""
        return self._roster.population

    def forget(self, ids: Iterable[object]) -> None:
        """Erase clients: membership, updates, signals, labels and counts.

        Lines already written to a log file stay, and so does what a client has added to the means
        of its cluster or to the basis (``Difference(clusters=...)``, ``keep="rank"``). A file of
        rows (``file=``) loses the client's row two checkpoints later.
        """
        self._refuse_open("clients can be forgotten")
        self._catch_up()
        order = self._roster.remove(ids)
        self._planner.discard(last=True)
        self._move(order)

    def _catch_up(self) -> None:
        """Between rounds, take over what was built while clients trained."""
        if self._open is None:
            self._planner.catch_up(self.round_)

    def _move(self, order: NDArray[np.int64] | None) -> None:
        """Move what is known of clients to their new positions; None: all keep theirs."""
        self._present = None
        if order is not None:
            self._records.rearrange(order)
            if self.selections is not None:
                self.selections.rearrange(order)

    # Memory and checkpoints

    @property
    def memory(self) -> UpdateMemory | None:
        """The clients' last updates, in the order of ``population``; assign one to start from."""
        self._catch_up()
        return self._records.memory

    @memory.setter
    def memory(self, memory: UpdateMemory) -> None:
        self._refuse_open("the memory can change")
        n = self._roster.n_clients
        if not isinstance(memory, UpdateMemory) or memory.n_clients != n:
            raise SelectorError(
                f"Selector: memory must be an UpdateMemory of its {n} clients; got "
                f"{brief(memory)}. Pass UpdateMemory({n}, dimension)."
            )
        self._catch_up()
        self._planner.discard()
        self._records.memory, self._records.pending = memory, []

    @property
    def variates(self) -> Variates | None:
        """The memory of the difference estimator; None before the first update."""
        return self._records.variates

    @property
    def wants_losses(self) -> bool:
        """Whether the recipe reads the losses that clients report."""
        return "past_loss" in self.recipe.signals

    @property
    def nbytes(self) -> int:
        """Bytes that the clients' sizes and all that is remembered of them take."""
        return self._roster.sizes.nbytes + self._roster.is_member.nbytes + self._records.nbytes

    def state(self) -> dict[str, NDArray[Any]]:
        """Return a copy of everything that is saved, as arrays; an open round is not."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave; refuse a state of another recipe or settings.

        If something is missing in the state or does not fit, nothing changes.
        """
        with refusing_states():
            self._restore(state)

    def _restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        # Into copies: nothing changes where one part of the state cannot be read.
        round_, selections = self._origin.round_of(state), copy(self.selections)
        roster, records = copy(self._roster), copy(self._records)
        roster.restore(without_prefix("roster.", state))
        records.restore(without_prefix("records.", state), roster.n_clients)
        if selections is not None:
            selections.restore(without_prefix("log.", state), roster.n_clients)
        changes = bool(state["changes"])
        self._planner.catch_up(self.round_)
        self._planner.discard(last=True)
        vars(self._roster).update(vars(roster))
        vars(self._records).update(vars(records))
        self.selections, self._planner.rebuilds_every_round = selections, changes
        self.round_, self._open, self._present, self._last_design = round_, None, None, None

    def _arrays(self) -> dict[str, NDArray[Any]]:
        self._catch_up()
        changes = np.array(self._planner.rebuilds_every_round)
        kept = {"head": self._origin.head(self.round_), "changes": changes}
        kept |= with_prefix("roster.", self._roster.state())
        kept |= with_prefix("records.", self._records.state())
        log = {} if self.selections is None else self.selections.state()
        return kept | with_prefix("log.", log)

    def _refuse_open(self, what: str) -> None:
        if self._open is not None:
            raise SelectorError(
                f"Selector: round {self.round_} is open; it must end before {what}. Call aggregate "
                f"or remember, or skip."
            )

    def _check_clients(self, population: Population) -> None:
        """Refuse first clients that cannot be drawn from, and ids that a log cannot write."""
        if not self._roster.n_clients:
            self._planner.rehearse(population)
        if self.selections is not None:
            self.selections.check(population.ids)
