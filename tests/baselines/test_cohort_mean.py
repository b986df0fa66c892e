"""Uniform draws, averaged over the cohort."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort import CohortMean, Population, compare, diagnostics
from fedcohort.baselines import chosen
from fedcohort.baselines.cohort_mean import ESTIMATE_COHORTS, CohortMeanRounds
from fedcohort.designs import CohortMeanDesign, UniformDesign
from fedcohort.testing import agree
from fedcohort.testing.laws import close
from populations import larger_populations, populations, rng


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
    """5,000 rounds; false alarms 1e-6. Sees a weight that is .04 off."""
    sizes = [6, 3, 2, 1, 0]
    population = Population(sizes)

    found = diagnostics.estimated_bias(CohortMean(m), population, rng=rng(), rounds=5_000)

    exact = expected_weights(sizes, m) - population.importance
    assert agree(found.values[:4], exact[:4], found.standard_errors[:4])
    assert found.standard_errors.max() < 0.04 / 6
    assert found.values[4] == 0


@pytest.mark.parametrize("m", [1, 2, 3])
def test_large_clients_weigh_too_little_and_small_ones_too_much(m: int) -> None:
    sizes = [6, 3, 2, 1]

    ratio = expected_weights(sizes, m) / (np.array(sizes) / 12)

    assert (np.diff(ratio) > 0).all()
    assert ratio[0] < 1 < ratio[-1]


def test_with_equal_sizes_it_is_unbiased() -> None:
    assert expected_weights([4] * 6, 3) == pytest.approx(np.full(6, 1 / 6), rel=1e-14)


def every_weight(sizes: list[int], m: int) -> list[list[Fraction]]:
    """Return the weights of all clients in every cohort, in fractions."""
    found = []
    for cohort in combinations([i for i, size in enumerate(sizes) if size], m):
        total = sum(sizes[i] for i in cohort)
        found.append(
            [Fraction(n, total) if i in cohort else Fraction(0) for i, n in enumerate(sizes)]
        )
    return found


def mean(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


@given(populations(), st.integers(0, 5))
def test_over_rounds_the_moments_are_those_of_all_cohorts(
    population: Population, number: int
) -> None:
    sizes = population.sizes.tolist()
    m = 1 + number % int(np.count_nonzero(sizes))
    law = CohortMeanDesign(population, m, rng=rng()).over_rounds()
    cohorts = every_weight(sizes, m)
    updates = rng(number).integers(-5, 6, size=(len(sizes), 2)).tolist()

    assert law.exact_weights
    assert law.exact_moments
    means = [mean([weights[i] for weights in cohorts]) for i in range(len(sizes))]
    shares = [Fraction(n, population.total) for n in sizes]
    products = [
        [mean([weights[i] * weights[j] for weights in cohorts]) for j in range(len(sizes))]
        for i in range(len(sizes))
    ]
    for i in range(len(sizes)):
        assert close(law.bias()[i], means[i] - shares[i])
        assert close(law.weight_variance()[i], products[i][i] - means[i] ** 2)
        for j in range(len(sizes)):
            assert close(law.weight_covariance()[i, j], products[i][j] - means[i] * means[j])
    assert law.unbiased == (means == shares)
    variance = mean([
        sum(
            sum((w - p) * z for w, p, z in zip(weights, shares, column, strict=True)) ** 2
            for column in zip(*updates, strict=True)
        )
        for weights in cohorts
    ])  # fmt: skip
    assert close(law.aggregate_variance(updates), variance, scale=50.0)


@pytest.mark.parametrize(
    ("sizes", "m"),
    [
        ([6, 3, 2, 1, 0, 9], 2),
        ([1000, 5, 4, 3, 2, 1, 1, 1, 1, 1], 3),
        ([int(1.3**k) + 1 for k in range(20)], 4),
        (list(range(1, 16)), 12),
        ([5, 5, 5, 1, 1, 1], 1),
    ],
)
def test_estimates_agree_with_enumeration_within_their_errors(
    sizes: list[int], m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five standard errors: false alarms 1e-6 for each number, with a fixed seed.

    Sees a bias that is .02 off, and a variance that is 10 % off.
    """
    exact = CohortMeanRounds(Population(sizes), m)
    monkeypatch.setattr(chosen, "MOST_LISTED", 0)
    estimated = CohortMeanRounds(Population(sizes), m)

    assert (exact.estimate_cohorts, estimated.estimate_cohorts) == (0, ESTIMATE_COHORTS)
    errors = estimated.standard_errors()
    for error, function in zip(
        errors, (diagnostics.bias, diagnostics.weight_variance), strict=True
    ):
        right, found = (float(np.abs(function(law)).sum()) for law in (exact, estimated))
        # With one draw nothing is random: only rounding is left.
        assert abs(found - right) <= 5 * error + 1e-12
    assert 5 * errors[0] < 0.02
    assert 5 * errors[1] < 0.1 * exact.weight_variance().sum()
    assert estimated.inclusion_probability().tolist() == exact.inclusion_probability().tolist()


def test_the_estimates_of_many_different_sizes_are_interpolated_well() -> None:
    """1,500 sizes, 1,000 nodes: the same cohorts, with a node for every size."""
    population = Population(np.unique(np.geomspace(10, 10**6, 1500).astype(int)))
    law = CohortMeanRounds(population, 5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcohort.baselines.cohort_mean.MOST_NODES", 10**6)
        whole = CohortMeanRounds(population, 5)
        assert law.bias() == pytest.approx(whole.bias(), abs=1e-5 * population.importance.max())
        assert law.weight_variance().sum() == pytest.approx(whole.weight_variance().sum(), rel=1e-4)


def test_a_drawn_cohort_of_the_law_is_weighed_by_its_shares() -> None:
    law = CohortMeanRounds(Population([5, 3, 0, 2]), 2)

    cohort = law.draw(rng(1))

    sizes = law.population.sizes[cohort.clients]
    assert cohort.weights.tolist() == (sizes / sizes.sum()).tolist()
    weights = law.draw_weights(3, rng(1)).toarray()
    assert weights[0, cohort.clients].tolist() == cohort.weights.tolist()
    assert weights.sum(axis=1) == pytest.approx(1)


def test_with_equal_sizes_the_law_is_the_unbiased_uniform_one() -> None:
    """C(200, 20) cohorts are not listed; nothing is estimated."""
    population = Population([4] * 200 + [0])
    law, uniform = CohortMeanRounds(population, 20), UniformDesign(population, 20, unbiased=True)

    assert (law.unbiased, law.exact_weights, law.exact_moments) == (True, True, False)
    assert not law.bias().any()
    assert law.weight_variance() == pytest.approx(uniform.weight_variance(), rel=1e-12)


def test_the_measured_bias_of_the_recipe_is_that_of_the_law() -> None:
    """2,000 rounds; false alarms 1e-6. Sees a mean weight that is .06 off."""
    population = Population([6, 3, 2, 1])
    law = CohortMeanRounds(population, 2)

    found = diagnostics.estimated_bias(CohortMean(2), population, rng=rng(), rounds=2000)

    assert agree(found.values, law.bias(), found.standard_errors)


def test_a_million_clients_are_compared() -> None:
    sizes = rng().integers(1, 10**6, size=10**6)

    row = compare(sizes, 10, designs="cohort-mean").rows["cohort-mean"]

    assert row.bias_standard_error is not None
    assert 0 < row.bias_standard_error < 0.01 * row.bias
