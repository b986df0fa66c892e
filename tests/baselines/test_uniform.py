"""FedAvg's own sampling and its unbiased form."""

import numpy as np
import pytest

import laws
from fedcohort import Population, diagnostics
from fedcohort.designs import MultinomialDesign, UniformDesign
from fedcohort.testing import follows_law
from populations import CIFAR_SIZES, rng


def test_fedavgs_own_sampling_keeps_the_rest_of_the_weight_on_the_model() -> None:
    population = Population([5, 3, 2])

    cohort = UniformDesign(population, 2).draw(rng())

    assert cohort.weights.tolist() == population.importance[cohort.clients].tolist()
    assert cohort.residual == pytest.approx(1 - cohort.weights.sum(), abs=1e-15)
    assert cohort.residual > 0


def test_its_bias_is_m_over_n_minus_one_of_the_importance() -> None:
    population = Population(CIFAR_SIZES)

    bias = diagnostics.bias(UniformDesign(population, 10))

    np.testing.assert_allclose(bias, -0.9 * population.importance, rtol=1e-12)


def test_clients_of_size_zero_do_not_count() -> None:
    design = UniformDesign(Population([5, 0, 3, 2, 0]), 2, unbiased=True)

    assert design.weight_per_draw().tolist() == [0.75, 0.0, 0.3 * 3 / 2, 0.2 * 3 / 2, 0.0]
    assert design.expected_counts().tolist() == [2 / 3, 0.0, 2 / 3, 2 / 3, 0.0]


def test_a_smaller_summed_weight_variance_is_not_a_smaller_aggregate_variance() -> None:
    """p = (.4, .3, .2, .1), m = 2, equal updates: .067 against 0."""
    population = Population([4, 3, 2, 1])
    uniform = UniformDesign(population, 2, unbiased=True)
    multinomial = MultinomialDesign(population, 2)
    updates = np.ones((4, 1))

    variances = [diagnostics.aggregate_variance(d, updates) for d in (uniform, multinomial)]

    assert [round(variance, 3) for variance in variances] == [0.067, 0.0]
    assert (
        diagnostics.weight_variance(uniform).sum() < diagnostics.weight_variance(multinomial).sum()
    )


@pytest.mark.parametrize("few", [0, 100])
def test_all_subsets_are_equally_likely_however_they_are_drawn(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways to draw, three of six; false alarms 1e-6 each."""
    monkeypatch.setattr("fedcohort.streams.FEW", few)
    design = UniformDesign(Population([3, 1, 4, 1, 5, 9]), 3)

    assert follows_law(design.draw_many(100_000, rng()), laws.law(design))


def test_weights_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        UniformDesign(Population([1, 2]), 1).weight_per_draw()[0] = 9


def test_the_variance_is_the_formula_of_general_theory() -> None:
    population = Population(CIFAR_SIZES)

    variance = diagnostics.weight_variance(UniformDesign(population, 10, unbiased=True))

    np.testing.assert_allclose(variance, (100 / 10 - 1) * population.importance**2, rtol=1e-12)
