"""Clauses on recipes: what experiment files, the simulator and Flower rely on."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs import Design, Recipe
from fedcohort.designs.signals import ASKED, PAST
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.testing.candidate import Candidate

rng = np.random.default_rng


@dataclass(frozen=True, slots=True, eq=False)
class SomeMemory:
    """The clients' last updates, shape (n_clients, 2)."""

    updates: NDArray[np.float32]


def build_from_recipe(
    recipe: Recipe, population: Population, cohort_size: int, generator: np.random.Generator
) -> Design:
    """Build a recipe's design with made-up knowledge: groups, updates and signals.

    Updates are small integers, so that identical, proportional and zero ones all come up; signals
    are small positive numbers, NaN for clients that were not asked or never drawn.
    """
    n, own = population.n_clients, replace(recipe, cohort_size=cohort_size)
    labels = generator.integers(cohort_size if cohort_size in (1, 2) else 3, size=n).tolist()
    labelled = Population.of_checked(population.sizes, population.ids, tuple(labels))
    memory = SomeMemory(generator.integers(-1, 2, size=(n, 2)).astype(np.float32))
    signals: dict[str, NDArray[np.float64]] = {
        name: generator.integers(1, 5, size=n).astype(float) for name in own.signals
    }
    is_new = generator.random(n) < 0.5
    for name in set(signals) - set(ASKED):
        signals[name][is_new] = np.nan
    request = own.ask(labelled, round_=5, rng=generator)
    if request is not None:
        silent = np.setdiff1d(np.arange(n), request.clients)
        signals[request.signal][silent] = np.nan
    return own.build(labelled, memory=memory, signals=signals, round_=5, rng=generator)


def an_experiment_file_can_make_it(c: Candidate, recipe: Recipe) -> None:
    """Demand a name, and a default for every hyper-parameter beside the cohort size."""
    name = getattr(type(recipe), "name", None)
    c.demand(bool(name) and isinstance(name, str), f"needs a name: ClassVar[str]; got {name!r}.")
    bare = [
        field.name
        for field in fields(recipe)
        if field.default is MISSING and field.name != "cohort_size"
    ]
    c.demand(not bare, f"hyper-parameters need defaults; {', '.join(bare)} has none. Give it one.")


def it_builds_before_anything_was_sent(c: Candidate, recipe: Recipe) -> None:
    """Make a selector: in the first round no client has sent an update or a past signal."""
    population = Population([5, 3, 2, 2, 7], groups=[0, 1, 2, 0, 1])
    try:
        Selector(replace(recipe, cohort_size=3), population, seed=0)
    except Exception as error:
        c.demand(
            False,
            f"must build before anything was sent; got {_shown(error)}. Take updates for zero "
            f"then, and past signals for NaN.",
        )


def the_same_knowledge_gives_the_same_design(c: Candidate, recipe: Recipe) -> None:
    """Demand that two builds from equal generators draw alike: runs can be repeated."""
    population = Population([5, 3, 2, 2, 7])
    drawn: Sequence[Any] = [
        build_from_recipe(recipe, population, 3, rng(0)).draw_many(20, rng(1)).toarray().tolist()
        for _ in range(2)
    ]

    c.demand(drawn[0] == drawn[1], "two builds must draw alike; they do not. Keep no state.")


def it_declares_what_it_reads(c: Candidate, recipe: Recipe) -> None:
    """Demand signals that somebody fills, and that nothing else than declared is read.

    The round needs no declaration: a recipe that reads it is built anew in every round.
    """
    known = (*ASKED, *PAST)
    strange = [str(name) for name in recipe.signals if name not in known]
    c.demand(
        not strange or type(recipe).observe is not Recipe.observe,
        f"signals must be among {', '.join(known)}, or filled by observe; got "
        f"{', '.join(strange)}, which nobody sends.",
    )
    try:
        build_from_recipe(recipe, Population([5, 3, 2, 2, 7]), 3, rng(0))
    except Exception as error:
        c.demand(False, f"must build from what it declares; got {_shown(error)}")


def _shown(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
