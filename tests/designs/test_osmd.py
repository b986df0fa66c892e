"""OSMD: draws with chances that are learned from the norms of the drawn."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import laws
from fedcohort import OSMD, Population, Selector
from fedcohort.cohort import Cohort
from fedcohort.designs import KVib, MultinomialDesign, OSMDDesign
from fedcohort.designs.osmd import raised, stepped
from fedcohort.errors import DesignError
from selectors_for_tests import assert_goes_on_alike, blank_arrays, observed_by

POPULATION = Population([5, 3, 2])


def slowly_raised(lengths: list[float], floor: float) -> list[float]:
    """Try every number of clients at the floor, the smallest first."""
    n, total = len(lengths), sum(lengths)
    order = sorted(range(n), key=lambda i: lengths[i])
    for k in range(n + 1):
        rest = sum(lengths[i] for i in order[k:])
        own = dict.fromkeys(order[:k], floor / n)
        own |= {i: lengths[i] / rest * (1 - floor * k / n) for i in order[k:]}
        if min(own.values()) >= floor / n * (1 - 1e-12) or k == n:
            assert total > 0
            return [own[i] for i in range(n)]
    raise AssertionError


def test_the_worked_example_of_one_draw() -> None:
    """p = (.5, .3, .2), client 2 drawn with norm 1: w = 0.6, feedback 0.04, exponent 0.108."""
    recipe = OSMD(1, rate=0.1, floor=0.4)
    kept = blank_arrays(recipe, 3)
    design = recipe.build(POPULATION, kept=kept, rng=0)
    assert design.weight_per_draw().round(6).tolist() == [1.5, 0.9, 0.6]

    observed_by(recipe, kept, POPULATION, [0, 0, 1], [0, 0, 1.0])

    assert kept["largest"].tolist()[2] == pytest.approx(0.04)
    chances = recipe.build(POPULATION, kept=kept, rng=0).chances  # type: ignore[attr-defined]
    assert chances.round(6).tolist() == [0.321125, 0.321125, 0.357749]


def test_the_worked_example_of_a_client_that_is_drawn_twice() -> None:
    recipe = OSMD(2, rate=0.1, floor=0.4)
    kept = blank_arrays(recipe, 3)

    observed_by(recipe, kept, POPULATION, [0, 0, 2], [0, 0, 1.0])

    chances = recipe.build(POPULATION, kept=kept, rng=0).chances  # type: ignore[attr-defined]
    assert chances.round(6).tolist() == [0.32728, 0.32728, 0.345439]


def test_the_published_program_counts_repeats_once() -> None:
    """Its exponent is 0.027 in the same example."""
    law = np.full((3, 1), 1 / 3)
    slope = np.array([[0.0], [0.0], [0.04 / (4 * (1 / 3) ** 3)]])

    assert stepped(law, np.array([0.1]), slope, 0.4).ravel().round(6).tolist() == [
        0.33032,
        0.33032,
        0.33936,
    ]


def test_the_worked_example_of_the_projection() -> None:
    assert raised(np.array([0.05, 0.25, 0.7]), 0.4).round(6).tolist() == [
        0.133333,
        0.22807,
        0.638596,
    ]


def test_the_worked_example_of_experts_and_their_rates() -> None:
    """R = 1000, n = 100, m = 5, a bound of 1: 8 experts, from 7.678e-8 to 9.827e-6."""
    recipe = OSMD(5, rounds=1000, bound=1.0)

    assert recipe._n_experts(100) == 8
    rates = recipe._rates(100, 8, 1.0)
    assert [float(f"{rates[k]:.4g}") for k in (0, -1)] == [7.678e-08, 9.827e-06]
    assert np.allclose(rates[1:] / rates[:-1], 2)


lengths = st.lists(st.floats(0, 1e6), min_size=1, max_size=7).filter(any)


@given(lengths, st.floats(0.01, 1))
def test_the_projection_is_that_of_the_slow_twin(given: list[float], floor: float) -> None:
    found = raised(np.array(given), floor)

    assert np.allclose(found, slowly_raised(given, floor), rtol=1e-9, atol=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found >= floor / len(given) * (1 - 1e-12)).all()


def slow_round(
    state: dict[str, list[list[float]]], counts: list[int], squares: list[float], recipe: OSMD
) -> list[float]:
    """Return the chances of a round, and learn from it: plain loops, all formulas as printed."""
    n, m, bound = len(counts), recipe.cohort_size, recipe.bound
    assert bound is not None
    experts = len(state["laws"])
    rate = recipe.floor / n * (8 * m / recipe.rounds) ** 0.5
    z = [
        (1 + 1 / experts) / (e * (e + 1)) * np.exp(-rate * sum(state["losses"][e - 1]) / bound)
        for e in range(1, experts + 1)
    ]
    z = [own / sum(z) for own in z]
    chances = [sum(z[e] * state["laws"][e][i] for e in range(experts)) for i in range(n)]
    slowest = m**2 * recipe.floor**3 / (n**3 * bound) * (np.log(n) / 2 / recipe.rounds) ** 0.5
    for e in range(experts):
        law, new = state["laws"][e], []
        for i in range(n):
            slope = counts[i] * squares[i] / (m**2 * law[i] ** 2 * chances[i])
            new.append(law[i] * np.exp(2**e * slowest * slope))
            state["losses"][e][i] += counts[i] * squares[i] / (m**2 * law[i] * chances[i])
        state["laws"][e] = slowly_raised(new, recipe.floor)
    return chances


def test_experts_follow_their_slow_twin() -> None:
    """Thirty rounds of feedback with all experts; chances are rounded to 2^-40 of the largest."""
    n, generator = 6, np.random.default_rng(0)
    recipe = OSMD(3, rounds=30, bound=0.5, floor=0.3)
    population = Population(generator.integers(1, 9, size=n))
    experts = recipe._n_experts(n)
    state = {
        "laws": [[1 / n] * n for _ in range(experts)],
        "losses": [[0.0] * n for _ in range(experts)],
    }
    kept = blank_arrays(recipe, n)
    assert experts > 3
    for _ in range(30):
        counts = generator.multinomial(3, [1 / n] * n).tolist()
        norms = generator.exponential(size=n).tolist()
        squares = ((population.importance * norms) ** 2).tolist()
        design = recipe.build(population, kept=kept, rng=0)

        observed_by(recipe, kept, population, counts, norms)

        expected = slow_round(state, counts, squares, recipe)
        assert isinstance(design, OSMDDesign)
        assert np.allclose(design.chances, expected, rtol=1e-9)
    assert np.ptp(kept["laws"], axis=0).max() > 0.01  # they have learned


def test_the_mean_weight_is_the_importance_after_every_history() -> None:
    """Two rounds of three clients: the law of the third round, exactly, after each history."""
    recipe, norms = OSMD(2, rounds=3), [1.0, 4.0, 0.0]
    outcomes = sorted(
        {tuple(np.bincount(pair, minlength=3)) for pair in product(range(3), repeat=2)}
    )
    seen = set()
    for first, second in product(outcomes, repeat=2):
        kept = blank_arrays(recipe, 3)
        observed_by(recipe, kept, POPULATION, first, norms)
        observed_by(recipe, kept, POPULATION, second, norms)
        design = recipe.build(POPULATION, kept=kept, rng=0)
        assert isinstance(design, OSMDDesign)
        seen.add(tuple(design.units.tolist()))

        chance = [Fraction(unit, design.units.sum().item()) for unit in design.units.tolist()]
        law = laws.law(design)
        assert sum(law.values()) == 1
        for i, share in enumerate(laws.importance(POPULATION)):
            mean = sum(p * counts[i] * share / (2 * chance[i]) for counts, p in law.items())
            assert mean == share
    assert len(seen) > 10


def test_with_importance_as_chances_it_is_multinomial() -> None:
    sizes = [7, 1, 0, 4]
    updates = np.arange(8.0).reshape(4, 2)
    own = OSMDDesign(Population(sizes), 3, chances=sizes)
    known = MultinomialDesign(Population(sizes), 3)

    assert own.aggregate_variance(updates) == pytest.approx(known.aggregate_variance(updates))
    assert np.allclose(own.covariance(), known.covariance(), atol=1e-12)


def test_a_selector_learns_which_clients_send_long_updates() -> None:
    selector = Selector(OSMD(2, rounds=200), [1] * 6, seed=0)
    for _ in range(200):
        cohort = selector.draw()
        selector.aggregate({i: np.ones(2) * (10 if i == 0 else 1) for i in cohort.ids})
    design = selector.next_design()

    assert isinstance(design, OSMDDesign)
    assert design.chances[0] > 2 * design.chances[1:].max()
    assert design.chances.min() >= 0.4 / 6 * (1 - 1e-6)


def test_the_unit_of_the_updates_does_not_matter() -> None:
    """Norms of a thousandth lead to the same chances."""
    drawn = []
    for unit in (1.0, 1e-3):
        selector = Selector(OSMD(2, rounds=50), [5, 3, 2, 1], seed=0)
        for _ in range(50):
            cohort = selector.draw()
            selector.aggregate({i: unit * np.ones(2) * (i + 1) for i in cohort.ids})
        drawn.append(selector.next_design().expected_counts())

    assert np.allclose(drawn[0], drawn[1], rtol=1e-9)


@pytest.mark.parametrize("length", [0.0, 1e-160, 1e300])
@pytest.mark.parametrize("recipe", [OSMD(2, rounds=50), KVib(2, rounds=50)])
def test_the_mean_weight_is_the_importance_for_updates_of_any_length(
    recipe: OSMD | KVib, length: float
) -> None:
    kept = blank_arrays(recipe, 3)
    for _ in range(3):
        observed_by(recipe, kept, POPULATION, [1, 1, 0], [length, 1.0, 0.0])
        design = recipe.build(POPULATION, kept=kept, rng=0)
        mean = design.expected_counts() * design.weight_per_draw()
        assert np.allclose(mean, POPULATION.importance, rtol=1e-12)
        observed_by(recipe, kept, POPULATION, [1, 0, 0], [length, 0.0, 0.0])

    assert all(not np.isinf(own).any() for own in kept.values())


def test_tiny_updates_change_nothing() -> None:
    recipe = OSMD(2, rounds=50)
    kept = blank_arrays(recipe, 3)
    for _ in range(3):
        observed_by(recipe, kept, POPULATION, [1, 1, 0], [1e-160, 1e-161, 0.0])
    chances = recipe.build(POPULATION, kept=kept, rng=0).expected_counts()

    assert np.allclose(chances, 2 / 3)


def test_a_client_that_was_away_keeps_its_share() -> None:
    """Nothing is learned while its update is zero: the chances are those of before."""
    selector = Selector(OSMD(1, rate=0.1), [1, 1, 1], seed=0)
    for length in (3.0, 3.0, 3.0):
        cohort = selector.draw()
        selector.aggregate({i: np.array([length]) for i in cohort.ids})
    before = selector.next_design().expected_counts()
    for _ in range(3):
        cohort = selector.draw(available=[0, 1])
        selector.aggregate({i: np.array([0.0]) for i in cohort.ids})

    assert np.allclose(selector.next_design().expected_counts(), before, rtol=1e-9)


def test_members_come_and_go_and_are_forgotten() -> None:
    selector = Selector(OSMD(1, rounds=20), {"a": 1, "b": 1}, seed=0)
    for _ in range(5):
        selector.aggregate({i: np.array([4.0 if i == "a" else 1.0]) for i in selector.draw().ids})
    selector.clients = {"a": 1, "b": 1, "c": 2}
    cohort = selector.draw()
    selector.aggregate({i: np.array([1.0]) for i in cohort.ids})
    selector.forget(["a"])

    chances = selector.next_design().expected_counts()
    assert chances.shape == (2,)
    assert chances.sum() == pytest.approx(1)


def test_a_loaded_selector_goes_on_bit_for_bit(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    selector = Selector(OSMD(2, rounds=50), [5, 3, 2, 1], seed=0, estimator="difference")

    assert_goes_on_alike(selector, tmp_path / "state", lambda i: generator.normal(size=3))


@pytest.mark.parametrize(
    ("chances", "message"),
    [
        ([1.0, 0.0, 1.0], r"OSMDDesign: chances must be finite and above 0 .*client 1 has 0.0"),
        ([1.0, np.nan, 1.0], r"client 1 has nan. Mix them with equal chances"),
        ([1.0, 1.0], r"OSMDDesign: chances must be numbers of shape \(3,\); got float64"),
    ],
)
def test_chances_that_cannot_be_used_are_refused(chances: list[float], message: str) -> None:
    with pytest.raises(DesignError, match=message):
        OSMDDesign(POPULATION, 2, chances)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"floor": 0.0}, r"OSMD: floor must be a number above 0"),
        ({"floor": 1.5}, r"at most 1; got 1.5"),
        ({"rounds": 0}, r"OSMD: rounds must be a whole number of at least 1; got 0"),
        ({"rate": -1.0}, r"OSMD: rate must be a number above 0; got -1.0"),
        ({"bound": 0}, r"OSMD: bound must be a number above 0; got 0"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(DesignError, match=message):
        replace(OSMD(2), **settings)  # type: ignore[arg-type]


def test_weights_of_a_drawn_cohort_are_counted() -> None:
    cohort = OSMDDesign(POPULATION, 4, [1.0, 1.0, 2.0]).draw(0)

    assert isinstance(cohort, Cohort)
    assert (
        cohort.weights.tolist()
        == (cohort.counts * np.array([0.5, 0.3, 0.1])[cohort.clients]).tolist()
    )
