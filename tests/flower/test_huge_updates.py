"""Huge finite updates: nothing that is not finite becomes the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import strategy as flwr

from fedcohort import Recipe, SimilarityClustered, SizeClustered, Uniform
from fedcohort.flower import CohortStrategy
from flower.federation import (
    client_app,
    drawn,
    failed,
    flat,
    grid_of,
    layers,
    one_round,
    remembered,
    update_of,
    weights_of,
)
from flower.in_process import InProcessGrid


def half_model() -> ArrayRecord:
    return ArrayRecord(layers(np.ones(10, dtype=np.float16)))


def boasting_grid(size: float) -> InProcessGrid:
    """Client 3 goes as far as ``size`` in every direction; the others are as always."""
    return grid_of(app=client_app(update=lambda k: np.full(10, size) if k == 3 else update_of(k)))


def test_a_model_that_its_weight_would_make_infinite_is_a_failure() -> None:
    """Unbiased uniform weights sum to more than 1 where client 3, the largest, is drawn."""
    strategy, grid = (
        CohortStrategy(flwr.FedAvg(), Uniform(3, unbiased=True), seed=0),
        boasting_grid(6e4),
    )
    rejected = []
    for number in range(1, 20):
        messages = list(strategy.configure_train(number, half_model(), ConfigRecord(), grid))
        assert strategy._round is not None
        now, weights = strategy._round.answers, weights_of(strategy)
        moved, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))

        left = {int(k): w for k, w in weights.items() if k not in now.failed}
        expected = 1.0 + sum(w * update_of(k) for k, w in left.items() if k != 3)
        if "3" in now.failed:
            rejected.append(number)
            assert moved is not None
            assert flat(moved) == pytest.approx(expected, abs=2e-2)
        elif moved is not None:
            assert np.isfinite(flat(moved)).all()
    assert rejected
    assert failed(strategy)["3"] == len(rejected)


@pytest.mark.parametrize("recipe", [SizeClustered(4), SimilarityClustered(4)], ids=repr)
def test_the_memory_and_the_model_stay_finite(recipe: Recipe) -> None:
    grid = boasting_grid(3e38)
    strategy = CohortStrategy(flwr.FedAvg(), recipe, seed=0, sketch=2)
    for number in range(1, 10):
        moved = one_round(strategy, grid, number)

        assert moved is None or np.isfinite(flat(moved)).all()
    kept = remembered(strategy)
    assert all(np.isfinite(update).all() for update in kept.values())
    assert (len(kept) > 1) == recipe.learns


def test_an_update_that_the_memory_cannot_hold_is_a_failure() -> None:
    """A float64 model can hold 1e100; what a learning design remembers is float32."""
    start = ArrayRecord(layers(np.ones(10)))
    strategy = CohortStrategy(flwr.FedAvg(), SimilarityClustered(4), seed=0)
    for number in range(1, 4):
        moved = one_round(strategy, boasting_grid(1e100), number, start)

        assert moved is not None
        assert np.abs(flat(moved)).max() < 10
    assert failed(strategy) == {"3": 3}
    assert "3" not in remembered(strategy)


@pytest.mark.parametrize("inner", [flwr.FedAdam, flwr.FedYogi, flwr.FedAdagrad])
def test_moments_that_overflow_are_put_back(inner: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The square of 1e30 is infinite in float32: the coordinate would never move again."""
    arrays = ArrayRecord(layers(np.ones(10, dtype=np.float32)))
    strategy, quiet = CohortStrategy(inner(), SizeClustered(4), seed=0), boasting_grid(1.0)
    first = one_round(strategy, quiet, 1, arrays)
    assert first is not None

    with caplog.at_level("ERROR", "flwr.fedcohort"):
        hostile = one_round(strategy, boasting_grid(1e30), 2, first)
    after = one_round(strategy, quiet, 3, first)

    twin = CohortStrategy(inner(), SizeClustered(4), seed=0)
    one_round(twin, quiet, 1, arrays)
    twin.selector.draw()
    twin.selector.skip()
    expected = one_round(twin, quiet, 3, first)
    assert hostile is None
    assert "the aggregate is not finite; the model stays" in caplog.text
    assert after is not None
    assert expected is not None
    assert (flat(after) == flat(expected)).all()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.inf, np.float16), (np.nan, np.float16), (np.nan, np.float64), (1e300, np.float64)],
)
def test_an_aggregate_that_is_not_finite_is_not_taken(value: float, dtype: Any) -> None:
    """1e300 is finite until it gets the model's own type."""

    class Broken(flwr.FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Any
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            parts = [part.astype(dtype) for part in arrays.to_numpy_ndarrays()]
            parts[1][2] = value
            return ArrayRecord(parts), metrics

    strategy = CohortStrategy(Broken(), SizeClustered(4), seed=0)
    messages: list[Message] = list(
        strategy.configure_train(1, half_model(), ConfigRecord(), grid := grid_of())
    )

    assert strategy.aggregate_train(1, grid.send_and_receive(messages)) == (None, None)
    assert sum(drawn(strategy).values()) == 4
