"""Designs for rounds: tried before the first round, rebuilt when something changes.

With ``overlap`` the design of round t + 1 is built while the clients of round t train::

    draw t          the law knows the updates of rounds up to t - 2
    prepare t + 1   a thread copies the memory, adds the updates of round t - 1, and builds
    aggregate t     the updates of round t are pending: no law knows them yet
    catch up        the memory and the design that the thread made are taken over
    draw t + 1      the law knows the updates of rounds up to t - 1

With ``rebuild_every`` of k, a law that learns is built in the rounds 0, k, 2 k, ... Updates are
pending until then, so that a loaded selector builds the same law again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from logging import getLogger
from typing import TypeVar, final

import numpy as np

from fedcohort._arguments import brief
from fedcohort.designs import Design, Recipe
from fedcohort.designs.recipe import Knowledge
from fedcohort.designs.signals import ASKED, Request, Signals
from fedcohort.errors import DesignError, SelectorError
from fedcohort.memory import UpdateMemory
from fedcohort.population import Population
from fedcohort.selector.answers import Answers
from fedcohort.selector.records import ClientRecords
from fedcohort.selector.settings import SelectorSettings
from fedcohort.streams import Stream, stream

log = getLogger("fedcohort")

Made = TypeVar("Made")

#: The answers of every client when a recipe is tried before the first round.
MADE_UP = {"update_norm": 1.0, "loss": 1.0, "duration": 0.0}


@final
class Planner:
    """Builds a recipe's designs while clients join and leave."""

    def __init__(self, settings: SelectorSettings, seed: int, records: ClientRecords) -> None:
        recipe, self._settings, self._seed = settings.recipe, settings, seed
        self._overlap, self._every = settings.overlap, settings.rebuild_every
        self._recipe, self._records = recipe, records
        if settings.extra:
            self._recipe = replace(recipe, cohort_size=recipe.cohort_size + settings.extra)
        #: Whether each round needs a design of its own.
        self.rebuilds_every_round = bool(recipe.learns or recipe.signals or recipe.keeps)
        #: Whether designs depend on the number of the round.
        self._reads_round = False
        #: The design that was used last, None before the first; and the round it was built for.
        self.last: Design | None = None
        self._built_for = 0
        #: A design that was built ahead, and its round.
        self._ready: tuple[int, Design] | None = None
        self._ahead: Future[tuple[tuple[int, Design], UpdateMemory | None]] | None = None
        self._few: int | None = None

    def try_first_design(self, population: Population) -> None:
        """Build the first design, with made-up answers, to refuse what cannot be built."""
        signals, request = None, None
        if self._recipe.signals:
            n_clients = population.n_clients
            signals = {name: np.full(n_clients, np.nan) for name in self._records.signals()}
            request = self._asked(self._recipe, population, 0)
            if request is not None:
                answers = np.full(population.n_clients, np.nan)
                answers[request.clients] = MADE_UP[request.signal]
                if self._needs_equal_draws:  # equal answers could hide unequal weights
                    answers[request.clients] += np.arange(len(request.clients))
                signals[request.signal] = answers
        design = self._build(self._recipe, population, signals, 0, None)
        if request is None:  # nothing was made up: use it in round 0
            self._ready, self.last, self._built_for = (0, design), design, 0

    def request(self, population: Population, round_: int) -> Request | None:
        """Return the signal to collect before the draw; None for none."""
        if not self._recipe.signals:
            return None
        return self._fitted(population, lambda recipe: self._asked(recipe, population, round_))

    def design(
        self, population: Population, given: Signals, round_: int, *, is_full: bool
    ) -> Design:
        """Return the design of a round.

        ``given`` are the clients' answers; ``is_full``: every member is available.
        """
        ready, self._ready, design = self._ready, None, self.last
        if ready is not None and ready[0] == round_ and is_full and not given:
            design = ready[1]
        elif design is None or self._is_due(round_) or not _is_over(design, population):
            design = self.built(population, given, round_, self._records.memory)
            self._built_for = self._turn(round_)
        self.last = design
        return design

    def _turn(self, round_: int) -> int:
        """Return the round whose knowledge a round's design has."""
        return round_ // self._every * self._every

    def _is_due(self, round_: int) -> bool:
        """Whether the round needs another design, if the clients are the same."""
        is_new = self._reads_round or self._turn(round_) != self._built_for or self._every == 1
        return self.rebuilds_every_round and is_new

    def next_memory(self, round_: int) -> UpdateMemory | None:
        """Return the memory that the design of a round is built from."""
        if self._ahead is not None:
            wait([self._ahead])
        memory = self._records.memory
        return None if memory is None else memory.ahead(self._turn(round_))()

    def built(
        self, population: Population, given: Signals, round_: int, memory: UpdateMemory | None
    ) -> Design:
        """Build the design of a round, with fewer draws if fewer clients are available."""
        signals = self._known(population, given, round_) if self._recipe.signals else None
        return self._fitted(
            population, lambda recipe: self._build(recipe, population, signals, round_, memory)
        )

    def _known(self, population: Population, given: Signals, round_: int) -> Signals:
        """Return past signals, and the answers of the clients that were asked."""
        request = self.request(population, round_) if given else None
        answers = dict(given)
        if request is not None and request.signal in given:
            answers[request.signal] = np.full(population.n_clients, np.nan)
            answers[request.signal][request.clients] = given[request.signal][request.clients]
        return {**self._records.signals(), **answers}

    def prepare(self, executor: Executor, population: Population, round_: int) -> None:
        """Build the next round's design in the background, if ``overlap`` allows it."""
        recipe, known = self._recipe, self._records.memory
        published = None if known is None else known.ahead(round_)
        reports = recipe.signals or recipe.keeps
        if not (self._overlap and recipe.learns) or reports or self._ahead is not None:
            return

        def build() -> tuple[tuple[int, Design], UpdateMemory | None]:
            memory = None if published is None else published()
            return (round_, self._build(recipe, population, None, round_, memory)), memory

        self._ahead = executor.submit(build)

    def catch_up(self, round_: int) -> None:
        """Wait for what was prepared for this round, and take it over.

        If the build failed, the design is built again, and the error is raised then.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        memory = None
        if ahead.exception() is None:
            self._ready, memory = ahead.result()
        self._records.publish(round_ - 1, memory)

    def learn(self, answers: Answers, population: Population, round_: int) -> None:
        """Remember a round's updates; with overlap the memory shows them one round later."""
        due = round_ if self._overlap else self._turn(round_ + 1)
        if self._ahead is None:
            self._records.publish(due)
        self._records.record(answers, population, round_, later=round_ >= due)

    def discard(self, *, last: bool = False) -> None:
        """Drop the design built ahead: clients or memory change; ``last``: drop every design."""
        self._ready = None
        self.last = None if self.rebuilds_every_round or last else self.last

    def _build(
        self,
        recipe: Recipe,
        population: Population,
        signals: Signals | None,
        round_: int,
        memory: UpdateMemory | None,
    ) -> Design:
        # A design that never changes takes its tie-breaks from round 0.
        address = self._turn(round_) if self.rebuilds_every_round else 0
        known = Knowledge(
            recipe,
            memory=memory,
            signals=signals,
            kept=self._records.notes(population.n_clients),
            round_=round_,
            rng=stream(self._seed, round_=address, use=Stream.TIES),
        )
        design = recipe.build_from(population, known)
        self._reads_round |= known.round_was_read or not design.lasts
        if not self.rebuilds_every_round and self._reads_round:
            self.rebuilds_every_round = True
            if round_ != address:
                return self._build(recipe, population, signals, round_, memory)
        self._check(design, recipe)
        return design

    @property
    def _needs_equal_draws(self) -> bool:
        """Whether one draw may replace another."""
        return self._settings.on_failure == "redraw" or self._settings.extra > 0

    def _check(self, design: Design, recipe: Recipe) -> None:
        """Refuse a design that the settings cannot be used with."""
        extra, most = self._settings.extra, self._settings.max_draws
        if self._settings.corrects_presence and not design.unbiased:
            raise SelectorError(
                f"Selector: presence={self._settings.presence!r} needs an unbiased design; "
                f"{recipe.name} is biased. Use SizeClustered, or presence='ignore'."
            )
        if self._needs_equal_draws:
            feature = f"extra={extra}" if extra else "on_failure='redraw'"
            check_equal_draws(design, recipe, feature)
        if most is None:
            return
        counts = design.max_count()
        client = int(np.argmax(counts))
        if counts[client] > most:
            raise SelectorError(
                f"Selector: max_draws is {most}, and {design.name} can draw client "
                f"{design.population.ids[client]!r} {counts[client]} times in a round. Use a "
                f"design that repeats less, such as size, or bound that client's size."
            )

    def _fitted(self, population: Population, make: Callable[[Recipe], Made]) -> Made:
        """Make something with the recipe; with too few clients available, draw all of them."""
        n_available = int(np.count_nonzero(population.sizes))
        try:
            return make(self._recipe)
        except DesignError:
            if self._recipe.cohort_size <= n_available:
                raise
        if self._few is None or n_available < self._few:  # not in every round
            self._few = n_available
            name, wanted = self._recipe.name, self._recipe.cohort_size
            log.warning("%s: draws all %d available clients, not %d", name, n_available, wanted)
        return make(replace(self._recipe, cohort_size=n_available))

    def _asked(self, recipe: Recipe, population: Population, round_: int) -> Request | None:
        rng = stream(self._seed, round_=round_, use=Stream.CANDIDATES)
        request = recipe.ask(population, round_, rng)
        return None if request is None else _checked(recipe, request, population)


def check_equal_draws(design: Design, recipe: Recipe, feature: str) -> None:
    """Refuse designs whose draws have different weights: one draw cannot replace another."""
    weights = design.weight_per_draw()[design.population.sizes > 0]
    if not np.array_equal(weights, np.full(len(weights), 1 / design.cohort_size)):
        raise SelectorError(
            f"Selector: {feature} needs a design with equal weight per draw; "
            f"{type(recipe).__name__}'s draws differ. Use SizeClustered or Multinomial."
        )


def _is_over(design: Design, population: Population) -> bool:
    """Return whether a design was built for these clients, sizes and labels."""
    known = design.population
    return known is population or (
        np.array_equal(known.sizes, population.sizes)
        and known.ids == population.ids
        and known.groups == population.groups
    )


def _checked(recipe: Recipe, request: Request, population: Population) -> Request:
    """Validate a request: distinct clients that are available."""
    if not isinstance(request, Request):
        raise SelectorError(
            f"{recipe.name}: ask must return a Request or None; got {type(request).__name__}. "
            f"Return for example Request('loss', clients)."
        )
    clients = np.asarray(request.clients)
    there = np.flatnonzero(population.sizes)
    fine = clients.ndim == 1 and np.isin(clients, there).all() and (np.diff(clients) > 0).all()
    if request.signal not in ASKED or not fine:
        raise SelectorError(
            f"{recipe.name}: must ask for one of {', '.join(ASKED)}, and sorted, distinct clients "
            f"that are available and have samples; got {request.signal!r} of "
            f"{brief(clients.tolist())}. Choose among np.flatnonzero(population.sizes)."
        )
    return Request(request.signal, clients.astype(np.int64))
