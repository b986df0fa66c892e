"""Every answer is read once: what is decoded and scanned in a round with one lost client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import Array, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedcohort import Poisson, Regression, SimilarityClustered, SizeClustered, _updates
from fedcohort.flower import CohortStrategy, averaging
from flower.federation import DIMENSION, SHAPES, grid_of, in_its_own_loop, model, one_round

#: Draws more weight than 1 in the second round, also without the client that is lost.
SEED = 6
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"recipe": SizeClustered(4)},
    "similarity": {"recipe": SimilarityClustered(4)},
    "sketched": {"recipe": SimilarityClustered(4), "sketch": 3},
    "max_norm": {"recipe": SizeClustered(4), "max_norm": 0.5},
    "weights above 1": {"recipe": Poisson(2), "seed": SEED},
    "weights above 1 and max_norm": {"recipe": Poisson(2), "seed": SEED, "max_norm": 0.5},
    "difference": {"recipe": SizeClustered(4), "estimator": "difference"},
    "difference and max_norm": {
        "recipe": SizeClustered(4),
        "estimator": "difference",
        "max_norm": 0.5,
    },
    "regression": {"recipe": SizeClustered(4), "estimator": Regression(None)},
}


@dataclass
class Reading:
    """What was read in a round: calls of ``Array.numpy``, and numbers ``scanned``."""

    n_answered: int = 0
    residual: float = 0.0
    decoded: int = 0
    scanned: int = 0


def watch(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what is decoded and scanned from now on."""
    numpy, isfinite, usable = Array.numpy, np.isfinite, _updates.usable_rows

    def counted_numpy(array: Array) -> NDArray[Any]:
        reading.decoded += 1
        return numpy(array)

    def counted_isfinite(values: Any, *more: Any, **options: Any) -> Any:
        reading.scanned += np.size(values) if np.ndim(values) else 0  # a metric has no dimension
        return isfinite(values, *more, **options)

    def counted_usable(rows: NDArray[Any]) -> NDArray[np.bool_]:
        reading.scanned += rows.size
        return usable(rows)

    monkeypatch.setattr(Array, "numpy", counted_numpy)
    monkeypatch.setattr(np, "isfinite", counted_isfinite)
    monkeypatch.setattr(_updates, "usable_rows", counted_usable)


def read_in_a_round(name: str, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Play rounds until something is remembered, then one in which a drawn client is lost."""
    strategy = in_its_own_loop(CohortStrategy(FedAvg(), **{"seed": 0, **SETTINGS[name]}))
    grid, reading = grid_of(), Reading()
    one_round(strategy, grid, 1)
    messages = strategy.configure_train(2, model(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))[1:]
    reading.n_answered = len(replies)
    there = [str(grid.partitions[reply.metadata.src_node_id]) for reply in replies]
    reading.residual = strategy.selector.settle(there).residual
    watch(reading, monkeypatch)
    moved, _ = strategy.aggregate_train(2, replies)
    monkeypatch.undo()

    assert moved is not None
    assert reading.n_answered > 1
    assert (reading.residual < 0) == name.startswith("weights above 1")
    return reading


@pytest.mark.parametrize("name", SETTINGS)
def test_an_array_is_decoded_at_most_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to check and remember it, and once by Flower's average.

    Beside them the result is decoded, and the model that was sent if it takes the lost client's
    weight.
    """
    reading = read_in_a_round(name, monkeypatch)
    beside = 1 if "estimator" in SETTINGS[name] or reading.residual < 0 else 2

    assert reading.decoded == (2 * reading.n_answered + beside) * len(SHAPES)


@pytest.mark.parametrize("name", SETTINGS)
def test_an_update_is_scanned_for_finite_numbers_at_most_twice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once when it is read, and once in what the memory keeps or Flower gets."""
    reading = read_in_a_round(name, monkeypatch)
    result, durations = DIMENSION, reading.n_answered

    assert reading.scanned <= 2 * DIMENSION * reading.n_answered + result + durations


def test_with_plain_weights_averaging_decodes_nothing_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower's average alone reads the models; the lost client's weight rests on the model."""
    strategy, grid, reading = (
        CohortStrategy(FedAvg(), SizeClustered(4), seed=0),
        grid_of(),
        Reading(),
    )
    messages = strategy.configure_train(1, model(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))[1:]
    seen = list[int]()
    aggregate = FedAvg.aggregate_train

    def watched(self: FedAvg, *given: Any) -> Any:
        seen.append(reading.decoded)
        return aggregate(self, *given)

    def averaged(*given: Any) -> Any:
        watch(reading, monkeypatch)
        return own(*given)

    own = averaging.averaged
    monkeypatch.setattr(FedAvg, "aggregate_train", watched)
    monkeypatch.setattr("fedcohort.flower.strategy.averaged", averaged)
    strategy.aggregate_train(1, replies)

    assert seen == [0]
