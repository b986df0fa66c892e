"""Privacy events: what dp-accounting is told, against neighbours compared by enumeration."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest

import laws
from fedcohort import Design, Population, Selector, diagnostics
from fedcohort.designs import (
    RECIPES,
    CohortMeanDesign,
    MultinomialDesign,
    PoissonDesign,
    RoundRobinDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    StratifiedDesign,
    TournamentDesign,
    UniformDesign,
)
from fedcohort.designs.catalogue import make_recipe
from fedcohort.errors import DesignError, SelectorError
from fedcohort.memory import UpdateMemory

GAUSSIAN = dp.GaussianDpEvent
#: The accountants round the privacy loss up to multiples of this.
INTERVAL = 1e-4
#: A bound on the error of the integral: an eighth of the squared step, times the slope at 0.
QUADRATURE = 1e-9


def outcomes(design: Design) -> list[tuple[float, np.ndarray]]:
    """Return the probability and the clients' weights of every cohort, by enumeration."""
    per_draw = design.weight_per_draw()
    found = laws.law(design).items()
    return [(float(chance), np.array(counts) * per_draw) for counts, chance in found]


def delta_between(
    first: list[tuple[float, float]], second: list[tuple[float, float]], sigma: float, eps: float
) -> float:
    """Return the hockey-stick divergence of two mixtures of normals: (probability, mean) each."""
    means = [mean for _, mean in first + second]
    grid = np.linspace(min(means) - 10 * sigma, max(means) + 10 * sigma, 100_001)

    def density(mixture: list[tuple[float, float]]) -> np.ndarray:
        shape = sum(p * np.exp(-0.5 * ((grid - mean) / sigma) ** 2) for p, mean in mixture)
        return np.asarray(shape / (sigma * np.sqrt(2 * np.pi)))

    above = np.maximum(density(first) - np.exp(eps) * density(second), 0.0)
    return float(np.trapezoid(above, grid))


def worst_delta(
    design: Design, updates: np.ndarray, other: float, noise: float, eps: float
) -> float:
    """Return the largest delta over clients whose update becomes ``other``, and both directions."""
    cohorts, sigma, found = outcomes(design), noise * design.largest_weight(), 0.0
    for client in np.flatnonzero(design.population.sizes):
        changed = updates.copy()
        changed[client] = other
        before, after = ([(p, float(w @ each)) for p, w in cohorts] for each in (updates, changed))
        for pair in ((before, after), (after, before)):
            found = max(found, delta_between(*pair, sigma, eps))
    return found


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [5, 3, 2, 2]])
def test_coins_cost_what_enumeration_of_the_cohorts_gives(sizes: list[int]) -> None:
    design = PoissonDesign(Population(sizes), 2)
    event = design.privacy_event(noise=0.8)
    alone = np.zeros(4)
    alone[0] = 1.0  # only the client with the largest chance has an update

    epsilon = diagnostics.epsilon(event, 1e-3)

    assert event == dp.PoissonSampledDpEvent(max(sizes) * 2 / sum(sizes), GAUSSIAN(0.8))
    assert worst_delta(design, alone, 0.0, 0.8, epsilon) <= 1e-3 + QUADRATURE
    assert worst_delta(design, alone, 0.0, 0.8, epsilon - 2 * INTERVAL) >= 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_uniform_draws_cost_no_more_than_is_claimed(seed: int) -> None:
    design = UniformDesign(Population([4, 3, 3, 2]), 2, unbiased=True)
    event = design.privacy_event(noise=1.5, relation="replace-one")
    updates = np.random.default_rng(seed).choice([-1.0, 1.0], size=4)
    updates[0] = 1.0

    epsilon = diagnostics.epsilon(event, 1e-2, "replace-one")

    assert event == dp.SampledWithoutReplacementDpEvent(4, 2, GAUSSIAN(0.75))
    assert 0 < worst_delta(design, updates, -1.0, 1.5, epsilon) <= 1e-2
    assert epsilon < diagnostics.epsilon(GAUSSIAN(0.75), 1e-2, "replace-one")


POPULATION = Population([5, 3, 2, 2])
BY_SIZE: list[Callable[[], Design]] = [
    lambda: MultinomialDesign(POPULATION, 2),
    lambda: SizeClusteredDesign(POPULATION, 2, rng=0),
    lambda: StratifiedDesign(POPULATION, 3, [0, 0, 1, 1], rng=0),
    lambda: TournamentDesign(POPULATION, 2, groups=[0, 0, 1, 1], rng=0),
    lambda: PoissonDesign(POPULATION, 3),
    lambda: UniformDesign(POPULATION, 2),
    lambda: RoundRobinDesign(POPULATION, 2, 0).over_rounds(),
]


@pytest.mark.parametrize("build", BY_SIZE)
def test_the_largest_weight_is_that_of_all_cohorts(build: Callable[[], Design]) -> None:
    design = build()
    largest = max(weights.max() for _, weights in outcomes(design))

    assert design.largest_weight() == pytest.approx(largest, abs=1e-15)
    assert design.privacy_event(2.0, amplified=False) == GAUSSIAN(2.0)
    assert design.privacy_event(2.0, amplified=False, relation="replace-one") == GAUSSIAN(1.0)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("build", BY_SIZE)
def test_no_pair_of_neighbours_costs_more_than_is_claimed(
    build: Callable[[], Design], relation: Any
) -> None:
    """One update turns into zero, or into its opposite; cohorts are secret, or each is known."""
    design, other = build(), 0.0 if relation == "zero-out" else -1.0
    event = design.privacy_event(1.5, relation=relation, amplified=False)
    eps, sigma = diagnostics.epsilon(event, 1e-2, relation), 1.5 * design.largest_weight()

    known = [
        delta_between([(1.0, weight)], [(1.0, other * weight)], sigma, eps)
        for _, weights in outcomes(design)
        for weight in weights.tolist()
    ]

    assert max(known) == pytest.approx(1e-2, abs=QUADRATURE)
    assert worst_delta(design, np.ones(4), other, 1.5, eps) <= 1e-2 + QUADRATURE


def test_the_largest_share_of_a_cohort_mean_has_the_smallest_others() -> None:
    design = CohortMeanDesign(POPULATION, 3, rng=0)

    assert design.over_rounds().largest_weight() == 5 / 9
    assert design.privacy_event(relation="replace-one") == GAUSSIAN(0.5)  # not amplified


def test_no_design_is_amplified_where_theory_is_silent() -> None:
    capped = PoissonDesign(Population([8, 1, 1]), 2)  # the first client comes in every round

    assert capped.privacy_event() == GAUSSIAN(1.0)
    assert PoissonDesign(POPULATION, 2).privacy_event(relation="replace-one") == GAUSSIAN(0.5)
    assert UniformDesign(POPULATION, 2).privacy_event() == GAUSSIAN(1.0)
    assert UniformDesign(POPULATION, 4).privacy_event(relation="replace-one") == GAUSSIAN(0.5)


@pytest.mark.parametrize(("n", "m", "rounds"), [(5, 2, 7), (6, 4, 3), (4, 4, 5), (7, 1, 15)])
def test_turns_are_counted(n: int, m: int, rounds: int) -> None:
    population = Population([1] * n)
    seen = [RoundRobinDesign(population, m, t).chosen.tolist() for t in range(rounds)]
    most = max(sum(client in cohort for cohort in seen) for client in range(n))
    event = RoundRobinDesign(population, m, 0).privacy_event(rounds=rounds)

    assert most == ceil(rounds * m / n)
    assert event == (GAUSSIAN(1.0) if most == 1 else dp.SelfComposedDpEvent(GAUSSIAN(1.0), most))


def test_epsilon_is_that_of_the_accountants() -> None:
    delta = 1000**-1.1
    poisson = PoissonDesign(Population([7] * 1000), 10)
    event = poisson.privacy_event(rounds=600)
    replace_special = dp.NeighboringRelation.REPLACE_SPECIAL
    by_rdp = dp.rdp.RdpAccountant(neighboring_relation=replace_special).compose(event)

    known = diagnostics.epsilon(poisson.privacy_event(rounds=600, amplified=False), delta)

    assert diagnostics.epsilon(event, delta) == pytest.approx(0.968, abs=1e-3)
    assert by_rdp.get_epsilon(delta) == pytest.approx(1.187, abs=1e-3)
    assert known == pytest.approx(dp.get_epsilon_gaussian(600**-0.5, delta))


def test_an_epsilon_needs_its_own_relation() -> None:
    event = PoissonDesign(POPULATION, 2).privacy_event()

    with pytest.raises(DesignError, match="relation 'replace-one' does not fit Poisson"):
        diagnostics.epsilon(event, 1e-3, "replace-one")


def built(name: str) -> Design:
    """Build a design that has seen updates, and signals if it asks for them."""
    recipe = make_recipe(name, 2, {"allocation": "neyman"} if name == "stratified" else {})
    population = Population([5, 3, 2, 2], groups=[0, 0, 1, 1])
    updates = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 1.0]])
    signals = {signal: np.arange(1.0, 5.0) for signal in recipe.signals}
    assert bool(recipe.reads) == bool(recipe.learns or recipe.signals or recipe.keeps)
    return recipe.build(population, memory=UpdateMemory.of(updates), signals=signals, rng=0)


@pytest.mark.parametrize("name", RECIPES)
def test_a_choice_by_updates_losses_or_durations_is_refused(name: str) -> None:
    design = built(name)
    recipe: Any = RECIPES[name]
    reads = recipe.learns or recipe.signals or recipe.keeps

    assert bool(design.reads) == bool(reads)
    if reads:
        with pytest.raises(DesignError, match=r"chooses by .* so the choice itself reveals them"):
            design.privacy_event()


def test_a_tree_reads_what_it_is_built_from() -> None:
    updates = np.eye(4)

    assert SimilarityClusteredDesign(POPULATION, 2, updates, rng=0).reads == "clients' updates"
    assert TournamentDesign(POPULATION, 2, groups=[0] * 4, rng=0).reads == ""


def test_a_selector_speaks_for_its_rounds() -> None:
    selector = Selector(make_recipe("poisson", 2, {}), [1] * 8, max_norm=1.0)

    found = selector.privacy_event(30, noise=2.0)

    assert found == dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.25, GAUSSIAN(2.0)), 30)
    assert selector.round_ == 0


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("similarity", {}, "recipe 'similarity', which reads clients' updates"),
        ("norm-optimal", {}, "reads clients' update norm"),
        ("size", {"estimator": "difference"}, "which remembers updates"),
        ("size", {"max_norm": "auto"}, "max_norm='auto', which follows past updates"),
        ("size", {"on_failure": "renormalise"}, "which raises other weights"),
        ("size", {"extra": 1}, "extra=1, which keeps the fastest"),
    ],
)
def test_a_selector_whose_weights_depend_on_updates_is_refused(
    name: str, settings: dict[str, Any], words: str
) -> None:
    selector = Selector(make_recipe(name, 2, {}), [1] * 8, **settings)

    with pytest.raises(SelectorError, match=words):
        selector.privacy_event(10)
