"""Clauses on recipes: what experiment files, the simulator and Flower rely on."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs import Design, Recipe
from fedcohort.designs.signals import ASKED, PAST
from fedcohort.population import Population
from fedcohort.testing.candidate import Candidate

rng = np.random.default_rng


@dataclass(frozen=True, slots=True, eq=False)
class SomeMemory:
    """The clients' last updates, shape (n_clients, 2)."""

    updates: NDArray[np.float32]


def build_from_recipe(
    recipe: Recipe, population: Population, cohort_size: int, generator: np.random.Generator
) -> Design:
    """Build a recipe's design with made-up knowledge: updates, signals, and groups if it has any.

    Updates are small integers, so that identical, proportional and zero ones all come up; signals
    are small positive numbers, NaN for clients that were not asked or never drawn.
    """
    n = population.n_clients
    changes: dict[str, Any] = {"cohort_size": cohort_size}
    if any(field.name == "groups" for field in fields(recipe)):
        n_groups = cohort_size if cohort_size in (1, 2) else 3
        changes["groups"] = tuple(generator.integers(n_groups, size=n).tolist())
    own = replace(recipe, **changes)
    memory = SomeMemory(generator.integers(-1, 2, size=(n, 2)).astype(np.float32))
    signals: dict[str, NDArray[np.float64]] = {
        name: generator.integers(1, 5, size=n).astype(float) for name in own.signals
    }
    is_new = generator.random(n) < 0.5
    for name in set(signals) & set(PAST):
        signals[name][is_new] = np.nan
    request = own.ask(population, round_=5, rng=generator)
    if request is not None:
        silent = np.setdiff1d(np.arange(n), request.clients)
        signals[request.signal][silent] = np.nan
    return own.build(population, memory, signals, round_=5, rng=generator)


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
    """Build without a memory: in the first round there is none yet."""
    if recipe.signals or any(field.name == "groups" for field in fields(recipe)):
        return
    own = replace(recipe, cohort_size=3)
    try:
        own.build(Population([5, 3, 2, 2, 7]), None, None, round_=0, rng=rng(0))
    except Exception as error:
        found = f"{type(error).__name__} {error}".strip()
        c.demand(False, f"must build without a memory; got {found}. Take updates for zero then.")


def the_same_knowledge_gives_the_same_design(c: Candidate, recipe: Recipe) -> None:
    """Demand that two builds from equal generators draw alike: runs can be repeated."""
    population = Population([5, 3, 2, 2, 7])
    drawn: Sequence[Any] = [
        build_from_recipe(recipe, population, 3, rng(0)).draw_many(rng(1), 20).toarray().tolist()
        for _ in range(2)
    ]

    c.demand(drawn[0] == drawn[1], "two builds must draw alike; they do not. Keep no state.")


def it_says_what_it_depends_on(c: Candidate, recipe: Recipe) -> None:
    """Demand known signals; and that what claims to stay is the same in every round.

    A recipe that says neither ``learns`` nor ``cycles`` and has no signals is built once: what it
    would do in later rounds never comes up.
    """
    known = (*ASKED, *PAST)
    strange = [str(name) for name in recipe.signals if name not in known]
    c.demand(
        not strange,
        f"signals must be among {', '.join(known)}; got {', '.join(strange)}, which nobody sends.",
    )
    if recipe.changes or any(field.name == "groups" for field in fields(recipe)):
        return
    own, population = replace(recipe, cohort_size=3), Population([5, 3, 2, 2, 7])
    memory = SomeMemory(np.array([[1, 0], [0, 1], [1, 1], [-1, 0], [0, -1]], dtype=np.float32))

    first, learnt, later = (
        own.build(population, updates, None, round_=round_, rng=rng(0))
        .draw_many(rng(1), 200)
        .toarray()
        .tolist()
        for updates, round_ in ((None, 0), (memory, 0), (None, 5))
    )

    c.demand(first == learnt, "depends on updates. Say learns: ClassVar[bool] = True.")
    c.demand(first == later, "depends on the round. Say cycles: ClassVar[bool] = True.")
