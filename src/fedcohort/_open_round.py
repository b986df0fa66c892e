"""A round between draw and aggregate: who was asked, and what their answers come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import brief
from fedcohort._client_records import ClientRecords
from fedcohort._failures import Draws, FailureRule
from fedcohort._roster import Id, Roster
from fedcohort._updates import Array, Layout, Rows, Update, joined, stretched
from fedcohort.aggregation import aggregate
from fedcohort.cohort import Cohort
from fedcohort.designs import Design
from fedcohort.errors import AggregationError, SelectorError

log = getLogger("fedcohort")

#: Positions of no client.
NOBODY = np.empty(0, dtype=np.int64)
#: Numbers by id, or in the order of ids.
Numbers = Mapping[Any, float] | ArrayLike
#: Updates by id, or rows in the order of ids.
Updates = Mapping[Any, Update] | Array | Sequence[Update]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Updates that can be used.

    Attributes
    ----------
    arrived
        Positions of the clients, in order of arrival.
    clients
        The same, sorted.
    places
        Where each of ``clients`` stands among the ids that were given.
    n_given
        How many ids were given.
    rows
        Their updates, one row each; None where nobody needs whole updates.
    kept
        What the memory keeps of each; None where it keeps nothing.
    unusable
        Positions of clients whose updates are not finite.
    """

    arrived: NDArray[np.int64]
    clients: NDArray[np.int64]
    places: NDArray[np.int64]
    n_given: int
    rows: Rows | None = None
    kept: NDArray[np.float32] | None = None
    unusable: NDArray[np.int64] = field(default_factory=lambda: NOBODY)

    @classmethod
    def read(
        cls,
        updates: Any,
        ids: Sequence[object],
        positions: NDArray[np.int64],
        records: ClientRecords,
        *,
        whole: bool,
    ) -> Answers:
        """Read the updates of these clients, by id or as rows in their order.

        Those that are not finite, also in the type that they are remembered in, are left out.
        Where whole updates are not needed, updates by id are read one at a time, or not at all.
        """
        places = np.argsort(positions, kind="stable")
        try:
            if isinstance(updates, Mapping):
                named = [ids[k] for k in places]
                rows, kept = _one_by_one(updates, named, records, whole=whole)
            else:
                rows, kept = _at_once(updates, places, records)
        except AggregationError as error:
            raise SelectorError(str(error)) from error
        good = np.ones(len(ids), dtype=bool)
        if rows is not None:
            good &= records.finite(rows.flat)
        if kept is not None:
            good &= np.isfinite(kept).all(axis=1)
        if not good.all():
            bad = [ids[k] for k in places[~good]]
            log.warning("updates of these clients are not finite, and count as lost: %.200s", bad)
        clients = positions[places][good]
        return cls(
            positions[np.isin(positions, clients)],
            clients,
            places[good],
            len(ids),
            None if rows is None else rows.taken(np.flatnonzero(good)),
            None if kept is None else kept[good],
            positions[places][~good],
        )

    @staticmethod
    def is_usable(update: Update, records: ClientRecords) -> bool:
        """Whether an update is finite, also in the type that it is remembered in."""
        try:
            layout = Layout.of("Selector", update)
            records.check(layout.size)
            row = layout.flat(update)[None]
        except AggregationError as error:
            raise SelectorError(str(error)) from error
        kept = records.shortened(row)
        return bool(records.finite(row)[0]) and (kept is None or bool(np.isfinite(kept).all()))

    @classmethod
    def none(cls) -> Answers:
        """Return the answers of nobody."""
        return cls(NOBODY, NOBODY, NOBODY, 0)

    def numbers(self, name: str, given: Numbers, ids: Sequence[object]) -> NDArray[np.float64]:
        """Return what these clients reported, in the order of ``clients``; NaN for nothing."""
        by_id = isinstance(given, Mapping)
        plain: Any = given
        if isinstance(given, Mapping):
            plain = [given.get(each, np.nan) for each in ids]
        try:
            found = np.asarray(plain)
            values = np.array([]) if found.dtype.kind == "c" else found.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            values = np.empty((0, 0))
        if values.shape != ((len(ids) if by_id else self.n_given),):
            raise SelectorError(
                f"Selector: losses and durations must be numbers by id, or one for each of the "
                f"{self.n_given} updates; got others for {name}."
            )
        return values if by_id else np.asarray(values[self.places])


def _at_once(
    updates: Any, places: NDArray[np.int64], records: ClientRecords
) -> tuple[Rows | None, NDArray[np.float32] | None]:
    """Read rows, or a list of updates, and order them."""
    is_list = isinstance(updates, Sized) and len(getattr(updates, "shape", (0,))) == 1
    if len(places) == 0 and is_list and len(updates) == 0:
        return None, None
    rows = Rows.of("Selector", updates, len(places)).taken(places)
    records.check(rows.layout.size)
    return rows, records.shortened(rows.flat)


def _one_by_one(
    updates: Mapping[Any, Update], named: list[Any], records: ClientRecords, *, whole: bool
) -> tuple[Rows | None, NDArray[np.float32] | None]:
    """Read updates by id: whole, or what the memory keeps of each."""
    if not named or not (whole or records.wants_updates):
        return None, None
    layout: Layout | None = None
    flat, kept, counters = [], [], []
    for each in named:
        update = updates[each]
        own = Layout.of("Selector", update)
        if layout is None:
            layout = own
            records.check(layout.size)
        if not layout.matches(own):
            raise SelectorError(
                f"Selector: updates must have the arrays of the others, {layout.shapes}; client "
                f"{each!r} sent {own.shapes}. Drop its update: it then counts as lost."
            )
        vector = layout.flat(update)
        short = records.shortened(vector[None])
        if short is not None:
            kept.append(short[0])
        if whole:
            flat.append(vector)
            counters.append(layout.counters(update))
    assert layout is not None  # for mypy: somebody is named
    rows = Rows(layout, joined(flat, stacked=True), counters) if whole else None
    return rows, np.stack(kept) if kept else None


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
        if not isinstance(updates, (Mapping, Sequence)) and not hasattr(updates, "shape"):
            raise SelectorError(
                f"Selector: updates must be by id, or rows in the order of ids; got "
                f"{type(updates).__name__}. Pass an empty mapping where nobody answered."
            )
        if not isinstance(updates, Mapping):
            if ids is not None:
                self.roster.positions(ids)  # refuses what is no list of ids
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
        given = {} if failed is None else failed
        if not isinstance(given, Mapping):
            raise SelectorError(
                f"Selector: failed must be reasons by id; got {brief(failed)}. Leave it out where "
                f"there are none."
            )
        names = self.roster.names(self.positions(given))
        return dict(zip(names, map(str, given.values()), strict=True))

    def failures(self, answers: Answers, reasons: Mapping[Id, str]) -> dict[Id, str]:
        """Return who failed and why, by id."""
        lost = sorted(self.draws.asked - set(answers.clients.tolist()))
        missing = self.roster.names(np.array(lost, dtype=np.int64))
        wrong = self.roster.names(answers.unusable)
        found = {**dict.fromkeys(missing, "no answer"), **dict.fromkeys(wrong, "not finite")}
        return {**found, **reasons}

    def recall(self, ids: Iterable[object]) -> tuple[Array, Array] | None:
        """Return the estimator's h, one row per id, and H = sum p h; None where there is none."""
        variates = self.records.variates
        if variates is None or self.design is None:
            return None
        return variates.of(self.roster.positions(ids)), variates.expected()

    def step(self, answers: Answers, model: Update | None) -> Update:
        """Aggregate by the settled weights."""
        settled, rows, variates = self.settled(answers.arrived), answers.rows, self.records.variates
        # Where nobody answered, the difference estimator's H would repeat the last updates.
        is_idle = self.design is None or bool(len(self.cohort) and not len(settled))
        if is_idle or (rows is None and variates is None):
            if model is not None:
                return aggregate(model, [], Cohort.empty())
            return 0.0 if rows is None else rows.zero()
        if rows is None:  # nobody was drawn: no update says of which kind they are
            assert variates is not None  # for mypy: else it is idle
            kind = variates.zeros if model is None else Layout.of("Selector", model).flat(model)
            rows = Rows.of("Selector", kind[None][:0], 0)
        chosen = rows.taken(np.searchsorted(answers.clients, settled.clients))
        return aggregate(model, chosen, settled, memory=self.records.estimator(chosen.flat))

    def for_average(
        self, updates: Mapping[Any, Update]
    ) -> Iterator[tuple[Id | None, float, Update]]:
        """Return (id, weight, update) for who divides by the sum of the weights."""
        if not isinstance(updates, Mapping):
            raise SelectorError(
                f"Selector: updates must be by id; got {type(updates).__name__}. Pass for example "
                f"{{'Nice': update}}."
            )
        positions = self.positions(updates)
        usable = [Answers.is_usable(update, self.records) for update in updates.values()]
        settled = self.settled(positions[np.array(usable, dtype=bool)])
        # Recalled now: what is remembered may change before the last pair is taken.
        return self._averaged(updates, settled, self.recall(settled.ids))

    def _averaged(
        self,
        updates: Mapping[Any, Update],
        settled: Cohort,
        recalled: tuple[Array, Array] | None,
    ) -> Iterator[tuple[Id | None, float, Update]]:
        total = 1.0 if settled.sums_to_one else 1.0 - settled.residual
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
