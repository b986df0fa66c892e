"""Independent coins."""

import numpy as np
import pytest
from hypothesis import assume, given

from fedcohort import Population, diagnostics
from fedcohort.designs import PoissonDesign
from laws import capped_chances
from populations import CIFAR_SIZES, cohort_sizes, larger_populations, rng


@given(larger_populations(), cohort_sizes(20))
def test_the_chances_are_capped_importances_that_sum_to_the_cohort_size(
    population: Population, m: int
) -> None:
    assume(m <= np.count_nonzero(population.sizes))
    exact = capped_chances(population.sizes.tolist(), m)

    chances = PoissonDesign(population, m).expected_counts()

    assert sum(exact) == m
    assert chances.tolist() == [float(chance) for chance in exact]


def test_without_caps_the_variance_is_the_formula_of_general_theory() -> None:
    population, m = Population(CIFAR_SIZES), 10
    importance = population.importance

    variance = diagnostics.weight_variance(PoissonDesign(population, m))

    np.testing.assert_allclose(variance, importance * (1 - m * importance) / m, rtol=1e-13)


def test_a_client_of_chance_one_is_always_there_with_its_importance() -> None:
    design = PoissonDesign(Population([8, 1, 1]), 2)

    for seed in range(50):
        cohort = design.draw(rng(seed))
        assert (cohort.clients[0], cohort.weights[0]) == (0, 0.8)


def test_an_empty_cohort_stays_empty_with_residual_one() -> None:
    design = PoissonDesign(Population([1] * 4), 1)

    cohorts = [design.draw(rng(seed)) for seed in range(200)]

    empty = [cohort for cohort in cohorts if len(cohort) == 0]
    assert empty
    assert {cohort.residual for cohort in empty} == {1.0}


def test_the_residual_may_be_negative() -> None:
    design = PoissonDesign(Population([1] * 4), 1)

    assert min(design.draw(rng(seed)).residual for seed in range(200)) < 0


def test_a_cohort_of_all_clients_is_certain() -> None:
    design = PoissonDesign(Population([5, 0, 3, 2]), 3)

    cohort = design.draw(rng())

    assert cohort.clients.tolist() == [0, 2, 3]
    assert cohort.weights.tolist() == [0.5, 0.3, 0.2]


def test_many_rounds_are_tossed_in_blocks_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    design = PoissonDesign(Population(CIFAR_SIZES), 10)
    whole = design.draw_many(25, rng())

    monkeypatch.setattr("fedcohort.designs.poisson.BLOCK_ENTRIES", 700)

    assert (design.draw_many(25, rng()).toarray() == whole.toarray()).all()
