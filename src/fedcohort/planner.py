"""Designs for rounds: built when something changed, and checked before the first one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from logging import getLogger
from typing import TypeVar, final

import numpy as np

from fedcohort.client_records import ClientRecords
from fedcohort.designs import Design, Recipe
from fedcohort.designs.recipe import Knowledge
from fedcohort.designs.signals import ASKED, Request, Signals
from fedcohort.errors import DesignError, SelectorError
from fedcohort.failures import FailureRule
from fedcohort.population import Population
from fedcohort.streams import Stream, stream

log = getLogger("fedcohort")

Made = TypeVar("Made")

#: What every asked client answers when a recipe is tried: all are alike, and nobody is slow.
MADE_UP = {"update_norm": 1.0, "loss": 1.0, "duration": 0.0}


@final
class Planner:
    """Builds a recipe's designs over clients that come and go.

    Attributes
    ----------
    last
        The design that was used last; None before the first.
    """

    def __init__(
        self, recipe: Recipe, rule: FailureRule, records: ClientRecords, *, seed: int
    ) -> None:
        self._recipe = replace(recipe, cohort_size=recipe.cohort_size + rule.extra)
        self._rule, self._records, self._seed = rule, records, seed
        self._changes = bool(recipe.learns or recipe.signals)
        self.last: Design | None = None
        self._ready: Design | Future[Design] | None = None

    def rehearse(self, population: Population) -> None:
        """Build the first design, from made-up answers: what cannot be built is refused here."""
        signals, request = None, None
        if self._recipe.signals:
            signals = self._records.signals()
            request = self._asked(self._recipe, population, 0)
            if request is not None:
                answers = np.full(population.n_clients, np.nan)
                answers[request.clients] = MADE_UP[request.signal]
                signals[request.signal] = answers
        design = self._build(self._recipe, population, signals, 0)
        if request is None:  # no answer was made up: it is the first round's
            self._ready = self.last = design

    def request(self, population: Population, round_: int) -> Request | None:
        """Return who is asked for what before the draw; None asks nobody."""
        if not self._recipe.signals:
            return None
        return self._fitted(population, lambda recipe: self._asked(recipe, population, round_))

    def design(
        self, population: Population, signals: Signals | None, round_: int, *, is_full: bool
    ) -> Design:
        """Return the design of a round; ``is_full``: no member is away."""
        ready, self._ready = self._ready, None
        if ready is not None and is_full:
            self.last = ready.result() if isinstance(ready, Future) else ready
        elif self._changes or not _is_over(self.last, population):
            self.last = self.built(population, signals, round_)
        assert self.last is not None  # for mypy: else it was built
        return self.last

    def built(self, population: Population, signals: Signals | None, round_: int) -> Design:
        """Build the design of a round; with fewer draws where fewer clients are there."""
        return self._fitted(
            population, lambda recipe: self._build(recipe, population, signals, round_)
        )

    def prepare(self, executor: Executor, population: Population, round_: int) -> None:
        """Build the design of a round in the background."""
        if self._ready is None:
            self._ready = executor.submit(self.built, population, None, round_)

    def wait(self) -> None:
        """Wait until nothing is built in the background."""
        if isinstance(self._ready, Future):
            self._ready = self._ready.result()

    def discard(self) -> None:
        """Drop what was built ahead: the clients or the memory change."""
        self.wait()
        self._ready = None
        self.last = None if self._changes else self.last

    def _build(
        self, recipe: Recipe, population: Population, signals: Signals | None, round_: int
    ) -> Design:
        # A design that does not change is built once: its ties are those of round 0.
        address = round_ if self._changes else 0
        known = Knowledge(
            recipe,
            memory=self._records.memory,
            signals=signals,
            round_=round_,
            rng=stream(self._seed, round_=address, use=Stream.TIES),
        )
        design = recipe.build_from(population, known)
        if not self._changes and (known.round_was_read or not design.lasts):
            self._changes = True
            if round_ != address:
                return self._build(recipe, population, signals, round_)
        self._rule.check(design)
        return design

    def _fitted(self, population: Population, make: Callable[[Recipe], Made]) -> Made:
        """Make something with the recipe; where too few clients are left, with all of them."""
        n_there = int(np.count_nonzero(population.sizes))
        try:
            return make(self._recipe)
        except DesignError:
            if self._recipe.cohort_size <= n_there:
                raise
        name, wanted = self._recipe.name, self._recipe.cohort_size
        log.warning(
            "%s: only %d clients are left for %d draws; all are drawn", name, n_there, wanted
        )
        return make(replace(self._recipe, cohort_size=n_there))

    def _asked(self, recipe: Recipe, population: Population, round_: int) -> Request | None:
        rng = stream(self._seed, round_=round_, use=Stream.CANDIDATES)
        request = recipe.ask(population, round_, rng)
        return None if request is None else _checked(recipe, request, population)


def _is_over(design: Design | None, population: Population) -> bool:
    """Whether a design is over these clients and sizes."""
    if design is None:
        return False
    known = design.population
    if known is population:
        return True
    return np.array_equal(known.sizes, population.sizes) and known.groups == population.groups


def _checked(recipe: Recipe, request: Request, population: Population) -> Request:
    """Validate a request: distinct clients that are available."""
    if not isinstance(request, Request):
        raise SelectorError(
            f"{recipe.name}: ask must return a Request or None; got {type(request).__name__}."
        )
    clients = np.asarray(request.clients)
    there = np.flatnonzero(population.sizes)
    fine = clients.ndim == 1 and np.isin(clients, there).all() and (np.diff(clients) > 0).all()
    if request.signal not in ASKED or not fine:
        raise SelectorError(
            f"{recipe.name}: must ask for one of {', '.join(ASKED)}, and sorted, distinct clients "
            f"that are available and have samples; got {request.signal!r} of {clients.tolist()}."
        )
    return Request(request.signal, clients.astype(np.int64))
