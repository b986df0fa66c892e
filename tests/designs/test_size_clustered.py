"""Algorithm 1, against the notes' worked examples and a plain loop."""

import numpy as np
import pytest
from hypothesis import given

from fedcohort import Population, diagnostics
from fedcohort.designs import MultinomialDesign, SizeClusteredDesign
from fedcohort.errors import DesignError
from populations import CIFAR_SIZES, cohort_sizes, larger_populations, populations, rng


def rows_of(
    sizes: list[int], cohort_size: int, *, whole_rows_first: bool = False
) -> list[list[int]]:
    design = SizeClusteredDesign(
        Population(sizes), cohort_size, whole_rows_first=whole_rows_first, rng=rng()
    )
    rows: list[list[int]] = design.plan.units.toarray().tolist()
    return rows


def slow_rows(units: list[int], order: list[int], total: int) -> list[list[int]]:
    """Pour the clients into the rows, one after the other."""
    rows: list[list[int]] = []
    room = 0
    for i in order:
        left = units[i]
        while left:
            if room == 0:
                rows.append([0] * len(units))
                room = total
            poured = min(left, room)
            rows[-1][i] += poured
            left, room = left - poured, room - poured
    return rows


@pytest.mark.parametrize(
    ("sizes", "cohort_size", "rows"),
    [
        ([5, 3, 2], 2, [[10, 0, 0], [0, 6, 4]]),
        ([5, 3, 2], 1, [[5, 3, 2]]),
        ([8, 1, 1], 4, [[10, 0, 0], [10, 0, 0], [10, 0, 0], [2, 4, 4]]),
        ([5, 4, 1], 3, [[10, 0, 0], [5, 5, 0], [0, 7, 3]]),
    ],
)
def test_the_worked_examples(sizes: list[int], cohort_size: int, rows: list[list[int]]) -> None:
    assert rows_of(sizes, cohort_size) == rows


@pytest.mark.parametrize(
    ("sizes", "cohort_size", "line", "whole_rows_first"),
    [([5, 4, 1], 3, 0.1022, 0.0689), ([8, 7, 4], 4, 0.0436, 0.0478)],
)
def test_the_proofs_scheme_often_lowers_the_summed_variance_but_not_always(
    sizes: list[int], cohort_size: int, line: float, whole_rows_first: float
) -> None:
    def summed(first: bool) -> float:
        design = SizeClusteredDesign(
            Population(sizes), cohort_size, whole_rows_first=first, rng=rng()
        )
        return round(float(diagnostics.weight_variance(design).sum()), 4)

    assert (summed(False), summed(True)) == (line, whole_rows_first)


def test_the_proofs_scheme_lowers_the_second_clients_variance() -> None:
    population = Population([5, 4, 1])
    line = SizeClusteredDesign(population, 3, rng=rng())
    proof = SizeClusteredDesign(population, 3, whole_rows_first=True, rng=rng())

    variances = [diagnostics.weight_variance(design)[1].round(4) for design in (line, proof)]

    assert variances == [0.0511, 0.0178]


@given(larger_populations(), cohort_sizes(30))
def test_every_row_and_every_column_of_the_plan_holds_exactly_its_units(
    population: Population, m: int
) -> None:
    for whole_rows_first in (False, True):
        plan = SizeClusteredDesign(population, m, whole_rows_first=whole_rows_first, rng=rng()).plan

        assert (plan.units.sum(axis=1) == population.total).all()
        assert (plan.units.sum(axis=0) == m * population.sizes).all()


@given(larger_populations(), cohort_sizes(30))
def test_the_plan_is_sparse_and_no_client_comes_more_than_twice_beyond_its_share(
    population: Population, m: int
) -> None:
    design = SizeClusteredDesign(population, m, rng=rng())

    assert design.plan.units.nnz <= population.n_clients + m - 1
    bound = m * population.sizes // population.total + 2
    assert (diagnostics.max_count(design) <= bound).all()


@given(populations(6), cohort_sizes(5))
def test_the_plan_equals_pouring_the_clients_into_the_rows(population: Population, m: int) -> None:
    generator = rng(1)
    shuffled = generator.permutation(population.n_clients)
    order = sorted(shuffled.tolist(), key=lambda i: -int(population.sizes[i]))
    units = (m * population.sizes).tolist()

    plan = SizeClusteredDesign(population, m, rng=rng(1)).plan

    assert plan.units.toarray().tolist() == slow_rows(units, order, population.total)


@given(larger_populations(), cohort_sizes(30))
def test_it_is_never_worse_than_multinomial(population: Population, m: int) -> None:
    size = SizeClusteredDesign(population, m, rng=rng())
    multinomial = MultinomialDesign(population, m)
    rounding = 1 + 1000 * 2.0**-53
    updates = rng(2).standard_normal((population.n_clients, 3))

    assert (
        diagnostics.weight_variance(size)
        <= rounding * diagnostics.weight_variance(multinomial) + 1e-300
    ).all()
    assert (
        rounding * diagnostics.inclusion_probability(size)
        >= diagnostics.inclusion_probability(multinomial)
    ).all()
    assert diagnostics.aggregate_variance(size, updates) <= (
        rounding * diagnostics.aggregate_variance(multinomial, updates) + 1e-14
    )


@pytest.mark.parametrize(
    ("sizes", "cohort_size", "variances", "distinct"),
    [
        (CIFAR_SIZES, 5, (0.197388, 0.187321), (4.871, 4.995)),
        (CIFAR_SIZES, 10, (0.098694, 0.087491), (9.435, 9.972)),
        ([500] * 100, 10, (0.099, 0.09), (9.562, 10.0)),
    ],
)
def test_the_exact_numbers_of_the_papers_federations(
    sizes: list[int],
    cohort_size: int,
    variances: tuple[float, float],
    distinct: tuple[float, float],
) -> None:
    population = Population(sizes)
    designs = (
        MultinomialDesign(population, cohort_size),
        SizeClusteredDesign(population, cohort_size, rng=rng()),
    )

    summed = tuple(round(float(diagnostics.weight_variance(d).sum()), 6) for d in designs)
    expected = tuple(round(diagnostics.expected_distinct(d), 3) for d in designs)

    assert (summed, expected) == (variances, distinct)


def test_equal_clients_and_a_dividing_cohort_never_repeat_a_client() -> None:
    design = SizeClusteredDesign(Population([500] * 100), 10, rng=rng())

    assert diagnostics.max_count(design).tolist() == [1] * 100
    assert (np.diff(design.plan.units.indptr) == 10).all()


def test_multinomial_repeats_none_of_a_hundred_equal_clients_with_chance_0_628() -> None:
    """False alarms: 1e-6 (4.9 deviations of 20,000 rounds: .017)."""
    counts = MultinomialDesign(Population([1] * 100), 10).draw_many(20_000, rng())

    distinct = (np.diff(counts.indptr) == 10).mean()

    exact = float(np.prod(1 - np.arange(10) / 100))
    assert round(exact, 3) == 0.628
    assert abs(distinct - exact) < 4.9 * np.sqrt(exact * (1 - exact) / 20_000)


@pytest.mark.parametrize("whole_rows_first", [False, True])
def test_without_ties_relabelling_the_clients_relabels_the_plan(whole_rows_first: bool) -> None:
    sizes = np.array([1, 9, 4, 30, 2, 17])
    order = rng(3).permutation(6)

    def plan(values: np.ndarray) -> np.ndarray:
        population = Population(values)
        design = SizeClusteredDesign(population, 4, whole_rows_first=whole_rows_first, rng=rng())
        return design.plan.units.toarray()

    rows, shuffled = plan(sizes), plan(sizes[order])

    assert sorted(rows[:, order].tolist()) == sorted(shuffled.tolist())


def test_it_needs_a_generator_or_a_seed_for_ties() -> None:
    with pytest.raises(
        DesignError, match=r"SizeClusteredDesign: rng must be an integer .* got 1.5"
    ):
        SizeClusteredDesign(Population([1, 2]), 1, rng=1.5)  # type: ignore[arg-type]
