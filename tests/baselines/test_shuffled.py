"""Clients that take part once in a pass, in random order."""

from itertools import chain, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import Population, Selector, Shuffled, diagnostics
from fedcohort.baselines.shuffled import ShuffledDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import larger_populations


@given(larger_populations(), st.integers(0, 39), st.integers(0, 5), st.integers(0, 10**6))
def test_in_a_pass_everyone_comes_once_and_weighs_its_importance_on_average(
    population: Population, number: int, number_of_pass: int, seed: int
) -> None:
    n = int(np.count_nonzero(population.sizes))
    m = 1 + number % n
    rounds = -(-n // m)

    first = number_of_pass * rounds
    designs = [ShuffledDesign(population, m, first + t, seed=seed) for t in range(rounds)]

    turns = np.concatenate([design.chosen for design in designs])
    assert sorted(turns.tolist()) == np.flatnonzero(population.sizes).tolist()
    assert [len(design.chosen) for design in designs[:-1]] == [m] * (rounds - 1)
    mean = np.sum([design.weight_per_draw() for design in designs], axis=0) / rounds
    np.testing.assert_allclose(mean, population.importance, rtol=100 * 2.0**-53)


def test_passes_have_orders_of_their_own() -> None:
    """Over 2,400 passes each order of 4 clients comes 100 times; false alarms 1e-6 together.

    It sees an order whose chance is half as large again.
    """
    population, seen = Population([4, 3, 2, 1]), dict.fromkeys(permutations(range(4)), 0.0)
    for number in range(2400):
        rounds = range(4 * number, 4 * number + 4)
        order = [int(ShuffledDesign(population, 1, t).chosen[0]) for t in rounds]
        seen[tuple(order)] += 1

    error = np.sqrt(2400 * (1 / 24) * (23 / 24))
    assert agree(np.array(list(seen.values())), np.full(24, 100.0), np.full(24, error))


def test_a_round_is_biased_and_a_pass_is_not() -> None:
    population = Population([5, 4, 3, 2, 1])
    design = ShuffledDesign(population, 2, 0)

    found = diagnostics.estimated_bias(Shuffled(2), population, rng=0, rounds=6)

    assert not design.unbiased
    assert np.abs(diagnostics.bias(design)).sum() > 0.5
    np.testing.assert_allclose(found.values, 0, atol=1e-15)


@pytest.mark.parametrize("round_", range(3))
def test_the_most_turns_in_a_row_are_those_that_occur(round_: int) -> None:
    """5 clients, 2 a round: a pass of 3 rounds. Over many orders the bound is reached."""
    population = Population([1] * 5)
    for rounds in range(1, 9):
        most = 0
        for seed in range(60):
            own = [ShuffledDesign(population, 2, round_ + t, seed=seed) for t in range(rounds)]
            most = max(most, int(np.sum([each.expected_counts() for each in own], axis=0).max()))
        assert ShuffledDesign(population, 2, round_).participations(rounds) == most


def test_a_selector_plays_passes_and_goes_on_after_a_restart() -> None:
    selector = Selector(Shuffled(2), [3, 1, 2, 5, 4], seed=0)
    seen = []
    for _ in range(6):
        seen.append(list(selector.draw().ids))
        selector.skip()
        selector = Selector.of_state(selector.state())

    assert sorted(chain(*seen[:3])) == sorted(chain(*seen[3:])) == [0, 1, 2, 3, 4]
    assert seen[:3] != seen[3:]


def test_more_draws_than_clients_are_refused() -> None:
    with pytest.raises(DesignError, match="at most the 2 clients of positive size; got 3"):
        ShuffledDesign(Population([1, 0, 1]), 3, 0)
