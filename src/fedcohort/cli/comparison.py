"""What ``fedcohort compare`` finds out about each design."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track

from fedcohort.cli.design_names import next_design, selector_of
from fedcohort.cli.sizes_file import Federation
from fedcohort.cli.updates_file import GivenUpdates
from fedcohort.designs import Design, MultinomialDesign
from fedcohort.diagnostics import Estimate, Summary, estimated_aggregate_variance, summary
from fedcohort.errors import DesignError
from fedcohort.similarity.measures import largest_entries
from fedcohort.streams import Stream, stream

#: Compared where nothing else is asked for: all that need nothing but sizes, and, where there are
#: updates, those that learn from them.
EVERYONE = "uniform,uniform:unbiased,multinomial,poisson,size,size:whole_rows_first"
LEARNERS = ",similarity,tournament,auto"
#: Compared as well where its V is measured within seconds: up to so many draws, and so many
#: numbers in the updates of a cohort.
BALANCED = "balanced"
EASY_COHORT, EASY_NUMBERS = 50, 10**5
#: Draws that the time of one draw is the median of.
TIMED_DRAWS = 15
#: Cohorts that V is measured on where it has no formula: it is then known to about 2 %.
MEASURED_COHORTS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What the designs are compared on."""

    federation: Federation
    cohort_size: int
    seed: int
    given: GivenUpdates | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One design of the comparison.

    Attributes
    ----------
    variance
        V on the given updates, None without; its standard error is 0 where it is exact.
    """

    spec: str
    design: Design
    summary: Summary
    variance: Estimate | None
    build_seconds: float
    draw_seconds: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """Multinomial sampling's variances; None where there is nothing to divide by."""

    weight_variance: float | None
    aggregate_variance: float | None


def compared(task: Task, designs: str | None) -> tuple[list[Line], list[str]]:
    """Build, judge and time the designs; of those not asked for by name, note what cannot be."""
    lines: list[Line] = []
    notes: list[str] = []
    specs = _defaults(task, notes) if designs is None else designs
    errors = Console(stderr=True)
    names = [spec.strip() for spec in specs.split(",")]
    bar = track(names, "designs", console=errors, transient=True, disable=not errors.is_terminal)
    for spec in bar:
        try:
            lines.append(_line(spec, task))
        except DesignError as error:
            if designs is not None:
                raise
            notes.append(str(error))
    return lines, notes


def baseline(task: Task) -> Baseline:
    """Return what the designs' variances are divided by."""
    design = MultinomialDesign(task.federation.population, task.cohort_size)
    weights, aggregate = summary(design).weight_variance, None
    if task.given is not None:
        updates = task.given.updates
        aggregate = design.aggregate_variance(updates)
        # Of equal updates only the rounding of their mean is left, n eps of an entry at most.
        rounding = len(updates) * np.finfo(np.float64).eps * largest_entries(updates).max()
        if aggregate <= updates.shape[1] * rounding**2 / task.cohort_size:
            aggregate = None
    return Baseline(weights or None, aggregate)


def _defaults(task: Task, notes: list[str]) -> str:
    if task.given is None:
        return EVERYONE
    numbers = task.cohort_size * task.given.updates.shape[1]
    if task.cohort_size <= EASY_COHORT and numbers <= EASY_NUMBERS:
        return f"{EVERYONE}{LEARNERS},{BALANCED}"
    notes.append(
        f"{BALANCED}: has no formula for V, and measuring it takes long with more than "
        f"{EASY_COHORT} draws or {EASY_NUMBERS} numbers in a cohort's updates. Ask for it with "
        f"--designs."
    )
    return EVERYONE + LEARNERS


def _line(spec: str, task: Task) -> Line:
    selector = selector_of(spec, task.federation, task.cohort_size, task.seed)
    start = time.perf_counter()
    design = next_design(selector, task.given)
    built = time.perf_counter()
    draws = []
    for round_ in range(TIMED_DRAWS):
        rng = stream(task.seed, round_=round_, use=Stream.COHORT)
        before = time.perf_counter()
        design.draw(rng)
        draws.append(time.perf_counter() - before)
    variance = None if task.given is None else _variance(design, task.given, task.seed)
    return Line(spec, design, summary(design), variance, built - start, float(np.median(draws)))


def _variance(design: Design, given: GivenUpdates, seed: int) -> Estimate:
    if design.exact_moments:
        return Estimate(design.aggregate_variance(given.updates), 0.0)
    rng = stream(seed, round_=TIMED_DRAWS, use=Stream.COHORT)
    return estimated_aggregate_variance(design, given.updates, rng=rng, rounds=MEASURED_COHORTS)
