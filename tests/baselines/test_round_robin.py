"""Clients that take turns."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import Population, RoundRobin, Selector, diagnostics
from fedcohort.designs import RoundRobinDesign, UniformDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import larger_populations, rng


def test_by_hand_four_clients_two_a_round() -> None:
    """Weights are p n/m = p * 4/2; the order is the seed's."""
    population = Population([4, 3, 2, 1, 0])
    circle = np.random.default_rng(7).permutation(4)

    for round_ in range(4):
        cohort = RoundRobinDesign(population, 2, round_, seed=7).draw(rng())

        turn = sorted(circle[:2] if round_ % 2 == 0 else circle[2:])
        assert cohort.clients.tolist() == turn
        assert cohort.weights == pytest.approx(2 * population.importance[turn])
        assert cohort.residual == pytest.approx(1 - cohort.weights.sum())


@given(larger_populations(), st.integers(0, 39), st.integers(0, 10**6))
def test_the_weights_of_a_cycle_average_to_the_importance(
    population: Population, number: int, first: int
) -> None:
    n = int(np.count_nonzero(population.sizes))
    m = 1 + number % n
    cycle = n // math.gcd(n, m)

    designs = [RoundRobinDesign(population, m, first + t) for t in range(cycle)]

    turns = np.sum([design.expected_counts() for design in designs], axis=0)
    assert (turns == np.where(population.sizes > 0, m / math.gcd(n, m), 0)).all()
    mean = np.mean([design.weight_per_draw() for design in designs], axis=0)
    # At most 40 terms, each of a few roundings.
    np.testing.assert_allclose(mean, population.importance, rtol=100 * 2.0**-53)


def test_every_round_is_biased() -> None:
    design = RoundRobinDesign(Population([5, 3, 2]), 1, 0)

    bias = diagnostics.bias(design)

    (turn,) = design.chosen
    others = [i for i in range(3) if i != turn]
    assert not design.unbiased
    assert bias[turn] == pytest.approx(2 * design.population.importance[turn])
    assert bias[others].tolist() == [-design.population.importance[i] for i in others]


def test_over_the_orders_a_round_is_an_unbiased_uniform_draw() -> None:
    """3000 seeds, 2 of 5: false alarms 1e-6; sees a client whose chance, .4, is .05 off."""
    population, seen = Population([5, 4, 3, 2, 1]), np.zeros(5)
    for seed in range(3000):
        seen[RoundRobinDesign(population, 2, 3, seed=seed).chosen] += 1

    assert agree(seen, np.full(5, 1200.0), np.full(5, np.sqrt(3000 * 0.24)))
    uniform = UniformDesign(population, 2, unbiased=True)
    turn = RoundRobinDesign(population, 2, 3)
    np.testing.assert_allclose(
        turn.weight_per_draw()[turn.chosen], uniform.weight_per_draw()[turn.chosen], rtol=1e-15
    )


def test_the_measured_bias_of_whole_cycles_is_zero_and_of_one_round_is_not() -> None:
    population = Population([5, 4, 3, 2, 1])

    found = diagnostics.estimated_bias(RoundRobin(2), population, rng=rng(), rounds=10)

    np.testing.assert_allclose(found.values, 0, atol=1e-15)


def test_the_recipe_takes_the_next_in_every_round_and_no_generator_matters() -> None:
    recipe, population = RoundRobin(2, seed=3), Population([1] * 6)

    designs = [recipe.build(population, round_=t, rng=rng(t)) for t in range(3)]

    turns = [design.draw(rng()).clients for design in designs]
    assert sorted(np.concatenate(turns).tolist()) == list(range(6))


def test_a_selector_builds_it_anew_in_every_round() -> None:
    selector = Selector(RoundRobin(2, seed=3), [1] * 6, seed=0)
    drawn: list[Any] = []

    for _ in range(3):
        drawn += selector.draw().ids
        selector.skip()

    assert sorted(drawn) == list(range(6))


@pytest.mark.parametrize(("round_", "seed"), [(1.5, 0), (0, "x"), (-1, 0), (0, -1)])
def test_rounds_and_seeds_are_whole_numbers(round_: object, seed: object) -> None:
    name = "seed" if round_ == 0 else "round_"
    with pytest.raises(DesignError, match=rf"RoundRobinDesign: {name} must be a whole number of"):
        RoundRobinDesign(Population([1, 2]), 1, round_, seed=seed)  # type: ignore[arg-type]
