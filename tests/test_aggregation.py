"""The one formula."""

import numpy as np
import pytest

from fedcohort import (
    Cohort,
    PoissonDesign,
    Population,
    SizeClusteredDesign,
    UniformDesign,
    aggregate,
)
from fedcohort.errors import AggregationError
from populations import rng

MODEL = np.array([[1.0, 2.0], [3.0, 4.0]])


def test_full_participation_averages_the_clients_models_by_importance() -> None:
    population = Population([5, 3, 2])
    cohort = UniformDesign(population, 3).draw(rng())
    models = rng(1).standard_normal((3, 2, 2))

    moved = aggregate(MODEL, models - MODEL, cohort)

    np.testing.assert_allclose(moved, np.tensordot(population.importance, models, axes=1))


def test_fedavgs_residual_stays_on_the_model() -> None:
    population = Population([5, 3, 2])
    cohort = UniformDesign(population, 1).draw(rng(2))
    models = rng(3).standard_normal((1, 2, 2))

    moved = aggregate(MODEL, models - MODEL, cohort)

    weight = population.importance[cohort.clients[0]]
    np.testing.assert_allclose(moved, weight * models[0] + cohort.residual * MODEL)


def test_the_servers_learning_rate_scales_the_move() -> None:
    cohort = SizeClusteredDesign(Population([1, 1]), 2, rng=rng()).draw(rng())
    updates = np.ones((len(cohort), 2, 2))

    assert (aggregate(MODEL, updates, cohort, server_lr=0.5) == MODEL + 0.5).all()


def test_an_empty_cohort_leaves_the_model() -> None:
    design = PoissonDesign(Population([1] * 4), 1)
    empty = next(c for c in (design.draw(rng(seed)) for seed in range(50)) if len(c) == 0)

    moved = aggregate(MODEL, [], empty)

    assert (moved == MODEL).all()
    assert moved is not MODEL


def test_updates_that_do_not_fit_the_cohort_are_refused() -> None:
    cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 1]), 2)

    with pytest.raises(AggregationError, match=r"shape \(2, 2, 2\).*got \(3, 2, 2\)"):
        aggregate(MODEL, np.ones((3, 2, 2)), cohort)
    with pytest.raises(AggregationError, match=r"shape \(2, 2\).*got \(0,\)"):
        aggregate([1.0, 2.0], [[1.0, 2.0], [3.0]], cohort)
    with pytest.raises(AggregationError, match=r"updates must be finite; client 2 sent other"):
        aggregate([1.0, 2.0], [[1.0, 2.0], [3.0, np.nan]], cohort)
