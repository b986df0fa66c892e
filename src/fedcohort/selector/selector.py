"""The server loop: ask, draw, settle who did not answer, aggregate, remember."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, Self, Unpack, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._archive import read_archive, with_prefix, without_prefix, write_archive
from fedcohort._arguments import (
    Id,
    brief,
    checked_flag,
    checked_ids,
    checked_list,
    checked_path,
    checked_whole,
    listed,
    named_values,
)
from fedcohort._display import counted, html_table, record_repr
from fedcohort._updates import Array, Update
from fedcohort.cohort import NOBODY, Cohort
from fedcohort.designs import Design, Recipe
from fedcohort.designs.base import Relation
from fedcohort.designs.recipe import check_memory
from fedcohort.designs.signals import Request
from fedcohort.errors import MemoryOfUpdatesError, SelectorError
from fedcohort.memory import Estimator, UpdateMemory
from fedcohort.memory.base import LATEST
from fedcohort.memory.features import rows_by_id
from fedcohort.population import Population
from fedcohort.selector.answers import Answers
from fedcohort.selector.attendance import Attendance
from fedcohort.selector.files import KIND, arguments_of, head, refusing_states, round_of
from fedcohort.selector.max_norm import NormBound
from fedcohort.selector.open_round import Draws, Numbers, OpenRound, Updates
from fedcohort.selector.planner import Planner
from fedcohort.selector.records import ClientRecords
from fedcohort.selector.roster import Clients, Groups, Roster, values_and_ids
from fedcohort.selector.selections import SelectionLog
from fedcohort.selector.settings import SelectorKeywords, SelectorSettings, unpacks
from fedcohort.streams import Stream, checked_seed, stream

log = getLogger("fedcohort")

SCALED = "round %d: scaled down to the norm %g: %s, of %.200s"
#: Features of clients: rows in the order of the clients, or by id.
Features = ArrayLike | Sequence[Any] | Mapping[Any, Any]
#: Chances to be there, by id or in the order of the clients.
Chances = ArrayLike | Mapping[Any, float]


@unpacks(SelectorSettings)
@final
class Selector:
    """The server's side of one federation: who trains in each round, and with what weight.

    It holds everything that a server keeps between rounds. One seed gives one sequence of cohorts.

    Parameters
    ----------
    recipe
        How clients are drawn.
    clients
        The members: sizes as a list or an array (ids 0 ... n - 1), sizes by id (a mapping, or a
        pandas Series with names), or a :class:`Population`. Ids are strings or integers. Pass an
        empty mapping if they join later.
    seed
        An integer, a generator that is asked for one, or None for a random one.
    importance, groups
        Shares that replace the sizes and sum to 1, and labels for recipes that draw by group: in
        the order of ``clients`` or by id. Clients without a label form the group ``"unlabelled"``.
    chances
        The chance of each client to be available in a round, above 0, for ``presence="known"``; in
        the order of ``clients`` or by id. Clients without one are not drawn.
    {settings}
    log
        A file that gets a JSON line for every round; True only counts draws.

    Attributes
    ----------
    recipe, seed, round_
        As given; the round that is open or comes next, from 0.
    selections
        How often clients were drawn, and were expected to be; None without ``log``.

    Examples
    --------
    >>> from fedcohort import SizeClustered
    >>> selector = Selector(SizeClustered(2), {"Nice": 5, "Lyon": 3, "Brest": 2}, seed=1)
    >>> cohort = selector.draw()
    >>> cohort.ids, cohort.weights.tolist()
    (['Lyon', 'Nice'], [0.5, 0.5])
    >>> selector.aggregate({"Nice": np.array([1.0, 0.0]), "Lyon": np.array([0.0, 4.0])}).tolist()
    [0.5, 2.0]
    >>> selector.round_
    1
    """

    def __init__(
        self,
        recipe: Recipe,
        clients: Clients,
        *,
        seed: int | np.random.Generator | None = None,
        importance: ArrayLike | Mapping[Any, float] | None = None,
        groups: Groups | None = None,
        chances: Chances | None = None,
        log: str | Path | Literal[True] | None = None,
        **settings: Unpack[SelectorKeywords],
    ) -> None:
        clients = cast("Clients", named_values(clients))
        self._settings = SelectorSettings(recipe, **settings)
        self._check_chances(chances)
        self.recipe, self.seed = recipe, checked_seed("Selector", seed, SelectorError)
        self.round_ = 0
        self._roster = Roster(clients, groups, importance, chances)
        self._attendance = Attendance(self._settings)
        self._records = ClientRecords(self._settings, self.seed)
        self._planner = Planner(self._settings, self.seed, self._records)
        self._bound = NormBound(self._settings.max_norm)
        self._open: OpenRound | None = None
        self._last_design: Design | None = None
        self._asked_of: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
        self.selections: SelectionLog | None = None
        self._move(self._roster.set(clients, check=self._planner.try_first_design))
        estimator = self._settings.estimator
        if not isinstance(estimator, str) and estimator.source == "classes":
            raise SelectorError(
                "Selector: only the simulator knows the classes of clients' samples; got "
                "features='classes'. Pass the shares of classes by id."
            )
        if not isinstance(estimator, str) and estimator.data is not None:
            self._know(estimator.data, clients)
        if log is not None:
            path = None if log is True else checked_path("Selector", "log", log)
            self.selections = SelectionLog(self._roster, path, recipe, self._settings.presence)

    def __repr__(self) -> str:
        recipe, n = record_repr(self.recipe), counted(int(self._roster.is_member.sum()), "client")
        return f"Selector({recipe}, {n}, seed={self.seed}, round_={self.round_})"

    def _repr_html_(self) -> str:
        rows = [
            ("recipe", record_repr(self.recipe)),
            ("clients", int(self._roster.is_member.sum())),
            ("estimator", record_repr(self._settings.predictor or "plain")),
            ("on failure", self._settings.on_failure),
            ("seed", self.seed),
            ("round", f"{self.round_}, {'not drawn yet' if self._open is None else 'drawn'}"),
        ]
        return html_table("Selector", (), rows)

    # Before the draw

    def ask(self, available: object = None, *, eligible: object = None) -> Request | None:
        """Return the signal to collect before the draw, and its clients; None for most recipes.

        ``available`` and ``eligible`` are those of :meth:`draw`, which then uses them by default.
        """
        self._refuse_open("clients can be asked")
        present, allowed = self._asked_of = self._who(available, eligible)
        population = self._roster.available(self._roster.both(present, allowed))
        request = None if population is None else self._planner.request(population, self.round_)
        return request and replace(request, ids=self._roster.names(request.clients))

    def draw(
        self,
        available: object = None,
        signals: Mapping[str, Any] | None = None,
        *,
        eligible: object = None,
    ) -> Cohort:
        """Open a round and draw its cohort; it is empty if no client with samples can be drawn.

        Parameters
        ----------
        available
            Who is there in this round, whether or not it may take part: ids, or a mask over
            ``population``; None for everyone.
        signals
            What clients answered, by the signal's name: numbers by id, or one per client of
            ``population``, NaN for none. Only answers of clients that were asked count.
        eligible
            Who may take part in this round, whether or not it is there, in the same form; None for
            everyone. The settings ``max_participations``, ``min_separation`` and ``rest`` leave
            out more.
        """
        self._refuse_open("another can be drawn")
        self._catch_up()
        present, allowed = self._who(available, eligible)
        population = self._roster.available(self._roster.both(present, allowed))
        target, boosts = population, None
        if self._records.moves_alone:
            target = self._roster.available(self._roster.is_member)
        elif self._settings.corrects_presence:
            target = self._roster.available(allowed)
            boosts = self._boosts(population, target)
        if population is None:
            log.info("no client with samples can be drawn: the round is empty")
            design, draws = None, self._draws(self._roster.population, None, None)
        else:
            design = self._design(population, signals)
            draws = self._draws(population, design, boosts)
        if target is not None:
            self._records.settle(target)
        parts = (self._roster, self._records, self._settings)
        self._open = OpenRound(*parts, design, target, present, boosts, draws, self._bound.now)
        self._last_design, self._asked_of = design, None
        return draws.cohort

    def _who(
        self, available: object, eligible: object
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which members are there, and which may take part, shape (n_clients,) each."""
        members = self._roster.is_member
        present, allowed = self._asked_of or (members, None)
        if available is not None:
            present = self._roster.presence(available)
        if eligible is not None or allowed is None:
            rules = self._attendance.allowed(members, self.round_)
            allowed = self._roster.both(self._roster.presence(eligible, "eligible"), rules)
            if (chances := self._roster.chance_of_each()) is not None:
                allowed = allowed & ~np.isnan(chances)
        return present, allowed

    def _boosts(
        self, population: Population | None, target: Population | None
    ) -> NDArray[np.float64] | None:
        """Return what weights over the available are multiplied by, shape (n_clients,).

        A design over the available A gives client i the mean weight p_i / p(A). Over all eligible
        clients E it must be p_i / p(E) on average over who comes, so that one that comes with
        chance q gets p_i / (p(E) q).
        """
        if population is None or target is None:
            return None
        boosts, there = np.ones(population.n_clients), np.flatnonzero(population.sizes)
        boosts[there] = self._attendance.boosts(there, self._roster.chance_of_each())
        return boosts * (population.total / target.total)

    def _design(self, population: Population, signals: Mapping[str, Any] | None) -> Design:
        """Return the law of this round over the available clients."""
        is_full, given = population is self._roster.population, self._roster.signals(signals)
        return self._planner.design(population, given, self.round_, is_full=is_full)

    def _draws(
        self, population: Population, design: Design | None, boosts: NDArray[np.float64] | None
    ) -> Draws:
        """Draw from the law; without one, return an empty cohort."""
        seed, round_ = self.seed, self.round_
        if design is None:
            cohort, size = Cohort.empty(), 0
        else:
            cohort = design.draw(stream(seed, round_=round_, use=Stream.COHORT))
            size = design.cohort_size
            if boosts is not None and (boosts != 1).any():
                weights = cohort.weights * boosts[cohort.clients]
                cohort = Cohort.of_checked(cohort.clients, cohort.counts, weights)
            cohort = self._records.weighed(cohort, self._roster.population)
        named = cohort.named(self._roster.names(cohort.clients), round_)
        rng = stream(seed, round_=round_, use=Stream.REDRAW)
        return Draws(named, population, size, rng, self._settings.tries)

    @property
    def cohort(self) -> Cohort | None:
        """The open round's cohort; None between rounds."""
        return None if self._open is None else self._open.draws.cohort

    @property
    def asked(self) -> list[Id]:
        """The clients asked so far in the open round, with replacements; in the order of ids."""
        now = self._required("asked")
        return self._roster.names(sorted(now.draws.asked))

    @property
    def design(self) -> Design | None:
        """The law of the open round, or of the last one.

        None before the first draw, after :meth:`restore`, and if no client was available.
        """
        return self._last_design

    @property
    def settings(self) -> SelectorSettings:
        """The settings, checked."""
        return self._settings

    @property
    def expected_weights(self) -> NDArray[np.float64]:
        """The mean weight of each client in the open round, given who is there.

        Shape (n_clients,), in the order of ``population``.
        """
        self._refuse_own_weights("expected_weights")
        now = self._required("expected_weights")
        if now.design is None:
            return np.zeros(self._roster.n_clients)
        mean = now.design.expected_counts() * now.design.weight_per_draw()
        return mean if now.boosts is None else mean * now.boosts

    @property
    def target(self) -> Population | None:
        """The clients whose mean update the open round estimates, the others with size 0.

        Those that are there and may take part; all that may, if weights make up for presence; all
        members with :class:`fedcohort.MIFA`. None if there are none.
        """
        return self._required("target").target

    @property
    def largest_weight(self) -> float:
        """The largest weight that a client can have in the open round.

        That is the sensitivity of the aggregate, in units of ``max_norm``. With ``extra``, and
        where other clients take over the weight of lost ones, it is at least 1.
        """
        self._refuse_own_weights("largest_weight")
        return self._required("largest_weight").largest_weight

    def _refuse_own_weights(self, name: str) -> None:
        if self._settings.has_own_weights:
            raise SelectorError(
                f"Selector: {name} follows from the design; the weights of "
                f"{self._settings.estimator!r} do not. Use an estimator with the design's weights."
            )

    def next_design(
        self, signals: Mapping[str, Any] | None = None, *, memory: UpdateMemory | None = None
    ) -> Design:
        """Build the law that the next round would have if every member were available.

        ``memory`` replaces the selector's memory; its updates are in the order of ``population``.
        """
        check_memory("Selector", memory, error=SelectorError)
        self._catch_up()
        if not self._roster.sizes.any():
            raise SelectorError(
                "Selector: there is no client with samples to draw from. Add one to clients."
            )
        given, round_ = self._roster.signals(signals), self.round_ + (self._open is not None)
        if memory is None:
            memory = self._planner.next_memory(round_)
        return self._planner.built(self._roster.population, given, round_, memory)

    def privacy_event(
        self,
        rounds: int,
        noise: float = 1.0,
        *,
        relation: Relation = "zero-out",
        amplified: bool = True,
    ) -> Any:
        """Return what the next ``rounds`` noisy aggregates reveal, as an event of dp-accounting.

        It holds while members and sizes stay as they are and all members are available. With
        ``max_participations``, ``min_separation`` or weights that make up for presence, who is
        drawn depends on past rounds: cohorts then count as known, and any clients may be away. The
        noise is relative to the ``largest_weight`` of its own round.

        The other arguments are those of :meth:`Design.privacy_event`. Settings are refused with
        which past updates, or the answers of others, decide how much a client counts.
        """
        own = self._settings
        rounds = checked_whole("Selector", "rounds", rounds, least=1, error=SelectorError)
        refused = {
            f"recipe {self.recipe.name!r}, which reads {self.recipe.reads}": self.recipe.reads,
            f"estimator={own.estimator!r}, which remembers updates": own.estimator != "plain",
            "max_norm='auto', which follows past updates": own.max_norm == "auto",
            f"on_failure={own.on_failure!r}, which raises other weights": own.on_failure != "keep",
            f"extra={own.extra}, which keeps the fastest": own.extra,
            f"rest={own.rest}, which follows who failed": own.rest,
        }
        if found := [what for what, is_set in refused.items() if is_set]:
            raise SelectorError(
                f"Selector: privacy_event needs weights that are known before the round and depend "
                f"on no update; got {listed(found)}. Use a recipe by size, the plain estimator, a "
                f"number as max_norm and on_failure='keep'."
            )
        most = None
        if own.corrects_presence or own.min_separation > 1 or own.max_participations is not None:
            most = min(own.max_participations or rounds, -(-rounds // own.min_separation))
        return self.next_design().privacy_event(
            noise, rounds=rounds, relation=relation, amplified=amplified, participations=most
        )

    def prepare(self, executor: Executor) -> None:
        """Build the next round's design in the background, if ``overlap`` allows it."""
        if not callable(getattr(executor, "submit", None)):
            raise SelectorError(
                f"Selector: executor must be an Executor; got {brief(executor)}. Pass for example "
                f"concurrent.futures.ThreadPoolExecutor(1)."
            )
        now, everyone = self._required("prepare"), self._roster.population
        if now.design is not None and now.draws.population is everyone:
            self._planner.prepare(executor, everyone, self.round_ + 1)

    # Between the draw and the aggregate

    def redraw(self, failed: Iterable[object]) -> list[Id]:
        """Return the clients to ask in place of failed ones, with ``on_failure="redraw"``.

        Pass all clients that have failed in this round so far, and ask until none is left::

            while more := selector.redraw(failed):
                failed |= ask(more)  # a set of ids

        Or call it for each failure when it happens: the cohorts are as likely. It returns an empty
        list if no other client has failed, if all lost draws fell on clients already asked, or
        after ``tries`` replacements of one draw.
        """
        return self._required("redraw").redraw(failed)

    def receive(
        self,
        updates: Updates,
        ids: Iterable[object] | None = None,
        *,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
        norms: Numbers | None = None,
        whole: bool = True,
    ) -> Answers:
        """Read a round's updates once: order them, match names, check, shorten for the memory.

        ``settle``, ``step``, ``for_average``, ``remember`` and ``aggregate`` take what it returns;
        handing them updates calls it. Nothing changes.

        Parameters
        ----------
        updates
            Client model minus the model that it was sent: by id, or rows in the order of ``ids``.
            Each is an array, a list of arrays or a mapping of arrays, numpy or torch. Arrays of
            mappings are matched by name, those of lists by position. A client that is missing has
            failed, and so has one with an entry that is not finite, or 1e37 and more.
        ids
            The client of each row; the cohort's by default.
        losses, durations
            What the clients reported: the root of the mean squared loss of their samples, and the
            seconds they took; by id, or in the order of the updates.
        norms
            The norms of the updates, if they are known, in the same form: updates are then not
            scanned for entries that are not finite. A client without one counts as lost.
        whole
            False reads only what the memory keeps, one update at a time: for servers that average
            by themselves.
        """
        now = self._required("receive")
        whole = checked_flag("Selector", "whole", whole, error=SelectorError)
        whole = whole or self._records.wants_rows
        return now.receive(
            updates, ids, losses=losses, durations=durations, norms=norms, whole=whole
        )

    def settle(self, answered: Iterable[object] | Answers) -> Cohort:
        """Return the cohort of the clients that answered, with final weights; change nothing.

        ``answered`` are ids, with ``extra`` in order of arrival.
        """
        now = self._required("settle")
        if isinstance(answered, Answers):
            return now.settle_answers(now.receive(answered, None))
        return now.settle(now.positions(answered))

    def step(self, updates: Updates | Answers, ids: Iterable[object] | None = None) -> Update:
        """Return the step that :meth:`aggregate` would return; change nothing."""
        now = self._required("step")
        answers = now.receive(updates, ids)
        return now.step(answers, now.settle_answers(answers), None)

    def recall(self, ids: Iterable[object]) -> tuple[Array, Array] | None:
        """Return what the estimator predicts: h, one row per id, and H = sum p h.

        None if there is nothing to recall, or no client is available.
        """
        return self._required("recall").recall(ids)

    def for_average(
        self, updates: Updates | Answers, ids: Iterable[object] | None = None
    ) -> Iterator[tuple[Id | None, float, Update]]:
        r"""Return (id, weight, update) for a framework that divides by the sum of the weights.

        With W the sum of the settled weights, each update is :math:`W(\Delta_i - h_i) + H`, so
        that the framework's average equals the aggregate. If the cohort is empty and the
        estimator remembers something, the only entry is H, and its id is None.
        """
        now = self._required("for_average")
        return now.for_average(now.receive(updates, ids))

    # The end of a round

    def aggregate(
        self,
        updates: Updates | Answers,
        ids: Iterable[object] | None = None,
        *,
        model: Update | None = None,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
    ) -> Update:
        """Settle failures, aggregate, remember, and end the round.

        Return the step in the structure of the updates, 0 if no client answered. With ``model``,
        return the moved model in its own structure. The other arguments are those of
        :meth:`receive`.
        """
        now = self._required("aggregate")
        answers = now.receive(updates, ids, losses=losses, durations=durations)
        settled = now.settle_answers(answers)
        result = now.step(answers, settled, model)
        self._finish(now, answers, settled, {})
        return result

    def remember(
        self,
        updates: Updates | Answers,
        ids: Iterable[object] | None = None,
        *,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
        failed: Mapping[Any, str] | None = None,
    ) -> None:
        """Record the updates of those that answered, and end the round.

        The arguments are those of :meth:`receive`; ``failed`` says for the log why clients
        failed. Updates are read one at a time, and only if the recipe or the estimator needs
        them.
        """
        now = self._required("remember")
        reasons, whole = now.reasons(failed), self._records.wants_rows
        answers = now.receive(updates, ids, losses=losses, durations=durations, whole=whole)
        self._finish(now, answers, now.settle_answers(answers), reasons)

    def skip(
        self, failed: Mapping[Any, str] | None = None, *, answered: Iterable[object] = ()
    ) -> None:
        """End the round as if no client had answered; nothing is remembered.

        ``answered`` are clients that did answer: with ``rest`` they do not rest.
        """
        now = self._required("skip")
        answers, arrived = Answers(self.round_), now.positions(answered)
        settled, reasons = now.settle_answers(answers), now.reasons(failed)
        self._finish(now, answers, settled, reasons, arrived)

    # Members

    @property
    def clients(self) -> dict[Id, int]:
        """The members' sizes by id; assign sizes to add, remove or resize members."""
        return self._roster.members()

    @clients.setter
    def clients(self, clients: Clients) -> None:
        self._refuse_open("clients can change")
        self._catch_up()
        is_first = self._roster.n_clients == 0
        order = self._roster.set(cast("Clients", named_values(clients)), check=self._check_clients)
        if not is_first:  # else the check has built the first design
            self._planner.discard()
        self._move(order)

    @property
    def chances(self) -> dict[Id, float]:
        """Each client's chance to be available, by id; assign others for the next rounds.

        Only with ``presence="known"``.
        """
        return dict(self._roster.chances or {})

    @chances.setter
    def chances(self, chances: Chances) -> None:
        self._refuse_open("chances can change")
        self._check_chances(chances)
        self._roster.set_chances(chances, self._roster.population)
        self._asked_of = None

    def _check_chances(self, chances: object) -> None:
        """Refuse chances that no weight uses, and weights that lack them."""
        is_known = self._settings.presence == "known"
        if is_known != (chances is not None):
            need = "needs the chance of each client" if is_known else "does not use chances"
            way_out = "Pass chances=." if is_known else "Leave them out, or use presence='known'."
            raise SelectorError(
                f"Selector: presence={self._settings.presence!r} {need}; got {brief(chances)}. "
                f"{way_out}"
            )

    @property
    def awaits_features(self) -> bool:
        """Whether :meth:`set_features` must give the estimator its features."""
        return self._records.takes_features and not self._records.features.names

    def set_features(self, features: Features) -> None:
        """Set what is known about clients, for ``Regression(features="given")``.

        ``features`` are rows in the order of ``population``, or by id; see
        :class:`fedcohort.Regression`. A row replaces all that was known of its client; an empty
        one, or None, withdraws it. They count from the next round on. Each draw encodes all that
        is known by then.
        """
        self._refuse_open("features can change")
        if not self._records.takes_features:
            raise SelectorError(
                "Selector: set_features needs an estimator that takes given features. Pass "
                "estimator=Regression(features='given')."
            )
        self._know(features, self._roster.population)

    def _know(self, features: object, clients: Clients) -> None:
        try:
            values, ids = values_and_ids("features", rows_by_id(features), clients)
            self._records.know(ids, values, self._roster.places(ids))
        except MemoryOfUpdatesError as error:
            raise SelectorError(str(error)) from error

    @property
    def population(self) -> Population:
        """Everyone that is known, in the order of ids; who has left has size 0."""
        return self._roster.population

    def forget(self, ids: Iterable[object]) -> None:
        """Erase clients: membership, updates, signals, labels and counts.

        A client that joins again counts as new, also for ``max_participations``.
        Lines already written to a log file stay. What a client has added to the basis of
        ``keep="rank"``, and to the coefficients of :class:`fedcohort.Regression`, fades with the
        rounds.
        """
        self._refuse_open("clients can be forgotten")
        self._catch_up()
        named = list(dict.fromkeys(checked_ids(checked_list(ids))))
        coming = [each for each in named if each in self._records.features.coming]
        order = self._roster.remove([each for each in named if each not in coming])
        self._records.forget_coming(coming)
        self._planner.discard(last=True)
        self._move(order)

    def _catch_up(self) -> None:
        """Between rounds, adopt the design and memory that were built while clients trained."""
        if self._open is None:
            self._planner.catch_up(self.round_)

    def _move(self, order: NDArray[np.int64] | None) -> None:
        """Move what is known of clients to their new positions; None: all keep theirs."""
        self._asked_of = None
        if order is not None:
            self._records.rearrange(order, self._roster.ids)
            self._attendance.rearrange(order)
            if self.selections is not None:
                self.selections.rearrange(order)

    # Memory

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
        self._records.memory = memory.publish(LATEST)

    @property
    def estimator(self) -> Estimator | None:
        """The estimator with what it remembers; None before the first update."""
        return self._records.estimator

    @property
    def max_norm(self) -> float | None:
        """The largest norm of the open round's updates, or of the next round's; None: no bound."""
        return self._bound.now if self._open is None else self._open.max_norm

    @property
    def wants_losses(self) -> bool:
        """Whether the recipe reads the losses that clients report."""
        return "past_loss" in self.recipe.signals

    @property
    def nbytes(self) -> int:
        """Bytes of the clients' sizes and of everything that is remembered of them."""
        known = (self._roster.sizes, self._roster.is_member, self._records, self._attendance)
        return sum(each.nbytes for each in known)

    # Saving

    def state(self) -> dict[str, NDArray[Any]]:
        """Return a copy of everything that is saved, as arrays; an open round is not."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave; refuse a state of another recipe or settings.

        If something is missing in the state or does not fit, nothing changes.
        """
        self.restoring(state)()

    def restoring(self, state: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """Read a state, and return the function that takes it over.

        A server with other state can read all of it first. Refuses what :meth:`restore` refuses.
        """
        with refusing_states():
            return self._restoring(state)

    def _restoring(self, state: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        round_, selections = round_of(state, self._settings, self.seed), copy(self.selections)
        roster, records, bound = copy(self._roster), copy(self._records), copy(self._bound)
        attendance = copy(self._attendance)
        roster.restore(without_prefix("roster.", state))
        records.restore(without_prefix("records.", state), roster.n_clients)
        bound.restore(without_prefix("bound.", state))
        attendance.restore(without_prefix("attendance.", state), roster.n_clients)
        if selections is not None:
            selections.restore(without_prefix("log.", state), roster.n_clients)
        changes = bool(state["changes"])

        def take_over() -> None:
            self._planner.catch_up(self.round_)
            self._planner.discard(last=True)
            vars(self._roster).update(vars(roster))
            vars(self._records).update(vars(records))
            self.selections, self._planner.rebuilds_every_round = selections, changes
            self._bound, self._attendance = bound, attendance
            self.round_, self._open, self._asked_of, self._last_design = round_, None, None, None

        return take_over

    def _arrays(self) -> dict[str, NDArray[Any]]:
        self._catch_up()
        changes = np.array(self._planner.rebuilds_every_round)
        kept = {"head": head(self._settings, self.seed, self.round_), "changes": changes}
        kept |= with_prefix("roster.", self._roster.state())
        kept |= with_prefix("records.", self._records.state())
        kept |= with_prefix("bound.", self._bound.state())
        kept |= with_prefix("attendance.", self._attendance.state())
        log = {} if self.selections is None else self.selections.state()
        return kept | with_prefix("log.", log)

    def save(self, path: str | Path) -> None:
        """Write the state to a file atomically; only its owner may read it."""
        write_archive(checked_path("Selector", "path", path), KIND, self._arrays())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        recipe: Recipe | None = None,
        log: str | Path | Literal[True] | None = None,
    ) -> Self:
        """Continue from a saved state, with the same cohorts.

        Pass ``recipe`` if it is not one of the library's. Nothing is unpickled, and nothing but
        torch imported, if updates were tensors.
        """
        path = checked_path("Selector", "path", path)
        with refusing_states(path):
            state = read_archive(path, KIND)
        return cls._of(state, recipe, log, path)

    @classmethod
    def of_state(
        cls,
        state: Mapping[str, NDArray[Any]],
        *,
        recipe: Recipe | None = None,
        log: str | Path | Literal[True] | None = None,
    ) -> Self:
        """Make a selector from what :meth:`state` gave; the others are those of :meth:`load`."""
        return cls._of(state, recipe, log)

    @classmethod
    def _of(
        cls,
        state: Mapping[str, NDArray[Any]],
        recipe: Recipe | None,
        log: str | Path | Literal[True] | None,
        path: Path | None = None,
    ) -> Self:
        with refusing_states(path):
            arguments = arguments_of(state, recipe, path)
        selector = cls(clients={}, log=log, **arguments)
        with refusing_states(path):
            selector._restoring(state)()
        return selector

    def _refuse_open(self, what: str) -> None:
        if self._open is not None:
            raise SelectorError(
                f"Selector: round {self.round_} is open; it must end before {what}. Call aggregate "
                f"or remember, or skip."
            )

    def _check_clients(self, population: Population) -> None:
        """Refuse first clients that cannot be drawn from, and ids that a log cannot write."""
        if not self._roster.n_clients:
            self._planner.try_first_design(population)
        if self.selections is not None:
            self.selections.check(population.ids)

    def _required(self, method: str) -> OpenRound:
        if self._open is None:
            raise SelectorError(
                f"Selector: {method} needs an open round; none is open. Call draw first."
            )
        return self._open

    def _finish(
        self,
        now: OpenRound,
        answers: Answers,
        settled: Cohort,
        reasons: Mapping[Id, str],
        arrived: NDArray[np.int64] = NOBODY,
    ) -> None:
        """Write the log, remember the answers, and end the round; an error changes nothing."""
        records = self._records
        notes = records.observed(lambda: now.observed_round(answers, settled), answers)
        if self.selections is not None:
            failed = now.failures(answers, reasons)
            self.selections.write(now, settled, answers, failed, self.seed)
        if len(answers.scaled):
            first = 0 if self.selections is None else self.selections.first_shown
            names = self._roster.names(answers.scaled)
            updates = counted(len(names), "update")
            log.info(SCALED, self.round_ + first, now.max_norm, updates, names)
        self._planner.learn(answers, now.draws.population, self.round_)
        records.store_reports(answers, notes)
        self._bound.learn(answers.norms)
        asked = np.array(sorted(now.draws.asked), dtype=np.int64)
        lost = np.setdiff1d(asked, np.concatenate([answers.clients, arrived]))
        self._attendance.record(
            self.round_,
            members=self._roster.is_member,
            present=now.present,
            asked=asked,
            failed=lost,
        )
        self._open, self.round_ = None, self.round_ + 1
