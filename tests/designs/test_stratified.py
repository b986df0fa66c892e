"""Strata with a fixed number of draws each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import Population, Stratified, diagnostics
from fedcohort.designs import MultinomialDesign, StratifiedDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import CIFAR_SIZES, larger_populations, rng


def test_by_hand_two_strata() -> None:
    """P = (.5, .5), m = (2, 2): one draw weighs .25; z = 0 | 10, 20 by 3 to 2.

    Stratum b: mean 14, variance .6 * 16 + .4 * 36 = 24. V = .25 / 2 * 24 = 3.
    """
    design = StratifiedDesign(Population([5, 3, 2]), 4, ["a", "b", "b"], rng=rng())

    assert design.draws.tolist() == [2, 2]
    assert design.weight_per_draw().tolist() == [0.25] * 3
    assert design.expected_counts() == pytest.approx([2, 1.2, 0.8])
    assert diagnostics.aggregate_variance(design, [[0.0], [10.0], [20.0]]) == pytest.approx(3.0)
    counts = design.draw_many(200, rng()).toarray()
    assert (counts[:, 0] == 2).all()
    assert (counts[:, 1:].sum(axis=1) == 2).all()


@pytest.mark.parametrize(
    ("masses", "m", "draws"),
    [
        ([50, 30, 20], 10, [5, 3, 2]),
        ([50, 30, 20], 4, [2, 1, 1]),  # 2, 1.2, .8: the last has one at least, and 3 are left
        ([98, 1, 1], 5, [3, 1, 1]),
        ([60, 39, 1], 4, [2, 1, 1]),  # 3 left for 60 and 39: 1.82, 1.18
        ([34, 33, 33], 3, [1, 1, 1]),
        ([10**12, 1, 0], 2, [1, 1, 0]),
    ],
)
def test_by_hand_draws_go_by_largest_remainder_and_at_least_one_each(
    masses: list[int], m: int, draws: list[int]
) -> None:
    for seed in range(10):
        design = StratifiedDesign(Population(masses), m, ["a", "b", "c"], rng=rng(seed))

        assert design.draws.tolist() == draws


@given(larger_populations(), st.integers(1, 6), st.integers(0, 12), st.integers(0, 2**32 - 1))
def test_all_draws_are_given_and_nobody_is_a_whole_draw_off_where_all_claim_one(
    population: Population, n_groups: int, more: int, seed: int
) -> None:
    groups = rng(seed).integers(n_groups, size=population.n_clients).tolist()
    masses = dict.fromkeys(groups, 0)
    for group, size in zip(groups, population.sizes.tolist(), strict=True):
        masses[group] += size
    m = max(1, sum(mass > 0 for mass in masses.values())) + more

    design = StratifiedDesign(population, m, groups, rng=rng(seed))

    held = np.array(list(masses.values()))
    assert design.draws.sum() == m
    assert ((design.draws > 0) == (held > 0)).all()
    claims = m * held[held > 0] / population.total
    if (claims >= 1).all():
        assert (np.abs(design.draws[held > 0] - claims) < 1).all()


def test_equal_remainders_are_given_at_random() -> None:
    """Three equal strata, four draws, 3000 seeds: false alarms 1e-6; sees .05."""
    second = np.zeros(3)
    for seed in range(3000):
        second += StratifiedDesign(Population([1] * 3), 4, [0, 1, 2], rng=rng(seed)).draws == 2

    assert agree(second, np.full(3, 1000.0), np.full(3, np.sqrt(3000 * 2 / 9)))


def test_by_hand_neymans_draws_go_where_updates_differ() -> None:
    """P = (.5, .5); spreads 1 and 3: P sigma as 1 to 3, so 2 and 6 of 8 draws."""
    updates = [[-1.0], [1.0], [-3.0], [3.0]]
    design = StratifiedDesign(
        Population([1] * 4), 8, [0, 0, 1, 1], allocation="neyman", updates=updates, rng=rng()
    )

    assert design.draws.tolist() == [2, 6]
    # .25 * 1 / 2 + .25 * 9 / 6, against .25 * 1 / 4 + .25 * 9 / 4 in proportion.
    assert diagnostics.aggregate_variance(design, updates) == pytest.approx(0.5)


def test_neymans_allocation_is_the_best_of_all() -> None:
    """Every division of 9 draws among three strata, with claims that are whole."""
    population, groups = Population([2, 2, 1, 1, 3, 3]), [0, 0, 1, 1, 2, 2]
    updates = np.array([[-3.0], [3.0], [-6.0], [6.0], [-2.0], [2.0]])  # P sigma: 1 each, of 3
    design = StratifiedDesign(
        population, 9, groups, allocation="neyman", updates=updates, rng=rng()
    )
    best = diagnostics.aggregate_variance(design, updates)

    assert design.draws.tolist() == [3, 3, 3]
    for a in range(1, 8):
        for b in range(1, 9 - a):
            other = sum(
                share**2 * spread / draws
                for share, spread, draws in zip(
                    (1 / 3, 1 / 6, 1 / 2), (9, 36, 4), (a, b, 9 - a - b), strict=True
                )
            )
            assert best <= other * (1 + 1e-12)


def test_whole_shares_are_never_worse_than_multinomial_sampling() -> None:
    population, groups = Population(CIFAR_SIZES[:90:9] * 4), [0, 1, 2, 3] * 10
    masses = [population.sizes[k::4].sum() for k in range(4)]
    population = Population(np.concatenate([population.sizes, max(masses) * 2 - np.array(masses)]))
    groups += [0, 1, 2, 3]
    updates = rng().standard_normal((44, 3)) + 3 * np.eye(4)[groups][:, :3]

    strata = diagnostics.aggregate_variance(
        StratifiedDesign(population, 8, groups, rng=rng()), updates
    )

    assert strata < diagnostics.aggregate_variance(MultinomialDesign(population, 8), updates)


def test_without_any_spread_neymans_allocation_is_the_proportional_one() -> None:
    recipe = Stratified(4, allocation="neyman")

    design = recipe.build(Population([6, 1, 1], groups=["a", "b", "b"]), rng=rng())

    assert isinstance(design, StratifiedDesign)
    assert design.draws.tolist() == [3, 1]


def test_only_neymans_allocation_learns() -> None:
    assert Stratified(2, allocation="neyman").learns
    assert not Stratified(2).learns


def test_fewer_draws_than_strata_with_samples_are_refused() -> None:
    with pytest.raises(DesignError, match=r"each of the 3 strata with samples; got cohort_size 2"):
        StratifiedDesign(Population([1, 1, 1, 0]), 2, [0, 1, 2, 3], rng=rng())
    StratifiedDesign(Population([1, 1, 0, 0]), 2, [0, 1, 2, 3], rng=rng())


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"groups": [0]}, "StratifiedDesign: groups must be one label per client, 2"),
        ({"groups": [0, 1], "allocation": "optimal"}, "allocation must be one of proportional"),
        (
            {"groups": [0, 1], "allocation": "neyman"},
            "allocation neyman needs the clients' updates",
        ),
        (
            {"groups": [0, 1], "allocation": "neyman", "updates": [[np.nan], [1.0]]},
            "client 0 sent 1 other values",
        ),
    ],
)
def test_bad_arguments_are_refused(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(DesignError, match=message):
        StratifiedDesign(Population([1, 2]), 2, rng=rng(), **keywords)  # type: ignore[arg-type]
