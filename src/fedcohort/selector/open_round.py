"""An open round: who was drawn, lost draws and their replacements, answers, final weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Id, brief, checked_list
from fedcohort._updates import Array, Rows, Update, like, row_norms
from fedcohort.cohort import NOBODY, Cohort, aggregate
from fedcohort.designs import Design
from fedcohort.designs.recipe import ObservedRound
from fedcohort.errors import SelectorError
from fedcohort.population import Population
from fedcohort.selector.answers import Answers
from fedcohort.selector.records import ClientRecords
from fedcohort.selector.roster import Roster
from fedcohort.selector.settings import SelectorSettings

log = getLogger("fedcohort")

LOST = "updates of these clients are not finite, or too large, and count as lost: %.200s"
#: Why a client failed whose update came and cannot be used.
UNUSABLE = "not finite, or too large"
#: In place of the client of a draw that is lost.
NOBODY_LEFT = -1
#: Numbers by id, or in the order of ids.
Numbers = Mapping[Any, float] | ArrayLike
#: Updates by id, or rows in the order of ids.
Updates = Mapping[Any, Update] | Array | Sequence[Update]


@final
@dataclass(slots=True, eq=False)
class Draws:
    r"""The draws of a round, and the draws that replace lost ones.

    A lost draw is replaced by a draw from p over the available clients that are not known to have
    failed, until one answers. Let R be the set of clients that can be reached. A replacement that
    is answered is client i with chance :math:`p_i / p(R)`, and so is a draw that was not lost. So
    :math:`E[w_i | R] = p_i / p(R)` for every design with :math:`E[c_i] = m p_i`, if there are as
    many ``tries`` as available clients that cannot be reached; with fewer, all are smaller by one
    factor.

    Each draw has ``tries`` of its own, so that it does not matter whether failures are reported
    one by one or together. For the same reason a replacement that fell on a client that had been
    asked before, and whose failure was not known yet, does not count.
    """

    #: As drawn.
    cohort: Cohort
    #: The available clients.
    population: Population
    #: The design's number of draws.
    cohort_size: int
    #: Draws the replacements.
    rng: np.random.Generator
    #: How often each draw can be replaced.
    tries: int
    #: The client of every draw, ``NOBODY_LEFT`` for a lost one without replacement; and how often
    #: the draw was replaced. Both are empty before the first failure.
    drawn: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    depths: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    #: The clients that were asked so far: the fewest replacements of a draw that fell on each.
    asked: dict[int, int] = field(init=False)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.asked = dict.fromkeys(self.cohort.clients.tolist(), 0)

    def redraw(self, lost: Iterable[int]) -> list[int]:
        """Replace the draws of these clients; return the clients that must now be asked."""
        new_failures = set(lost) - self.failed
        if not new_failures:
            return []
        if not self.failed:
            self.drawn = np.repeat(self.cohort.clients, self.cohort.counts)
            self.depths = np.zeros_like(self.drawn)
        self.failed |= new_failures
        places = np.flatnonzero(np.isin(self.drawn, list(new_failures)))
        # Draws that were replaced more often than the client's first one would have fallen on
        # others if its failure had been known: they are drawn again, at no cost.
        first = np.array([self.asked[each] for each in self.drawn[places].tolist()], dtype=np.int64)
        depths = self.depths[places] + (self.depths[places] <= first)
        sizes = self.population.sizes.copy()
        sizes[list(self.failed)] = 0
        ends = np.cumsum(sizes)
        self.drawn[places] = NOBODY_LEFT
        can = (depths <= self.tries) & (ends[-1] > 0)
        places, depths = places[can], depths[can]
        if not len(places):
            return []
        units = self.rng.integers(ends[-1], size=len(places))
        self.drawn[places] = np.searchsorted(ends, units, side="right")
        self.depths[places] = depths
        new = []
        for client, depth in zip(self.drawn[places].tolist(), depths.tolist(), strict=True):
            if client not in self.asked:
                new.append(client)
            self.asked[client] = min(depth, self.asked.get(client, depth))
        return new

    def settle(
        self, settings: SelectorSettings, answered: NDArray[np.int64], *, cohort_size: int
    ) -> Cohort:
        """Return the cohort of the clients that answered, with their final weights.

        ``answered`` are positions in order of arrival; ``cohort_size`` is the recipe's.
        """
        drawn = self.cohort
        if settings.extra:
            keeps = settings.on_failure == "keep"
            return self._first(answered, cohort_size, keeps=keeps)
        if self.failed:
            clients, counts = np.unique(self.drawn, return_counts=True)
            has_answered = np.isin(clients, answered)
            return _of_draws(clients[has_answered], counts[has_answered], self.cohort_size)
        has_answered = np.isin(drawn.clients, answered)
        if has_answered.all():
            return drawn
        weights = drawn.weights[has_answered]
        kept = (drawn.clients[has_answered], drawn.counts[has_answered])
        if settings.on_failure == "renormalise" and (total := float(weights.sum())):
            return Cohort.of_checked(*kept, weights / total, residual=0.0)
        return Cohort.of_checked(*kept, weights)

    def _first(self, answered: NDArray[np.int64], cohort_size: int, *, keeps: bool) -> Cohort:
        """Take the first answers until they cover ``cohort_size`` draws.

        With fewer, ``keeps`` leaves the weight that is missing on the model.
        """
        drawn = self.cohort
        counts = drawn.counts[np.searchsorted(drawn.clients, answered)]
        is_first = np.cumsum(counts) - counts < cohort_size
        order = np.argsort(answered[is_first])
        clients, counts = answered[is_first][order], counts[is_first][order]
        shares = int(counts.sum())
        if not shares:
            return Cohort.empty()
        return _of_draws(clients, counts, max(shares, cohort_size) if keeps else shares)


def _of_draws(clients: NDArray[np.int64], counts: NDArray[np.int64], size: int) -> Cohort:
    """Weigh every draw ``1 / size``; the model keeps the rest, exactly 0 if all are there."""
    residual = 0.0 if counts.sum() == size else None
    return Cohort.of_checked(clients, counts, counts / size, residual)


@final
@dataclass(slots=True, eq=False)
class OpenRound:
    """A round between draw and aggregate; it changes nothing that is remembered of the clients.

    Attributes
    ----------
    design
        The law of the draw; None if no client could be drawn.
    target
        The clients whose mean update the round estimates, the others with size 0; None for none.
    present
        The members that were there, shape (n_clients,).
    boosts
        What the design's weights are multiplied by, shape (n_clients,); None: by 1.
    max_norm
        The largest norm of an update; None for no bound.
    """

    roster: Roster
    records: ClientRecords
    settings: SelectorSettings
    design: Design | None
    target: Population | None
    present: NDArray[np.bool_]
    boosts: NDArray[np.float64] | None
    draws: Draws
    max_norm: float | None
    #: The last answers that were settled, and their cohort; None after a redraw.
    last: tuple[Answers, Cohort] | None = field(init=False, default=None)

    @property
    def cohort(self) -> Cohort:
        """The cohort as drawn."""
        return self.draws.cohort

    @property
    def round_(self) -> int:
        """The number of the round."""
        return self.cohort.round_

    def positions(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Return the positions of clients; refuse clients that were not asked, and any twice."""
        positions = self.roster.positions(ids)
        if len(np.unique(positions)) < len(positions):
            places = positions.tolist()
            twice = next(k for n, k in enumerate(places) if k in places[:n])
            raise SelectorError(
                f"Selector: client {self.roster.ids[twice]!r} is listed twice. Pass each id once."
            )
        for client in positions.tolist():
            if client not in self.draws.asked:
                raise SelectorError(
                    f"Selector: client {self.roster.ids[client]!r} was not drawn in round "
                    f"{self.cohort.round_}. Pass answers of the cohort alone."
                )
        return positions

    def redraw(self, lost: Iterable[object]) -> list[Id]:
        """Return the clients to ask in place of these; none under another rule."""
        positions = self.positions(lost)
        if self.settings.on_failure != "redraw":
            return []
        self.last = None
        return self.roster.names(self.draws.redraw(positions.tolist()))

    def settle(self, answered: NDArray[np.int64]) -> Cohort:
        """Return the cohort of the clients that answered, with their final weights."""
        size = min(self.settings.recipe.cohort_size, self.draws.cohort_size)
        cohort = self.draws.settle(self.settings, answered, cohort_size=size)
        if cohort is self.cohort:
            return cohort
        return cohort.named(self.roster.names(cohort.clients), self.cohort.round_)

    def settle_answers(self, answers: Answers) -> Cohort:
        """Return the settled cohort of answers; it is computed once."""
        if self.last is None or self.last[0] is not answers:
            self.last = (answers, self.settle(answers.arrived))
        return self.last[1]

    def receive(
        self,
        updates: Updates | Answers,
        ids: Iterable[object] | None,
        *,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
        norms: Numbers | None = None,
        whole: bool = True,
    ) -> Answers:
        """Read updates, by id or as rows in the order of ids; ``whole``: keep whole updates."""
        if isinstance(updates, Answers):
            return self._checked(updates, ids, losses, durations, norms)
        if not isinstance(updates, (Mapping, Sequence, Rows)) and not hasattr(updates, "shape"):
            raise SelectorError(
                f"Selector: updates must be by id, or rows in the order of ids; got "
                f"{type(updates).__name__}. Pass an empty mapping if no client answered."
            )
        by_id = isinstance(updates, Mapping)
        if by_id and ids is not None:
            raise SelectorError(
                "Selector: ids name the rows of updates; got updates by id too. Leave ids out."
            )
        named: Sequence[Any] = list(updates) if by_id else self.cohort.ids
        if ids is not None:
            named = checked_list(ids)
        positions = self.positions(named)
        known = None if norms is None else self.roster.numbers("norms", norms, positions)[positions]
        reader = self.records.reader(whole=whole, max_norm=self.max_norm)
        answers = reader.read(self.round_, updates, named, positions, known)
        if len(bad := answers.unusable):
            log.warning(LOST, self.roster.names(bad))
        return replace(answers, reported=self._reported(answers, losses, durations))

    def _checked(self, answers: Answers, *arguments: object) -> Answers:
        """Refuse answers of another round, and arguments that :meth:`receive` takes."""
        if answers.round_ != self.round_:
            raise SelectorError(
                f"Selector: answers must be of the open round, {self.round_}; got those of round "
                f"{answers.round_}. Call receive in every round."
            )
        if any(each is not None for each in arguments):
            raise SelectorError(
                "Selector: ids, losses, durations and norms belong to receive; got them with its "
                "answers. Pass them to receive."
            )
        return answers

    def _reported(
        self, answers: Answers, losses: Numbers | None, durations: Numbers | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return what ``answers.clients`` reported, by the name of the past signal."""
        reported = {"past_round": np.full(len(answers), float(self.round_))}
        for signal, given in (("past_loss", losses), ("past_duration", durations)):
            if isinstance(given, Mapping):
                self.positions(given)
            if given is not None:
                every = self.roster.numbers(signal, given, answers.given)
                reported[signal] = every[answers.clients]
        return reported

    def reasons(self, failed: Mapping[Any, str] | None) -> dict[Id, str]:
        """Return why clients failed, by id; refuse clients that were not asked."""
        given = {} if failed is None else failed
        if not isinstance(given, Mapping):
            raise SelectorError(
                f"Selector: failed must be reasons by id; got {brief(failed)}. Leave it out if "
                f"there are none."
            )
        names = self.roster.names(self.positions(given))
        return dict(zip(names, map(str, given.values()), strict=True))

    def failures(self, answers: Answers, reasons: Mapping[Id, str]) -> dict[Id, str]:
        """Return who failed and why, by id."""
        missing = self.roster.names(sorted(self.draws.asked.keys() - set(answers.clients.tolist())))
        wrong = self.roster.names(answers.unusable)
        found = {**dict.fromkeys(missing, "no answer"), **dict.fromkeys(wrong, UNUSABLE)}
        return {**found, **reasons}

    @property
    def largest_weight(self) -> float:
        """A bound on the weight of a client in this round."""
        if self.design is None:
            return 0.0
        if self.boosts is None:
            most = self.design.largest_weight()
            # Where others take over what is lost, a client can be the only one.
            is_kept = self.settings.on_failure == "keep" and not self.settings.extra
            return most if is_kept else max(most, 1.0)
        weights = self.design.max_count() * self.design.weight_per_draw()
        return float((weights * self.boosts).max())

    def observed_round(self, answers: Answers, settled: Cohort) -> ObservedRound:
        """Return the round as the recipe observes it."""
        assert self.design is not None  # for mypy: there are answers
        assert answers.norms is not None  # for mypy: the recipe needs them
        places, outputs = np.searchsorted(answers.clients, settled.clients), answers.outputs
        norms = answers.norms[places]
        if answers.rows is not None and len(places):
            rows = answers.rows.taken(places).flat
            if (estimator := self.records.estimator_for(rows)) is not None:
                norms = row_norms(rows - estimator.of(settled.clients))
        return ObservedRound(
            self.round_,
            self.design,
            self.draws.population,
            self.cohort,
            settled,
            norms,
            None if outputs is None else outputs[places],
        )

    def recall(self, ids: Iterable[object]) -> tuple[Array, Array] | None:
        """Return the estimator's h, one row per id, and H = sum p h; None without one."""
        estimator = self.records.estimator
        if estimator is None or self.target is None:
            return None
        return estimator.of(self.roster.positions(ids)), estimator.expected()

    def is_idle(self, settled: Cohort) -> bool:
        """Whether there is no aggregate: there is no target, or drawn clients did not answer.

        If no client answered, the difference estimator's H would repeat the last updates.
        """
        is_lost = bool(len(self.cohort) and not len(settled))
        return self.target is None or (is_lost and not self.records.moves_alone)

    def step(self, answers: Answers, settled: Cohort, model: Update | None) -> Update:
        """Aggregate with the settled weights."""
        rows = answers.rows
        estimator = self.records.estimator
        if self.is_idle(settled) or (rows is None and estimator is None):
            if model is not None:
                return aggregate(model, [], Cohort.empty())
            return 0.0 if rows is None else rows.zero()
        if rows is None:  # an empty cohort: its step is H, in the arrays of earlier updates
            layout = self.records.layout
            assert estimator is not None  # for mypy: else it is idle
            assert layout is not None  # for mypy: recorded with the first update
            rows = Rows(layout, estimator.zeros[None][:0], [])
        chosen = rows.taken(np.searchsorted(answers.clients, settled.clients))
        return aggregate(model, chosen, settled, memory=self.records.estimator_for(chosen.flat))

    def for_average(self, answers: Answers) -> Iterator[tuple[Id | None, float, Update]]:
        """Return (id, weight, update) for a framework that divides by the sum of the weights."""
        settled = self.settle_answers(answers)
        if answers.rows is not None:
            self.records.estimator_for(answers.rows.flat)
        # Recall now: the memory may change before the caller takes the last one.
        return self._averaged(answers, settled, self.recall(settled.ids))

    def _averaged(
        self, answers: Answers, settled: Cohort, recalled: tuple[Array, Array] | None
    ) -> Iterator[tuple[Id | None, float, Update]]:
        total = 1.0 if settled.sums_to_one else 1.0 - settled.residual
        is_empty = not settled.weights.any() and (len(settled) > 0 or not self.is_idle(settled))
        if is_empty and recalled is not None and self.records.layout is not None:
            yield None, 1.0, self.records.layout.unflat(recalled[1])
        layout, source = answers.layout, answers.source
        is_same = total == 1.0 and recalled is None and not len(answers.scaled)
        as_sent = is_same and layout is not None and source is not None
        rows = None if as_sent else self._rows(answers, settled)
        if rows is not None:
            # Everyone gets the aggregate's counters: any average of them is rounded once.
            counters = rows.counted(settled.weights)
        for k, (each, weight) in enumerate(zip(settled.ids, settled.weights.tolist(), strict=True)):
            if weight == 0.0:
                continue
            if rows is None:
                assert layout is not None  # for mypy: updates were read
                assert source is not None  # for mypy: they came by id
                yield each, weight, layout.ordered(source[each])
                continue
            own = rows.flat[k]
            if recalled is None:
                stretched = total * own
            else:
                h, mean = (like(part, own) for part in (recalled[0][k], recalled[1]))
                stretched = total * (own - h) + mean
            yield each, weight, rows.layout.unflat(stretched, counters)

    def _rows(self, answers: Answers, settled: Cohort) -> Rows | None:
        """Return the updates of the settled clients; read them again if only part was kept."""
        places = np.searchsorted(answers.clients, settled.clients)
        if answers.rows is not None:
            return answers.rows.taken(places)
        if answers.source is None or not len(settled):
            return None
        rows = Rows.of("Selector", [answers.source[each] for each in settled.ids], len(settled))
        rows = replace(rows, layout=answers.layout or self.records.matched(rows.layout))
        return rows if answers.factors is None else rows.scaled(answers.factors[places])
