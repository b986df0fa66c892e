"""Target sampling: known groups."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import Population, Recipe, Stratified, Target
from fedcohort.designs import TargetDesign
from fedcohort.errors import DesignError
from fedcohort.testing import agree
from populations import cohort_sizes, larger_populations, rng


@given(larger_populations(), cohort_sizes(12), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_rows_and_columns_are_exact_with_fewer_as_many_and_more_groups_than_rows(
    population: Population, m: int, n_groups: int, seed: int
) -> None:
    groups = rng(seed).integers(n_groups, size=population.n_clients).tolist()

    plan = TargetDesign(population, m, groups, rng=rng(seed)).plan

    assert (plan.units.sum(axis=1) == population.total).all()
    assert (plan.units.sum(axis=0) == m * population.sizes).all()


@pytest.mark.parametrize("n_groups", [4, 10, 25])
def test_rows_and_columns_are_exact_for_the_papers_number_of_clients(n_groups: int) -> None:
    sizes = rng(1).integers(1, 1000, size=100)
    groups = rng(2).integers(n_groups, size=100).tolist()

    plan = TargetDesign(Population(sizes), 10, groups, rng=rng()).plan

    assert (plan.units.sum(axis=1) == sizes.sum()).all()
    assert (plan.units.sum(axis=0) == 10 * sizes).all()


def test_m_equal_groups_are_the_papers_target() -> None:
    """Ten digits, ten clients each, in any order: one client uniformly from each digit."""
    digits = rng(3).permutation(np.repeat(np.arange(10), 10))

    rows = TargetDesign(Population([500] * 100), 10, digits.tolist(), rng=rng()).plan

    for row in rows.probabilities.toarray():
        members = np.flatnonzero(row)
        assert len(set(digits[members])) == 1
        assert row[members].tolist() == [0.1] * 10
    assert Counter(digits[np.flatnonzero(row)][0] for row in rows.units.toarray()) == Counter(
        range(10)
    )


def test_a_group_above_a_row_gets_full_rows_and_a_remainder() -> None:
    """M = 40, m = 4: group a has 100 units, two full rows and 20; b 60: a full row and 20."""
    groups = ["a"] * 5 + ["b"] * 3

    rows = TargetDesign(Population([5] * 8), 4, groups, rng=rng()).plan.units.toarray()

    shares = sorted((int(row[:5].sum()), int(row[5:].sum())) for row in rows)
    assert shares == [(0, 40), (20, 20), (40, 0), (40, 0)]


def test_a_client_of_a_row_or_more_gets_its_whole_rows_before_its_group_is_cut() -> None:
    """M = 10, m = 2: client 0 has 12 units, a row of its own and 2 for its group."""
    for seed in range(20):
        rows = TargetDesign(Population([6, 3, 1]), 2, ["a", "a", "b"], rng=rng(seed)).plan

        assert rows.units.toarray().tolist() == [[10, 0, 0], [2, 6, 2]]


def test_of_equal_groups_each_is_as_often_the_one_that_is_spread() -> None:
    """Three groups for two rows, 3000 seeds: a third each; false alarms 1e-6, seen from .04 on."""
    spread = np.zeros(3)
    for seed in range(3000):
        plan = TargetDesign(Population([1] * 6), 2, list("aabbcc"), rng=rng(seed)).plan
        of_group = plan.units.toarray().reshape(2, 3, 2).sum(axis=2)
        spread[(of_group > 0).all(axis=0)] += 1

    assert agree(spread, np.full(3, 1000.0), np.full(3, np.sqrt(3000 * 2 / 9)))


def test_it_needs_a_generator_or_a_seed_for_ties() -> None:
    with pytest.raises(DesignError, match=r"TargetDesign: rng must be an integer .* got 1.5"):
        TargetDesign(Population([1, 2]), 1, [0, 1], rng=1.5)  # type: ignore[arg-type]


def test_labels_of_a_law_may_be_anything_that_can_be_told_apart() -> None:
    design = TargetDesign(Population([1, 1, 1, 1]), 2, ["x", 1, None, (2, 3)], rng=rng())

    assert design.plan.units.sum() == 8


def test_the_recipe_draws_by_the_populations_groups() -> None:
    population = Population([1, 1, 1, 1], groups=["x", 1, "x", 1])

    design = Target(2).build(population, rng=rng())

    assert isinstance(design, TargetDesign)
    rows = design.plan.units.toarray().tolist()
    assert sorted(rows) == [[0, 2, 0, 2], [2, 0, 2, 0]]


def test_clients_without_a_label_are_one_group() -> None:
    population = Population([1, 1, 1, 1], groups=["x", None, "x", None])

    rows = Target(2).build(population, rng=rng()).plan.units.toarray().tolist()  # type: ignore[attr-defined]

    assert sorted(rows) == [[0, 2, 0, 2], [2, 0, 2, 0]]


@pytest.mark.parametrize("recipe", [Target(2), Stratified(2)], ids=repr)
def test_a_population_without_groups_is_refused(recipe: Recipe) -> None:
    with pytest.raises(DesignError, match=r"needs the group of every client.*Pass groups= to"):
        recipe.build(Population([1, 1, 1]), rng=rng())


@pytest.mark.parametrize("groups", [[0, 1], [[0], [1], [2]], None, [0, 1, 2, 3]])
def test_groups_that_do_not_fit_the_clients_are_refused(groups: object) -> None:
    with pytest.raises(DesignError, match="TargetDesign: groups must be one label per client, 3;"):
        TargetDesign(Population([1, 2, 3]), 2, groups, rng=rng())  # type: ignore[arg-type]
