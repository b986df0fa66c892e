"""Integer arrays beside floating-point ones: they follow the weighted sum exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

import flwr.serverapp.strategy as flwr
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedcohort import Poisson, SizeClustered
from fedcohort.flower import CohortStrategy, register_size_query
from fedcohort.selector import read_selections
from flower.federation import grid_of, in_its_own_loop, one_round
from flower.in_process import InProcessGrid


def counting_grid() -> InProcessGrid:
    """Make a grid whose clients add 3 to the counter, in its own type, and 1 to the weights."""
    app = ClientApp()
    register_size_query(app, lambda context: 1 + int(context.node_config["partition-id"]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        counter, weights = arrays["counter"].numpy(), arrays["weights"].numpy()
        moved = {"counter": counter + counter.dtype.type(3), "weights": weights + np.float32(1)}
        record = ArrayRecord({name: Array(np.asarray(own)) for name, own in moved.items()})
        content = RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return grid_of(app=app)


def played(strategy: CohortStrategy, first: NDArray[Any], rounds: int) -> list[NDArray[Any]]:
    """Return the counter after every round."""
    weights, counters = np.zeros(3, np.float32), []
    arrays = ArrayRecord({"counter": Array(first), "weights": Array(weights)})
    grid = counting_grid()
    for number in range(1, rounds + 1):
        arrays = one_round(in_its_own_loop(strategy), grid, number, arrays) or arrays
        counters.append(arrays["counter"].numpy())
    return counters


@pytest.mark.parametrize("estimator", ["plain", "difference"])
@pytest.mark.parametrize(
    "inner", [flwr.FedAvg, flwr.FedAvgM, flwr.FedAdam, flwr.FedYogi, flwr.FedAdagrad]
)
def test_a_counter_ends_at_the_exact_sum(inner: type[flwr.FedAvg], estimator: Any) -> None:
    """Adam would divide its steps by what they were before; momentum would carry them on."""
    more: dict[str, Any] = {"server_momentum": 0.9} if inner is flwr.FedAvgM else {}
    strategy = CohortStrategy(inner(**more), SizeClustered(3), seed=0, estimator=estimator)

    counters = played(strategy, np.array(0), 10)

    assert counters[-1] == 30
    assert counters[-1].dtype == np.int64


def test_a_counter_stays_in_a_round_of_the_memory_alone(tmp_path: Path) -> None:
    """The moments that Adam keeps for it do not move it."""
    inner, log = flwr.FedAdam(), tmp_path / "selections.jsonl"
    strategy = CohortStrategy(inner, Poisson(1), seed=0, estimator="difference", log_file=log)

    steps = np.diff([0, *map(int, played(strategy, np.array(0), 20))]).tolist()

    n_drawn = [len(line["drawn"]) for line in read_selections(log)]
    assert steps == [3 * n for n in n_drawn]
    assert 0 in n_drawn[1:]


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_a_large_counter_is_exact(kind: Any) -> None:
    """As floats, integers beyond 2^53 are rounded."""
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(3), seed=0)

    counters = played(strategy, np.array([2**60 + 1], kind), 5)

    assert counters[-1].tolist() == [2**60 + 1 + 5 * 3]
    assert counters[-1].dtype == kind


@pytest.mark.parametrize(("kind", "n_warnings"), [(np.int64, 0), (np.uint8, 1)])
def test_a_wrapper_for_privacy_adds_its_noise_to_counters(
    kind: Any, n_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its result is rounded; where the type cannot hold it, the counter stays: logged once."""
    noisy = flwr.DifferentialPrivacyServerSideFixedClipping(
        flwr.FedAvg(), noise_multiplier=50.0, clipping_norm=1.0, num_sampled_clients=3
    )
    strategy = CohortStrategy(noisy, SizeClustered(3), seed=0)
    np.random.seed(0)  # noqa: NPY002  # Flower's noise comes from the global generator
    with caplog.at_level("WARNING"):
        counters = played(strategy, np.array(250, kind), 10)

    steps = np.diff([250, *map(int, counters)]).tolist()
    assert {each.dtype for each in counters} == {np.dtype(kind)}
    assert len(set(steps)) > 3
    lines = [line for line in caplog.messages if line.startswith("counter")]
    assert lines == n_warnings * ["counter stays: its type, uint8, cannot hold the sum"]
