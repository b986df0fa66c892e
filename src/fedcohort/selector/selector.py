"""The server loop: ask, draw, settle who did not answer, aggregate, remember."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Id, checked_flag, checked_whole
from fedcohort._updates import Array, Update
from fedcohort._whole_file import write_arrays
from fedcohort.cohort import NOBODY, Cohort
from fedcohort.designs import Design, Recipe
from fedcohort.designs.recipe import HasUpdates, estimator_for
from fedcohort.designs.signals import Request
from fedcohort.errors import SelectorError
from fedcohort.memory import Difference, EstimatorName
from fedcohort.population import Population
from fedcohort.selector.files import FORMAT, Origin, SelectionLog, read_state, refusing_states
from fedcohort.selector.open_round import Draws, FailureRule, Numbers, OnFailure, OpenRound, Updates
from fedcohort.selector.records import Answers
from fedcohort.selector.roster import Clients, Groups, Roster
from fedcohort.selector.state import SelectorState
from fedcohort.streams import Stream, checked_seed, stream

log = getLogger("fedcohort")


@final
class Selector(SelectorState):
    """The server's side of one federation: who trains in each round, and with what weight.

    It holds everything that a server keeps between rounds. One seed gives one sequence of cohorts.

    Parameters
    ----------
    recipe
        How clients are drawn.
    clients
        The members: sizes as a list or an array (ids 0 ... n - 1), sizes by id, or a
        :class:`Population`. Ids are strings or integers. Pass an empty mapping if they come later.
    seed
        An integer, a generator that is asked for one, or None for a random one.
    importance, groups
        Shares that replace the sizes and sum to 1, and labels for recipes that draw by group: in
        the order of ``clients`` or by id. Clients without a label form the group ``"unlabelled"``.
    estimator
        ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference`.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    on_failure, tries
        What to do with the weight of a drawn client that does not answer. ``"keep"`` leaves it on
        the current model. ``"redraw"`` draws other clients instead, up to ``tries`` times.
        ``"renormalise"`` spreads it over the clients that answered (biased).
    extra
        Over-selection: draw this many more, and use the first ``cohort_size`` draws that are
        answered (biased toward fast clients).
    max_draws
        Refuse a design that can draw one client more often in a round.
    overlap
        Build each design without the last round's updates: :meth:`prepare` can then build it
        while clients train.
    rebuild_every
        Build a design that learns in every k-th round only; it knows the updates up to then.
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
        estimator: EstimatorName | Difference = "plain",
        sketch: int | None = None,
        on_failure: OnFailure = "keep",
        tries: int = 10,
        extra: int = 0,
        max_draws: int | None = None,
        overlap: bool = False,
        rebuild_every: int = 1,
        log: str | Path | Literal[True] | None = None,
    ) -> None:
        if not isinstance(recipe, Recipe):
            raise SelectorError(
                f"Selector: recipe must be a Recipe; got {type(recipe).__name__}. Pass for example "
                f"SizeClustered(10)."
            )
        number = checked_seed("Selector", seed, SelectorError)
        difference = estimator_for("Selector", recipe, estimator, error=SelectorError)
        if sketch is not None:
            sketch = checked_whole("Selector", "sketch", sketch, least=1, error=SelectorError)
        rule = FailureRule(on_failure, tries, extra, max_draws)
        overlap = checked_flag("Selector", "overlap", overlap, error=SelectorError)
        every = checked_rebuild_every(recipe, rebuild_every, overlap=overlap)
        origin = Origin(recipe, difference, rule, number, sketch, overlap, every)
        super().__init__(origin, Roster(clients, groups, importance))
        self._move(self._roster.set(clients, check=self._planner.rehearse))
        if log:
            self.selections = SelectionLog(self._roster, None if log is True else Path(log))

    # Before the draw

    def ask(self, available: object = None) -> Request | None:
        """Return the signal to collect before the draw, and from whom; None for most recipes.

        ``available`` is that of :meth:`draw`, which then uses it by default.
        """
        self._refuse_open("clients can be asked")
        self._present = self._roster.presence(available)
        population = self._roster.available(self._present)
        request = None if population is None else self._planner.request(population, self.round_)
        return request and replace(request, ids=self._roster.names(request.clients))

    def draw(self, available: object = None, signals: Mapping[str, Any] | None = None) -> Cohort:
        """Open a round and draw its cohort; it is empty if no client with samples is available.

        Parameters
        ----------
        available
            Who can be asked in this round: ids, or a mask over ``population``; None for everyone.
        signals
            What clients answered, by the signal's name: numbers by id, or one per client of
            ``population``, NaN for none. Only answers of clients that were asked count.
        """
        self._refuse_open("another can be drawn")
        self._catch_up()
        present = self._present if available is None else self._roster.presence(available)
        population = self._roster.available(self._roster.is_member if present is None else present)
        if population is None:
            log.info("round %d: no client with samples is available", self.round_)
            design, draws = None, self._draws(self._roster.population, None)
        else:
            design = self._design(population, signals)
            draws = self._draws(population, design)
            self._records.reweigh(population)
        size = self.recipe.cohort_size
        self._open = OpenRound(self._roster, self._records, self._rule, design, draws, size)
        self._last_design, self._present = design, None
        return draws.cohort

    def _design(self, population: Population, signals: Mapping[str, Any] | None) -> Design:
        """Return the law of this round over the available clients."""
        is_full, given = population is self._roster.population, self._roster.signals(signals)
        return self._planner.design(population, given, self.round_, is_full=is_full)

    def _draws(self, population: Population, design: Design | None) -> Draws:
        """Draw from the law; without one, return an empty cohort."""
        seed, round_, cohort, size = self.seed, self.round_, Cohort.empty(), 0
        if design is not None:
            cohort = design.draw(stream(seed, round_=round_, use=Stream.COHORT))
            size = design.cohort_size
        named = cohort.named(self._roster.names(cohort.clients), round_)
        rng = stream(seed, round_=round_, use=Stream.REDRAW)
        return Draws(named, population, size, rng, self._rule.tries)

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

    def next_design(
        self, signals: Mapping[str, Any] | None = None, *, memory: HasUpdates | None = None
    ) -> Design:
        """Build the law that the next round would have if every member were available.

        ``memory`` replaces the selector's memory; its updates are in the order of ``population``.
        """
        self._catch_up()
        if not self._roster.sizes.any():
            raise SelectorError(
                "Selector: there is no client with samples to draw from. Add one to clients."
            )
        given, round_ = self._roster.signals(signals), self.round_ + (self._open is not None)
        if memory is None:
            memory = self._planner.next_memory(round_)
        return self._planner.built(self._roster.population, given, round_, memory)

    def prepare(self, executor: Executor) -> None:
        """Build the next round's design in the background, if ``overlap`` allows it."""
        now, everyone = self._required("prepare"), self._roster.population
        if now.design is not None and now.draws.population is everyone:
            self._planner.prepare(executor, everyone, self.round_ + 1)

    # Between the draw and the aggregate

    def redraw(self, lost: Iterable[object]) -> list[Id]:
        """Return the clients to ask instead of these, with ``on_failure="redraw"``.

        If some of them fail too, call it again with these, until it returns an empty list.
        """
        return self._required("redraw").redrawn(lost)

    def settle(self, answered: Iterable[object]) -> Cohort:
        """Return the cohort of the clients that answered, with final weights; change nothing.

        ``answered`` are ids, with ``extra`` in order of arrival.
        """
        now = self._required("settle")
        return now.settled(now.positions(answered))

    def step(self, updates: Updates, ids: Iterable[object] | None = None) -> Update:
        """Return the step that :meth:`aggregate` would return; change nothing."""
        now = self._required("step")
        return now.step(now.answers(updates, ids, whole=True), None)

    def recall(self, ids: Iterable[object]) -> tuple[Array, Array] | None:
        """Return the memory of the difference estimator: h, one row per id, and H = sum p h.

        None if there is nothing to recall, or no client is available.
        """
        return self._required("recall").recall(ids)

    def for_average(
        self, updates: Mapping[Any, Update]
    ) -> Iterator[tuple[Id | None, float, Update]]:
        r"""Return (id, weight, update) for a framework that divides by the sum of the weights.

        With W the sum of the settled weights, each update is :math:`W(\Delta_i - h_i) + H`, so
        that the framework's average equals the aggregate. If the cohort is empty and the
        difference estimator remembers something, the only entry is H: its id is None and its
        update flat.
        """
        return self._required("for_average").for_average(updates)

    # The end of a round

    def aggregate(
        self,
        updates: Updates,
        ids: Iterable[object] | None = None,
        *,
        model: Update | None = None,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
    ) -> Update:
        """Settle failures, aggregate, remember, and end the round.

        Return the step in the structure of the updates, 0 if no client answered. With ``model``,
        return the moved model in its own structure.

        Parameters
        ----------
        updates
            Client model minus the model that it was sent: by id, or rows in the order of ``ids``.
            Each is an array, a list of arrays or a mapping of arrays, numpy or torch. A client
            that is missing has failed, and so has one whose update is not finite.
        ids
            The client of each row; the cohort's by default.
        losses, durations
            What the clients reported: the root of the mean squared loss of their samples, and the
            seconds they took; by id, or in the order of the updates.
        """
        now = self._required("aggregate")
        answers = now.answers(updates, ids, whole=True)
        heard = now.reported(answers, losses, durations)
        result = now.step(answers, model)
        self._finish(now, answers, heard, {})
        return result

    def remember(
        self,
        updates: Updates,
        ids: Iterable[object] | None = None,
        *,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
        failed: Mapping[Any, str] | None = None,
    ) -> None:
        """Record the updates of those that answered, and end the round.

        The arguments are those of :meth:`aggregate`; ``failed`` says for the log why clients
        failed. Updates are read one at a time, and only if the recipe or the estimator needs
        them.
        """
        now = self._required("remember")
        reasons = now.reasons(failed)
        answers = now.answers(updates, ids, whole=self._records.wants_rows)
        self._finish(now, answers, now.reported(answers, losses, durations), reasons)

    def skip(self, failed: Mapping[Any, str] | None = None) -> None:
        """End the round as if no client had answered; nothing is remembered."""
        now = self._required("skip")
        self._finish(now, Answers(NOBODY, NOBODY), {}, now.reasons(failed))

    # Saving

    def save(self, path: str | Path) -> None:
        """Write the state to a file atomically; only its owner may read it."""
        write_arrays(Path(path), FORMAT, self._arrays())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        recipe: Recipe | None = None,
        log: str | Path | Literal[True] | None = None,
    ) -> Self:
        """Continue from a saved state, with the same cohorts.

        Pass ``recipe`` if it is not one of the library's. Nothing is unpickled or imported.
        """
        state, arguments = read_state(Path(path), recipe)
        selector = cls(clients={}, log=log, **arguments)
        with refusing_states(Path(path)):
            selector._restore(state)
        return selector

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
        heard: Mapping[str, NDArray[np.float64]],
        reasons: Mapping[Id, str],
    ) -> None:
        """Write the log, remember the answers, and end the round; an error changes nothing."""
        records, settled = self._records, now.settled(answers.arrived)
        notes = records.observed(settled, answers)
        if self.selections is not None:
            failed = now.failures(answers, reasons)
            self.selections.write(now.cohort, settled, now.design, failed, self.seed)
        self._planner.learn(answers, now.draws.population, self.round_)
        records.hear(answers.clients, heard, notes)
        self._open, self.round_ = None, self.round_ + 1


def checked_rebuild_every(recipe: Recipe, rebuild_every: object, *, overlap: bool) -> int:
    """Validate how often a design is built; refuse it where every round needs its own."""
    every = checked_whole("Selector", "rebuild_every", rebuild_every, least=1, error=SelectorError)
    if every > 1 and (recipe.signals or overlap):
        needs = "overlap builds" if overlap else f"{recipe.name} asks clients for"
        raise SelectorError(
            f"Selector: rebuild_every must be 1 here, since {needs} a design in every round; got "
            f"{every}. Leave it out."
        )
    return every
