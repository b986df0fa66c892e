"""An open round: who was asked, who answered, and what happens to the weight of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Id, brief, checked_choice, checked_list, checked_whole
from fedcohort._updates import Array, Layout, Rows, Update, stretched
from fedcohort.cohort import Cohort, aggregate
from fedcohort.designs import Design, Recipe
from fedcohort.errors import SelectorError
from fedcohort.population import Population
from fedcohort.selector.records import Answers, ClientRecords
from fedcohort.selector.roster import Roster

log = getLogger("fedcohort")

OnFailure = Literal["keep", "redraw", "renormalise"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
LOST = "updates of these clients are not finite, and count as lost: %.200s"
#: Numbers by id, or in the order of ids.
Numbers = Mapping[Any, float] | ArrayLike
#: Updates by id, or rows in the order of ids.
Updates = Mapping[Any, Update] | Array | Sequence[Update]


@final
@dataclass(frozen=True, slots=True)
class FailureRule:
    """The rule for failures; the arguments are the selector's."""

    on_failure: OnFailure = "keep"
    tries: int = 10
    extra: int = 0
    max_draws: int | None = None

    def __post_init__(self) -> None:
        checked_choice("Selector", "on_failure", self.on_failure, ON_FAILURE, error=SelectorError)
        limits = {"tries": 0, "extra": 0} | ({} if self.max_draws is None else {"max_draws": 1})
        for name, least in limits.items():
            value = getattr(self, name)
            whole = checked_whole("Selector", name, value, least=least, error=SelectorError)
            object.__setattr__(self, name, whole)
        if self.extra and self.on_failure == "redraw":
            raise SelectorError(
                f"Selector: extra must be 0 with on_failure='redraw', which replaces lost draws; "
                f"got {self.extra}. Choose one of the two."
            )

    @property
    def needs_equal_draws(self) -> bool:
        """Whether one draw may take the place of another."""
        return self.on_failure == "redraw" or self.extra > 0

    def check(self, design: Design, recipe: Recipe) -> None:
        """Refuse a design that this rule cannot be used with."""
        if self.needs_equal_draws:
            feature = f"extra={self.extra}" if self.extra else "on_failure='redraw'"
            check_equal_draws(design, recipe, feature)
        if self.max_draws is None:
            return
        counts = design.max_count()
        client = int(np.argmax(counts))
        if counts[client] > self.max_draws:
            raise SelectorError(
                f"Selector: max_draws is {self.max_draws}, and {design.name} can draw client "
                f"{design.population.ids[client]!r} {counts[client]} times in a round. Use a "
                f"design that repeats less, such as size, or bound that client's size."
            )

    def settled(self, draws: Draws, answered: NDArray[np.int64], *, cohort_size: int) -> Cohort:
        """Return the cohort of the clients that answered, with their final weights.

        ``answered`` are positions in order of arrival; ``cohort_size`` is the recipe's.
        """
        drawn = draws.cohort
        if self.extra:
            return self._first(drawn, answered, cohort_size)
        if draws.counts is not None:
            clients = np.sort(answered)
            clients = clients[draws.counts[clients] > 0]
            counts = draws.counts[clients]
            if counts.sum() == draws.cohort_size:
                return Cohort.of_shares(clients, counts, draws.cohort_size)
            return Cohort.of_weights(clients, counts, counts / draws.cohort_size)
        has_answered = np.isin(drawn.clients, answered)
        if has_answered.all():
            return drawn
        weights = drawn.weights[has_answered]
        kept = (drawn.clients[has_answered], drawn.counts[has_answered])
        if self.on_failure == "renormalise" and (total := float(weights.sum())):
            return Cohort(*kept, weights / total, residual=0.0)
        return Cohort.of_weights(*kept, weights)

    def _first(self, drawn: Cohort, answered: NDArray[np.int64], cohort_size: int) -> Cohort:
        """Take the first answers until they cover ``cohort_size`` draws."""
        counts = drawn.counts[np.searchsorted(drawn.clients, answered)]
        is_first = np.cumsum(counts) - counts < cohort_size
        order = np.argsort(answered[is_first])
        clients, counts = answered[is_first][order], counts[is_first][order]
        shares = int(counts.sum())
        if not shares:
            return Cohort.empty()
        if self.on_failure == "keep" and shares < cohort_size:
            return Cohort.of_weights(clients, counts, counts / cohort_size)
        return Cohort.of_shares(clients, counts, shares)


def check_equal_draws(design: Design, recipe: Recipe, feature: str) -> None:
    """Refuse designs whose draws have different weights: one draw cannot replace another."""
    weights = design.weight_per_draw()[design.population.sizes > 0]
    if not np.array_equal(weights, np.full(len(weights), 1 / design.cohort_size)):
        raise SelectorError(
            f"Selector: {feature} needs a design with equal weight per draw; "
            f"{type(recipe).__name__}'s draws differ. Use SizeClustered or Multinomial."
        )


@final
@dataclass(slots=True, eq=False)
class Draws:
    r"""The draws of a round, and the draws that replace lost ones.

    A lost draw is replaced by a draw from p over all available clients, until one answers. Let R
    be the set of clients that can be reached. A replacement is client i with chance
    :math:`p_i / p(R)`, and so is a draw that was not lost. So :math:`E[w_i | R] = p_i / p(R)`
    for every design with :math:`E[c_i] = m p_i`.
    """

    #: As drawn.
    cohort: Cohort
    #: The available clients.
    population: Population
    #: The design's number of draws.
    cohort_size: int
    #: Draws the replacements, as often as there are ``tries`` left.
    rng: np.random.Generator
    tries: int
    #: Draws by position, replacements included; None before a draw was lost.
    counts: NDArray[np.int64] | None = None
    #: How many draws still need a replacement.
    lost: int = 0
    #: The clients that were asked so far, and those that failed.
    asked: set[int] = field(init=False)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.asked = set(self.cohort.clients.tolist())

    def replace(self, lost: Iterable[int]) -> list[int]:
        """Replace the draws of these clients; return the clients that must now be asked."""
        new_failures = set(lost) - self.failed
        if self.counts is None:
            if not new_failures:
                return []
            self.counts = np.zeros(self.population.n_clients, dtype=np.int64)
            self.counts[self.cohort.clients] = self.cohort.counts
        for client in new_failures:
            self.failed.add(client)
            self.lost += int(self.counts[client])
            self.counts[client] = 0
        ends = np.cumsum(self.population.sizes)
        new: list[int] = []
        while self.lost and self.tries and not new:
            self.tries -= 1
            units = self.rng.integers(self.population.total, size=self.lost)
            for client in np.searchsorted(ends, units, side="right").tolist():
                if client in self.failed:
                    continue
                self.counts[client] += 1
                self.lost -= 1
                if client not in self.asked:
                    self.asked.add(client)
                    new.append(client)
        return new


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round between draw and aggregate; it changes nothing that is remembered of the clients.

    ``design`` is None if no client was available; ``cohort_size`` is the recipe's.
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

    def redrawn(self, lost: Iterable[object]) -> list[Id]:
        """Return the clients to ask in place of these; none under another rule."""
        positions = self.positions(lost)
        if self.rule.on_failure != "redraw":
            return []
        return self.roster.names(self.draws.replace(positions.tolist()))

    def settled(self, answered: NDArray[np.int64]) -> Cohort:
        """Return the cohort of the clients that answered, with their final weights."""
        size = min(self.cohort_size, self.draws.cohort_size)
        cohort = self.rule.settled(self.draws, answered, cohort_size=size)
        return cohort.named(self.roster.names(cohort.clients), self.cohort.round_)

    def answers(self, updates: Updates, ids: Iterable[object] | None, *, whole: bool) -> Answers:
        """Read updates, by id or as rows in the order of ids; ``whole``: all of each is needed."""
        if not isinstance(updates, (Mapping, Sequence)) and not hasattr(updates, "shape"):
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
        answers = self.records.read(updates, named, self.positions(named), whole=whole)
        if len(bad := answers.unusable):
            log.warning(LOST, self.roster.names(bad))
        return answers

    def reported(
        self, answers: Answers, losses: Numbers | None, durations: Numbers | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return what ``answers.clients`` reported, by the name of the past signal."""
        heard = {"past_round": np.full(len(answers.clients), float(self.cohort.round_))}
        for signal, given in (("past_loss", losses), ("past_duration", durations)):
            if isinstance(given, Mapping):
                self.positions(given)
            if given is not None:
                every = self.roster.numbers(signal, given, answers.given)
                heard[signal] = every[answers.clients]
        return heard

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
        missing = self.roster.names(sorted(self.draws.asked - set(answers.clients.tolist())))
        wrong = self.roster.names(answers.unusable)
        found = {**dict.fromkeys(missing, "no answer"), **dict.fromkeys(wrong, "not finite")}
        return {**found, **reasons}

    def recall(self, ids: Iterable[object]) -> tuple[Array, Array] | None:
        """Return the estimator's h, one row per id, and H = sum p h; None without one."""
        variates = self.records.variates
        if variates is None or self.design is None:
            return None
        return variates.of(self.roster.positions(ids)), variates.expected()

    def step(self, answers: Answers, model: Update | None) -> Update:
        """Aggregate with the settled weights."""
        settled, rows, variates = self.settled(answers.arrived), answers.rows, self.records.variates
        # If no client answered, the difference estimator's H would repeat the last updates.
        is_idle = self.design is None or bool(len(self.cohort) and not len(settled))
        if is_idle or (rows is None and variates is None):
            if model is not None:
                return aggregate(model, [], Cohort.empty())
            return 0.0 if rows is None else rows.zero()
        if rows is None:  # empty cohort: the model or the memory gives the type of the step
            assert variates is not None  # for mypy: else it is idle
            kind = variates.zeros if model is None else Layout.of("Selector", model).flat(model)
            rows = Rows.of("Selector", kind[None][:0], 0)
        chosen = rows.taken(np.searchsorted(answers.clients, settled.clients))
        return aggregate(model, chosen, settled, memory=self.records.estimator(chosen.flat))

    def for_average(
        self, updates: Mapping[Any, Update]
    ) -> Iterator[tuple[Id | None, float, Update]]:
        """Return (id, weight, update) for a framework that divides by the sum of the weights."""
        if not isinstance(updates, Mapping):
            raise SelectorError(
                f"Selector: updates must be by id; got {type(updates).__name__}. Pass for example "
                f"{{'Nice': update}}."
            )
        positions = self.positions(updates)
        # One at a time: all updates together may not fit into memory.
        read = (
            self.records.read(updates, [each], positions[[k]], whole=True)
            for k, each in enumerate(updates)
        )
        settled = self.settled(positions[[len(each.clients) > 0 for each in read]])
        # Recall now: the memory may change before the caller takes the last pair.
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
        for k, each in enumerate(settled.ids):
            update, weight = updates[each], float(settled.weights[k])
            if weight == 0.0:
                continue
            if total != 1.0 or recalled is not None:
                around = None if recalled is None else (recalled[0][k], recalled[1])
                update = stretched("Selector", update, total, around)
            yield each, weight, update
