"""Uniform draws, averaged over the cohort."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given

from fedcohort import CohortMean, Population, diagnostics
from fedcohort.designs import CohortMeanDesign
from fedcohort.testing import agree
from populations import larger_populations, rng


def expected_weights(sizes: list[int], m: int) -> np.ndarray:
    """Average over all cohorts of m clients with samples."""
    total = np.zeros(len(sizes))
    cohorts = list(combinations([i for i, size in enumerate(sizes) if size], m))
    for cohort in cohorts:
        for i in cohort:
            total[i] += sizes[i] / sum(sizes[j] for j in cohort)
    return total / len(cohorts)


def test_by_hand_all_of_three_clients_weigh_their_importance() -> None:
    cohort = CohortMeanDesign(Population([5, 3, 0, 2]), 3, rng=rng()).draw(rng())

    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([0, 1, 3], [0.5, 0.3, 0.2])


@given(larger_populations())
def test_weights_are_shares_of_the_cohorts_samples(population: Population) -> None:
    m = max(1, int(np.count_nonzero(population.sizes)) // 2)
    cohort = CohortMeanDesign(population, m, rng=rng()).draw(rng())

    sizes = population.sizes[cohort.clients]
    assert len(cohort.clients) == m
    assert cohort.weights == pytest.approx(sizes / sizes.sum(), rel=1e-14)
    assert cohort.weights.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 2, 3])
def test_the_schemes_bias_is_that_of_all_cohorts(m: int) -> None:
    """20,000 rounds; false alarms 1e-6. Sees a weight that is .02 off."""
    sizes = [6, 3, 2, 1, 0]
    population = Population(sizes)

    found = diagnostics.estimated_bias(CohortMean(m), population, rng=rng(), rounds=20_000)

    exact = expected_weights(sizes, m) - population.importance
    assert agree(found.values[:4], exact[:4], found.standard_errors[:4])
    assert found.standard_errors.max() < 0.02 / 6
    assert found.values[4] == 0


@pytest.mark.parametrize("m", [1, 2, 3])
def test_large_clients_weigh_too_little_and_small_ones_too_much(m: int) -> None:
    sizes = [6, 3, 2, 1]

    ratio = expected_weights(sizes, m) / (np.array(sizes) / 12)

    assert (np.diff(ratio) > 0).all()
    assert ratio[0] < 1 < ratio[-1]


def test_with_equal_sizes_it_is_unbiased() -> None:
    assert expected_weights([4] * 6, 3) == pytest.approx(np.full(6, 1 / 6), rel=1e-14)
