"""A round between draw and aggregate: who was asked, and what their answers come to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.aggregation import aggregate
from fedcohort.answers import Answers, Numbers, Updates
from fedcohort.arrays import Array
from fedcohort.client_records import ClientRecords
from fedcohort.cohort import Cohort
from fedcohort.designs import Design
from fedcohort.errors import SelectorError
from fedcohort.failures import Draws, FailureRule
from fedcohort.roster import Id, Roster
from fedcohort.updates import Rows, Update, stretched


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """An open round; nothing here changes what is remembered of the clients.

    Attributes
    ----------
    roster, records, rule
        The selector's.
    design
        What was drawn from; None: nobody was available.
    draws
        The cohort as drawn, and replacements.
    cohort_size
        The recipe's.
    """

    roster: Roster
    records: ClientRecords
    rule: FailureRule
    design: Design | None
    draws: Draws
    cohort_size: int

    @property
    def cohort(self) -> Cohort:
        """The cohort as drawn."""
        return self.draws.cohort

    @property
    def asked(self) -> list[Id]:
        """Whom the round has asked so far, replacements included; in the order of ids."""
        return self.roster.names(np.array(sorted(self.draws.asked), dtype=np.int64))

    def positions(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Return the positions of clients; refuse those that were not asked, and any twice."""
        positions = self.roster.positions(ids)
        if len(np.unique(positions)) < len(positions):
            raise SelectorError("Selector: a client answers once; got an id twice.")
        for client in positions.tolist():
            if client not in self.draws.asked:
                raise SelectorError(
                    f"Selector: client {self.roster.ids[client]!r} was not drawn in round "
                    f"{self.cohort.round_}. Pass answers of the cohort alone."
                )
        return positions

    def redrawn(self, lost: Iterable[object]) -> list[Id]:
        """Return whom to ask in the place of these clients; nobody with another rule."""
        positions = self.positions(lost)
        if self.rule.on_failure != "redraw":
            return []
        return self.roster.names(np.array(self.draws.replace(positions.tolist()), dtype=np.int64))

    def settled(self, answered: NDArray[np.int64]) -> Cohort:
        """Return the cohort of those that answered, with their final weights."""
        size = min(self.cohort_size, self.draws.cohort_size)
        cohort = self.rule.settled(self.draws, answered, cohort_size=size)
        return cohort.named(self.roster.names(cohort.clients), self.cohort.round_)

    def answers(self, updates: Updates, ids: Iterable[object] | None, *, whole: bool) -> Answers:
        """Read updates, by id or as rows in the order of ids; ``whole``: all of each is needed."""
        named: Sequence[object]
        if not isinstance(updates, Mapping):
            named = self.cohort.ids if ids is None else list(ids)
        elif ids is None:
            named = list(updates)
        else:
            raise SelectorError(
                "Selector: ids name the rows of updates; got updates by id too. Leave ids out."
            )
        return Answers.read(updates, named, self.positions(named), self.records, whole=whole)

    def reported(
        self, answers: Answers, losses: Numbers | None, durations: Numbers | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return what clients reported, by the name of the past signal."""
        names = self.roster.names(answers.clients)
        heard = {"past_round": np.full(len(names), float(self.cohort.round_))}
        for signal, given in (("past_loss", losses), ("past_duration", durations)):
            if isinstance(given, Mapping):
                self.positions(given)
            if given is not None:
                heard[signal] = answers.numbers(signal, given, names)
        return heard

    def reasons(self, failed: Mapping[Any, str] | None) -> dict[Id, str]:
        """Return why clients failed, by id; refuse clients that were not asked."""
        given = failed or {}
        names = self.roster.names(self.positions(given))
        return dict(zip(names, map(str, given.values()), strict=True))

    def failures(self, answered: NDArray[np.int64], reasons: Mapping[Id, str]) -> dict[Id, str]:
        """Return who failed and why, by id."""
        lost = sorted(self.draws.asked - set(answered.tolist()))
        missing = self.roster.names(np.array(lost, dtype=np.int64))
        return {**dict.fromkeys(missing, "no answer"), **reasons}

    def recall(self, ids: Iterable[object]) -> tuple[Array, Array] | None:
        """Return the estimator's h, one row per id, and H = sum p h; None where there is none."""
        variates = self.records.variates
        if variates is None or self.design is None:
            return None
        return variates.of(self.roster.positions(ids)), variates.expected()

    def step(self, answers: Answers, model: Update | None) -> Update:
        """Aggregate by the settled weights."""
        settled, rows, variates = self.settled(answers.arrived), answers.rows, self.records.variates
        if rows is None and variates is not None:  # no update says of which kind they are
            rows = Rows.of("Selector", variates.zeros[None][:0], 0)
        if rows is None or self.design is None or (len(self.cohort) and not len(settled)):
            # Nobody answered: the difference estimator's H would repeat the last updates.
            if model is not None:
                return aggregate(model, [], Cohort.empty())
            return 0.0 if rows is None else rows.zero()
        chosen = rows.taken(np.searchsorted(answers.clients, settled.clients))
        return aggregate(model, chosen, settled, memory=self.records.estimator(chosen.flat))

    def for_average(
        self, updates: Mapping[Any, Update]
    ) -> Iterator[tuple[Id | None, float, Update]]:
        """Return (id, weight, update) for who divides by the sum of the weights."""
        positions = self.positions(updates)
        usable = [Answers.is_usable(update, self.records) for update in updates.values()]
        return self._averaged(updates, self.settled(positions[np.array(usable, dtype=bool)]))

    def _averaged(
        self, updates: Mapping[Any, Update], settled: Cohort
    ) -> Iterator[tuple[Id | None, float, Update]]:
        total = 1.0 - settled.residual
        total = 1.0 if math.isclose(total, 1.0, rel_tol=1e-12) else total
        recalled = self.recall(settled.ids)
        is_empty = not settled.weights.any() and (len(settled) > 0 or not len(self.cohort))
        if is_empty and recalled is not None:
            yield None, 1.0, recalled[1]
        for k, each in enumerate(self.roster.names(settled.clients)):
            update, weight = updates[each], float(settled.weights[k])
            if weight == 0.0:
                continue
            if total != 1.0 or recalled is not None:
                around = None if recalled is None else (recalled[0][k], recalled[1])
                update = stretched("Selector", update, total, around)
            yield each, weight, update
