"""The rows of a comparison: build, evaluate and time each design."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.baselines.round_robin import RoundRobinCycle
from fedcohort.designs import Design, MultinomialDesign, Recipe
from fedcohort.designs.recipe import GivenUpdates
from fedcohort.designs.signals import ASKED
from fedcohort.diagnostics import Estimate, Summary, estimated_aggregate_variance, summary
from fedcohort.population import Population
from fedcohort.similarity.measures import largest_entries
from fedcohort.streams import Stream, stream

#: The number of draws that are timed; the result is their median.
TIMED_DRAWS = 15
#: The number of cohorts to estimate V without a formula, to about 2 %.
MEASURED_COHORTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Summary):
    """One design of a comparison; :class:`~fedcohort.Comparison` describes the attributes."""

    label: str
    recipe: Recipe
    design: Design
    law: Design
    weight_variance_ratio: float | None
    weights_exact: bool
    bias_standard_error: float | None
    weight_variance_standard_error: float | None
    aggregate_variance: float | None = None
    aggregate_variance_exact: bool | None = None
    aggregate_variance_standard_error: float | None = None
    aggregate_variance_ratio: float | None = None
    build_seconds: float
    draw_seconds: float

    def __repr__(self) -> str:
        return f"Row({self.label!r}, {self.recipe!r})"

    def values(self) -> dict[str, object]:
        """Return the label (as ``design``) and all numbers by name; V only if there are updates."""
        other = ("label", "recipe", "design", "law")
        names = [each.name for each in fields(self) if each.name not in other]
        if self.aggregate_variance is None:
            names = [name for name in names if not name.startswith("aggregate")]
        return {"design": self.label, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class Task:
    """What the designs are compared on; clients and updates are in the order of ids."""

    population: Population
    cohort_size: int
    seed: int
    updates: NDArray[np.floating] | None

    def row(self, label: str, recipe: Recipe) -> Row:
        """Build, evaluate and time one design."""
        if recipe.learns:
            import_module("scipy.cluster.hierarchy")  # load it now: not part of build time
        start = time.perf_counter()
        design = first_design(recipe, self.population, seed=self.seed, updates=self.updates)
        build_seconds = time.perf_counter() - start
        law = design.over_rounds()
        found, errors = summary(law), law.standard_errors() or (None, None)
        return Row(
            **asdict(found),
            label=label,
            recipe=recipe,
            design=design,
            law=law,
            weight_variance_ratio=_ratio(found.weight_variance, self._baselines[0]),
            weights_exact=law.exact_weights,
            bias_standard_error=errors[0],
            weight_variance_standard_error=errors[1],
            **self._aggregate(law),
            build_seconds=build_seconds,
            draw_seconds=self._draw_seconds(design),
        )

    @cached_property
    def _baselines(self) -> tuple[float, float]:
        """Multinomial sampling's weight variance, and its V; 0 without updates."""
        design = MultinomialDesign(self.population, self.cohort_size)
        weights, updates = summary(design).weight_variance, self.updates
        if updates is None:
            return weights, 0.0
        variance = design.aggregate_variance(updates)
        # For equal updates V is only the rounding of their mean, at most n eps per entry.
        rounding = len(updates) * np.finfo(np.float64).eps * largest_entries(updates).max()
        is_rounding = variance <= updates.shape[1] * rounding**2 / self.cohort_size
        return weights, 0.0 if is_rounding else variance

    def _aggregate(self, design: Design) -> dict[str, Any]:
        """Return V and what belongs to it; nothing without updates."""
        if self.updates is None:
            return {}
        if design.exact_moments:
            found = Estimate(design.aggregate_variance(self.updates), 0.0)
        else:
            rng = stream(self.seed, round_=TIMED_DRAWS, use=Stream.COHORT)
            found = estimated_aggregate_variance(
                design, self.updates, rng=rng, rounds=MEASURED_COHORTS
            )
        return {
            "aggregate_variance": found.value,
            "aggregate_variance_exact": design.exact_moments,
            "aggregate_variance_standard_error": found.standard_error,
            "aggregate_variance_ratio": _ratio(found.value, self._baselines[1]),
        }

    def _draw_seconds(self, design: Design) -> float:
        times = []
        for round_ in range(TIMED_DRAWS):
            rng = stream(self.seed, round_=round_, use=Stream.COHORT)
            before = time.perf_counter()
            design.draw(rng)
            times.append(time.perf_counter() - before)
        return float(np.median(times))


def first_design(
    recipe: Recipe,
    population: Population,
    *,
    seed: int,
    updates: NDArray[np.floating] | None = None,
) -> Design:
    """Build the design of a selector with this seed in round 0, as if it knew these updates.

    ``population`` is in the order of ids. There are no past signals; of those that clients are
    asked for, only the norms of their updates are known.
    """
    nothing = np.full(population.n_clients, np.nan)
    signals = {name: nothing.copy() for name in recipe.signals if name not in ASKED}
    request = recipe.ask(population, 0, stream(seed, use=Stream.CANDIDATES))
    if updates is not None and request is not None and request.signal == "update_norm":
        rows = updates[request.clients].astype(np.float64)
        signals["update_norm"] = nothing.copy()
        signals["update_norm"][request.clients] = np.linalg.norm(rows, axis=1)
    memory = None if updates is None else GivenUpdates(updates)
    rng = stream(seed, use=Stream.TIES)
    return recipe.build(population, memory=memory, signals=signals, rng=rng)


def note_on(label: str, design: Design) -> str | None:
    """Return a sentence if a design's numbers need an explanation, else None."""
    law = design.over_rounds()
    if isinstance(law, RoundRobinCycle):
        return (
            f"{label} draws nothing: the clients take turns. These numbers describe a random round "
            f"of its cycle of {law.n_cohorts()}; every single round is biased."
        )
    if not isinstance(law, ChosenDesign):
        return None
    return (
        f"{label} chooses new clients in every round; these numbers describe one such cohort. To "
        f"measure many rounds, call fedcohort.diagnostics.estimated_bias."
    )


def _ratio(value: float, divisor: float) -> float | None:
    return value / divisor if divisor else None
