"""Small selectors that tests share: clients, updates, and recipes of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort import Cohort, Design, Population, Recipe, Selector, SimilarityClustered
from fedcohort.designs import Knowledge, MultinomialDesign, ObservedRound

SIZES = {"a": 4, "b": 3, "c": 3, "d": 2, "e": 2, "f": 2}


def updates_for(cohort: Cohort, dimension: int = 3) -> dict[Any, NDArray[np.float64]]:
    """Updates that tell rounds and clients apart; halves, so that sums are exact."""
    return {
        each: np.arange(dimension) + 4.0 * position + 0.5 * cohort.round_
        for each, position in zip(cohort.ids, cohort.clients.tolist(), strict=True)
    }


def played(selector: Selector, rounds: int, dimension: int = 3) -> list[Cohort]:
    """Play rounds in which everyone answers; return who was drawn."""
    cohorts = []
    for _ in range(rounds):
        cohorts.append(selector.draw())
        selector.aggregate(updates_for(cohorts[-1], dimension))
    return cohorts


def experienced() -> Selector:
    """A selector whose memory, estimator, log and signals all have something to lose."""
    made = Selector(
        SimilarityClustered(3), SIZES, seed=1, estimator="difference", log=True, sketch=2
    )
    played(made, 3)
    return made


def drawn(cohorts: list[Cohort]) -> list[tuple[int, list[Any], list[int], list[float]]]:
    """What cohorts consist of, to be compared."""
    return [
        (each.round_, list(each.ids), each.counts.tolist(), each.weights.tolist())
        for each in cohorts
    ]


def frozen(selector: Selector) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The selector's state, to be compared bit for bit."""
    return {
        name: (str(array.dtype), array.shape, array.tobytes())
        for name, array in selector.state().items()
    }


@dataclass(frozen=True)
class Largest(Recipe):
    """Draws by the norms of last updates, which it notes itself; not one of the library's."""

    name: ClassVar[str] = "largest"
    keeps: ClassVar[tuple[str, ...]] = ("norm", "times")

    def observe(self, kept: Mapping[str, NDArray[np.float64]], observed: ObservedRound) -> None:
        clients = observed.cohort.clients
        kept["norm"][clients] = observed.norms
        kept["times"][clients] = np.nan_to_num(kept["times"][clients]) + 1

    def design(self, population: Population, known: Knowledge) -> Design:
        sizes = np.rint(population.sizes * (1 + np.nan_to_num(known.kept("norm"))))
        return MultinomialDesign(
            Population(sizes.astype(int), ids=population.ids), self.cohort_size
        )


@dataclass(frozen=True)
class Rotating(Recipe):
    """Draws one client alone, another one in every round: it reads the round."""

    name: ClassVar[str] = "rotating"

    def design(self, population: Population, known: Knowledge) -> Design:
        there = np.flatnonzero(population.sizes)
        sizes = np.zeros(population.n_clients, dtype=int)
        sizes[there[known.round_ % len(there)]] = 1
        return MultinomialDesign(Population(sizes), self.cohort_size)


def blank_arrays(recipe: Recipe, n: int) -> dict[str, NDArray[np.float64]]:
    """A recipe's own arrays before the first round."""
    return {name: np.full(n, np.nan) for name in recipe.keeps}


def observed_by(
    recipe: Recipe,
    kept: dict[str, NDArray[np.float64]],
    population: Population,
    counts: Any,
    norms: Any,
) -> Design:
    """Let a recipe observe a round with these counts and norms of all clients; return its law."""
    design, clients = recipe.build(population, kept=kept, rng=0), np.flatnonzero(counts)
    cohort = design.weigh(clients, np.array(counts, dtype=np.int64)[clients])
    own = np.array(norms, dtype=np.float64)[clients]
    recipe.observe(kept, ObservedRound(0, design, population, cohort, cohort, own))
    return design


def assert_goes_on_alike(selector: Selector, path: Path, make: Callable[[Any], Any]) -> None:
    """A saved and loaded selector draws, weighs and aggregates the same, bit for bit."""
    for _ in range(5):
        selector.aggregate({i: make(i) for i in selector.draw().ids})
    selector.save(path)
    loaded = Selector.load(path)
    for _ in range(5):
        one, other = selector.draw(), loaded.draw()
        assert one.ids == other.ids
        assert one.weights.tolist() == other.weights.tolist()
        sent = {i: make(i) for i in one.ids}
        assert repr(selector.aggregate(sent)) == repr(loaded.aggregate(sent))
        state = loaded.state()
        assert all(own.tobytes() == state[name].tobytes() for name, own in selector.state().items())
