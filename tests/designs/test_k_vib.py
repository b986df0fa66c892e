"""K-Vib: coins with chances that are learned from the norms of the drawn."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import laws
from fedcohort import KVib, Population, Selector
from fedcohort.designs import KVibDesign
from fedcohort.designs.poisson import capped_chances
from fedcohort.errors import DesignError
from selectors_for_tests import assert_goes_on_alike, blank_arrays, observed_by

FOUR = Population([1] * 4)


def test_the_worked_example() -> None:
    """n = 4, m = 2, R = 16, bound 0.1; clients 0 and 3 with p times norm 1 and 0.5."""
    recipe = KVib(2, rounds=16, bound=0.1)
    kept = blank_arrays(recipe, 4)

    first = observed_by(recipe, kept, FOUR, [1, 0, 0, 1], [4.0, 0, 0, 2.0])
    design = recipe.build(FOUR, kept=kept, rng=0)

    assert first.expected_counts().tolist() == [0.5] * 4
    assert np.nan_to_num(kept["sums"]).tolist() == [2.0, 0.0, 0.0, 0.5]
    assert isinstance(design, KVibDesign)
    assert design.mix == pytest.approx(0.5)
    assert design.lengths.round(6).tolist() == [1.549193, 0.632456, 0.632456, 0.948683]
    best = capped_chances(design.lengths, 2)
    assert best.round(6).tolist() == [0.823429, 0.336163, 0.336163, 0.504245]
    chances = design.expected_counts().round(6).tolist()
    assert chances == [0.661714, 0.418082, 0.418082, 0.502122]
    weights = design.weight_per_draw().round(6).tolist()
    assert weights == [0.377807, 0.597969, 0.597969, 0.497887]


def test_the_worked_example_without_the_root() -> None:
    """As the published program, but capped."""
    recipe = KVib(2, rounds=16, bound=0.1, root=False)
    kept = blank_arrays(recipe, 4)

    observed_by(recipe, kept, FOUR, [1, 0, 0, 1], [4.0, 0, 0, 2.0])
    design = recipe.build(FOUR, kept=kept, rng=0)

    assert isinstance(design, KVibDesign)
    best = capped_chances(design.lengths, 2)
    assert best.round(6).tolist() == [1.0, 0.235294, 0.235294, 0.529412]
    # The release gives client 0 the factor of those below the cap.
    below = design.lengths[1:].sum()
    assert round(design.lengths[0].item() / below, 6) == 1.411765
    assert round(0.5 * design.lengths[0].item() / below + 0.5 * 2 / 4, 6) == 0.955882
    chances = design.expected_counts().round(6)
    assert chances[[0, 1, 3]].tolist() == [pytest.approx(0.75), 0.367647, 0.514706]


def test_the_mean_weight_is_the_importance_after_every_history() -> None:
    """Two rounds of three clients: the law of the third, after each pair of cohorts."""
    population, recipe = Population([5, 3, 2]), KVib(2, rounds=4)
    norms = np.array([1.0, 4.0, 0.0])
    seen = set()
    for first, second in product(product((0, 1), repeat=3), repeat=2):
        kept = blank_arrays(recipe, 3)
        for counts in (first, second):
            observed_by(recipe, kept, population, counts, norms)
        design = recipe.build(population, kept=kept, rng=0)
        chances = design.expected_counts()
        seen.add(tuple(chances.round(9)))

        assert (chances > 0).all()
        assert chances.sum() == pytest.approx(2)
        law = laws.coins([Fraction(chance) for chance in chances.tolist()])
        assert sum(law.values()) == 1
        for i, share in enumerate(laws.importance(population)):
            chance = Fraction(float(chances[i]))
            assert sum(p * drawn[i] * share / chance for drawn, p in law.items()) == share
    assert len(seen) > 10


lengths = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=7)


@given(lengths, st.data())
def test_coins_are_those_of_the_slow_twin(given: list[float], data: st.DataObject) -> None:
    draws = data.draw(st.integers(1, len(given)))

    found = capped_chances(np.array(given), draws)

    slowly = laws.capped_chances([Fraction(own) for own in given], draws)
    assert np.allclose(found, list(map(float, slowly)), rtol=1e-9)


def test_sums_follow_their_slow_twin() -> None:
    generator, recipe, n = np.random.default_rng(0), KVib(3, rounds=40), 6
    population, kept = Population(generator.integers(1, 9, size=n)), blank_arrays(recipe, n)
    sums, largest = [0.0] * n, 0.0
    for _ in range(20):
        mix = (n / (40 * 3)) ** (1 / 3)
        gamma = largest * n / (mix * 3)
        own = [(each + gamma) ** 0.5 for each in sums]
        best = laws.capped_chances([Fraction(u) for u in own], 3) if any(own) else [0.5] * n
        chances = [(1 - mix) * float(q) + mix * 3 / n for q in best]
        counts, norms = generator.integers(2, size=n), generator.exponential(size=n)

        design = observed_by(recipe, kept, population, counts, norms)

        assert np.allclose(design.expected_counts(), chances, rtol=1e-9)
        for i in np.flatnonzero(counts).tolist():
            square = float(population.importance[i] * norms[i]) ** 2
            sums[i] += square / chances[i]
            largest = max(largest, square)
    assert np.ptp(chances) > 0.01  # it has learned


def test_with_fewer_rounds_than_it_takes_to_see_everyone_chances_stay_equal() -> None:
    recipe = KVib(2, rounds=1)
    kept = blank_arrays(recipe, 4)
    observed_by(recipe, kept, FOUR, [1, 0, 0, 0], [5.0, 0, 0, 0])

    assert recipe.build(FOUR, kept=kept, rng=0).expected_counts().tolist() == [0.5] * 4


def test_with_an_estimator_it_learns_from_what_is_left() -> None:
    """Client 0 sends long updates, all equal: after its first one nothing of them is left."""
    sums = {}
    for estimator in ("plain", "difference", "fedstale"):
        selector = Selector(KVib(3, rounds=30), [1] * 3, seed=0, estimator=estimator)
        for _ in range(4):
            cohort = selector.draw()
            selector.aggregate({i: np.array([10.0 if i == 0 else 1.0]) for i in cohort.ids})
        sums[estimator] = selector.state()["records.own.sums"][0] * 9

    assert sums["plain"] == pytest.approx(4 * 100)
    assert sums["difference"] == pytest.approx(100)
    assert sums["fedstale"] == pytest.approx(100 + 3 * 25)


def test_a_loaded_selector_goes_on_bit_for_bit(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    selector = Selector(KVib(2, rounds=50), [5, 3, 2, 1], seed=0)

    assert_goes_on_alike(selector, tmp_path / "state", lambda i: generator.normal(size=3))


@pytest.mark.parametrize(
    ("lengths", "mix", "message"),
    [
        (
            [1.0, np.nan, 1.0, 1.0],
            0.5,
            r"KVibDesign: lengths must be finite and at least 0; client 1 has nan",
        ),
        ([1.0, -1.0, 1.0, 1.0], 0.5, r"finite and at least 0; client 1 has -1.0. Give a client"),
        ([1.0] * 3, 0.5, r"KVibDesign: lengths must be numbers of shape \(4,\); got float64"),
        ([1.0] * 4, 0.0, r"KVibDesign: mix must be a number above 0"),
    ],
)
def test_lengths_that_cannot_be_used_are_refused(
    lengths: list[float], mix: float, message: str
) -> None:
    with pytest.raises(DesignError, match=message):
        KVibDesign(FOUR, 2, lengths, mix=mix)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, r"KVib: rounds must be a whole number of at least 1; got 0"),
        ({"bound": 0.0}, r"KVib: bound must be a number above 0"),
        ({"root": 1}, r"KVib: root must be True or False; got 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(DesignError, match=message):
        replace(KVib(2), **settings)  # type: ignore[arg-type]
