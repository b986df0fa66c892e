"""The public face of the designs' exact moments (their values: the designs' contract)."""

from typing import Any

import numpy as np
import pytest

from fedcohort import (
    DivFL,
    Multinomial,
    Population,
    PowerOfChoice,
    Stratified,
    Uniform,
    diagnostics,
)
from fedcohort.designs import MultinomialDesign, SizeClusteredDesign, UniformDesign
from fedcohort.errors import DesignError
from fedcohort.memory import UpdateMemory
from fedcohort.testing import agree
from populations import CIFAR_SIZES, rng


def test_a_summary_puts_the_diagnostics_together() -> None:
    design = SizeClusteredDesign(Population([*CIFAR_SIZES, 0]), 10, rng=rng())

    numbers = diagnostics.summary(design)

    inclusion = diagnostics.inclusion_probability(design)
    assert numbers.unbiased
    assert numbers.bias == 0.0
    assert numbers.weight_variance == diagnostics.weight_variance(design).sum()
    assert numbers.smallest_inclusion == inclusion[:-1].min() > 0
    assert numbers.mean_inclusion == design.population.importance @ inclusion
    assert numbers.expected_distinct == diagnostics.expected_distinct(design)
    assert numbers.max_count == 2


def test_the_summary_of_fedavgs_sampling_says_how_much_weight_is_misplaced() -> None:
    numbers = diagnostics.summary(UniformDesign(Population(CIFAR_SIZES), 10))

    assert not numbers.unbiased
    assert numbers.bias == pytest.approx(0.9, abs=1e-12)


def test_a_covariance_matrix_of_too_many_clients_is_refused() -> None:
    design = MultinomialDesign(Population(np.ones(20_001, dtype=int)), 10)

    with pytest.raises(DesignError, match=r"at most 20000 clients; got 20001, which take 3 GB"):
        diagnostics.weight_covariance(design)


def test_squared_bias_counts_in_the_aggregate_variance() -> None:
    """Equal updates z: FedAvg's own sampling of 1 of 2 equal clients always moves by z/2."""
    design = UniformDesign(Population([1, 1]), 1)

    assert diagnostics.aggregate_variance(design, [[4.0], [4.0]]) == 4.0


def test_a_million_clients_are_a_normal_case() -> None:
    population = Population(rng().integers(0, 1000, size=10**6))
    design = SizeClusteredDesign(population, 1000, rng=rng())

    assert design.plan.units.nnz <= 10**6 + 999
    assert design.draw(rng()).counts.sum() == 1000
    numbers = diagnostics.summary(design)
    multinomial = diagnostics.summary(MultinomialDesign(population, 1000))
    assert numbers.weight_variance < multinomial.weight_variance
    updates = rng(1).standard_normal((10**6, 4)).astype(np.float32)
    assert diagnostics.aggregate_variance(design, updates) < diagnostics.aggregate_variance(
        MultinomialDesign(population, 1000), updates
    )


@pytest.mark.parametrize("power", [450, -450])
def test_an_estimate_keeps_its_standard_error_at_every_scale(power: int) -> None:
    """Scaled by a power of two, every number is that one's square times what it was."""
    design, updates = MultinomialDesign(Population([6, 2, 1]), 3), np.array([[1.0], [5.0], [2.0]])

    def estimate(scale: float) -> diagnostics.Estimate:
        return diagnostics.estimated_aggregate_variance(
            design, scale * updates, rng=rng(), rounds=50
        )

    plain, scaled = estimate(1.0), estimate(2.0**power)

    assert scaled.standard_error == 4.0**power * plain.standard_error > 0
    assert scaled.value == 4.0**power * plain.value


@pytest.mark.slow
def test_the_estimated_bias_of_a_design_that_stays_is_its_own() -> None:
    """False alarms: 1e-6 over the clients; sees a bias that is .02 off."""
    population = Population([5, 3, 2])

    found = diagnostics.estimated_bias(Uniform(1), population, rng=rng(), rounds=10_000)

    exact = diagnostics.bias(UniformDesign(population, 1))
    assert agree(found.values, exact, found.standard_errors)
    assert found.standard_errors.max() < 0.02 / 5.1


def test_its_standard_error_is_that_of_a_mean() -> None:
    """One of two equal clients, weight 1/2 or 0: the deviation is 1/4, over the root of 10,000."""
    found = diagnostics.estimated_bias(Uniform(1), Population([1, 1]), rng=rng(), rounds=10_000)

    # The variance of a coin is known to (1 - 2 q)^2 / rounds: here nearly exactly.
    np.testing.assert_allclose(found.standard_errors, 0.25 / 100, rtol=1e-3)


def test_only_asked_clients_answer_in_the_estimate() -> None:
    """All clients as candidates: the largest loss is certain. One candidate: anyone, by size."""
    population, losses = Population([1, 1, 2]), {"loss": np.array([1.0, 9.0, 3.0])}

    all_asked = diagnostics.estimated_bias(
        PowerOfChoice(1), population, signals=losses, rng=rng(), rounds=10
    )
    one_asked = diagnostics.estimated_bias(
        PowerOfChoice(1, candidates=1), population, signals=losses, rng=rng(), rounds=2_500
    )

    assert all_asked.values.tolist() == [-0.25, 0.75, -0.5]
    assert all_asked.standard_errors.tolist() == [0.0] * 3
    # False alarms: 1e-6 over the clients; sees a bias that is .05 off.
    assert one_asked.standard_errors.max() < 0.05 / 5
    assert agree(one_asked.values, np.zeros(3), one_asked.standard_errors)


def test_the_estimate_has_the_order_of_the_population_whatever_the_ids() -> None:
    """All are candidates, so that b, the first, is certain: a selector would put a first."""
    population, losses = Population([1, 3], ids=["b", "a"]), {"loss": np.array([9.0, 1.0])}

    found = diagnostics.estimated_bias(
        PowerOfChoice(1), population, signals=losses, rng=rng(), rounds=2
    )

    assert found.values.tolist() == [0.75, -0.75]


def test_the_estimate_reads_the_populations_groups() -> None:
    """Two draws, one in each group of a single client: weights are certain."""
    population = Population([1, 1], groups=["x", "y"])

    found = diagnostics.estimated_bias(Stratified(2), population, rng=rng(), rounds=3)

    assert found.values.tolist() == found.standard_errors.tolist() == [0.0, 0.0]


def test_the_estimate_reads_the_memory_and_leaves_it() -> None:
    """DivFL takes one client of each kind; by their updates clients 0 and 1 are one, and 2 not."""
    memory = UpdateMemory(3, 1)
    memory.record([0, 1, 2], [[1.0], [1.0], [-5.0]], round_=0)
    before = memory.updates.copy()

    found = diagnostics.estimated_bias(
        DivFL(2), Population([1, 1, 1]), memory=memory, rng=rng(), rounds=20
    )

    assert found.standard_errors[2] == 0.0  # it is in every cohort, with one weight
    assert (memory.updates == before).all()


def test_an_estimate_of_a_single_round_is_refused() -> None:
    with pytest.raises(DesignError, match=r"estimated_bias: rounds must be at least 2"):
        diagnostics.estimated_bias(Uniform(1), Population([1, 1]), rng=rng(), rounds=1)


@pytest.mark.parametrize("given", [3, None, Multinomial(2)])
@pytest.mark.parametrize(
    "diagnostic",
    [
        diagnostics.bias,
        diagnostics.weight_variance,
        diagnostics.weight_covariance,
        diagnostics.inclusion_probability,
        diagnostics.max_count,
        diagnostics.expected_distinct,
        diagnostics.summary,
    ],
)
def test_what_is_no_design_is_refused(diagnostic: Any, given: Any) -> None:
    with pytest.raises(DesignError, match=r"design must be a Design; got .*recipe\.build"):
        diagnostic(given)
