"""Flower's own simulation engine: the drawn nodes train, and an error shows its cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("ray", reason="Flower's simulation engine is not installed")

PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from fedcohort import SizeClustered
from fedcohort.flower import CohortStrategy, Waits, register_size_query

folder = Path(sys.argv[1])
client, server = ClientApp(), ServerApp()
register_size_query(client, lambda context: 1 + int(context.node_config["partition-id"]) % 7)

@client.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    config = message.content["config"]
    if config["name"] == "first" and number == 74:
        time.sleep(8)
    (folder / f"{config['name']}-{config['server-round']}-{number}").touch()
    arrays = [part + number for part in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)

@server.main()
def main(grid, context: Context) -> None:
    for name, rounds, extra in [("all", 3, 0), ("first", 2, 2)]:
        inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=100)
        log = folder / f"{name}.jsonl"
        strategy = CohortStrategy(
            inner, SizeClustered(10), seed=0, log_file=log, extra=extra, waits=Waits(start=600.0)
        )
        config = ConfigRecord({"name": name})
        result = strategy.start(grid, ArrayRecord([np.zeros(3)]), rounds, train_config=config)
        model = result.arrays.to_numpy_ndarrays()[0].tolist()
        (folder / f"{name}.json").write_text(json.dumps(model))

if __name__ == "__main__":
    run_simulation(
        server, client, num_supernodes=100,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
"""


FAILING = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from fedcohort import SizeClustered
from fedcohort.flower import CohortStrategy, Limits, register_size_query

client, server = ClientApp(), ServerApp()
register_size_query(client, lambda context: 5)

@client.train()
def train(message, context):
    raise KeyError("img")

@server.main()
def main(grid, context):
    limits = Limits(give_up_after=2)
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), SizeClustered(2), seed=0, limits=limits
    )
    strategy.start(grid, ArrayRecord([np.zeros(3)]), 3)

if __name__ == "__main__":
    run_simulation(
        server, client, num_supernodes=2,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
"""


SECURE = """
import json, sys
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from fedcohort import SizeClustered
from fedcohort.flower import (
    CohortStrategy, SecureAggregation, register_size_query, secure_aggregation_mod
)

folder = Path(sys.argv[1])
client, server = ClientApp(mods=[secure_aggregation_mod]), ServerApp()
register_size_query(client, lambda context: 1 + int(context.node_config["partition-id"]))

@client.train()
def train(message, context):
    number = int(context.node_config["partition-id"])
    if message.content["config"]["server-round"] == 2 and number == 5:
        raise KeyError("img")
    arrays = [part + number / 8 for part in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 1})
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
    )

@server.main()
def main(grid, context):
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=6), SizeClustered(5), seed=0,
        secure=SecureAggregation(clip=4.0), log_file=folder / "secure.jsonl",
    )
    found = strategy.start(grid, ArrayRecord([np.zeros(3)]), 3).arrays.to_numpy_ndarrays()
    (folder / "secure.json").write_text(json.dumps(found[0].tolist()))

if __name__ == "__main__":
    run_simulation(
        server, client, num_supernodes=6,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
"""


def play(folder: Path, text: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Run a program: by default all answers count in its first rounds, then the first ones do."""
    program = folder / "program.py"
    program.write_text(text)
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, str(program), str(folder)],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=400,
    )


def rounds_of(folder: Path, name: str) -> tuple[list[dict[str, Any]], set[tuple[int, int]]]:
    """Return the lines of the log, and who trained in which round."""
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    trained = [path.name.split("-")[1:] for path in folder.glob(f"{name}-*")]
    # The inner strategy counts rounds from 1, the log from 0.
    return lines, {(int(number) - 1, int(client)) for number, client in trained}


def pairs(lines: list[dict[str, Any]], record: str) -> set[tuple[int, int]]:
    return {(line["round"], int(key)) for line in lines for key in line[record]}


def moved(lines: list[dict[str, Any]]) -> Any:
    """Return the model that the weights in the log give."""
    total = sum(w * int(key) for line in lines for key, w in line["weights"].items())
    return pytest.approx([total] * 3)


def check_first_answers(line: dict[str, Any]) -> None:
    answered = {key: line["drawn"][key] for key in line["weights"]}
    shares = {key: count / sum(answered.values()) for key, count in answered.items()}
    assert sum(line["drawn"].values()) == 12
    assert sum(answered.values()) >= 10
    assert line["weights"] == pytest.approx(shares)
    # Who answers with the last one that counts has neither failed nor a weight.
    assert set(line["failed"]) <= set(line["drawn"]) - set(answered)
    assert set(line["failed"].values()) <= {"no answer"}


@pytest.mark.slow
def test_in_a_hundred_nodes_exactly_the_drawn_ones_train(tmp_path: Path) -> None:
    """With two draws more, client 74, drawn in the first round and slow, is not waited for."""
    result = play(tmp_path)

    assert result.returncode == 0, result.stderr[-3000:]
    lines, trained = rounds_of(tmp_path, "all")
    assert trained == pairs(lines, "drawn")
    assert [sum(line["drawn"].values()) for line in lines] == [10, 10, 10]
    assert json.loads((tmp_path / "all.json").read_text()) == moved(lines)
    lines, trained = rounds_of(tmp_path, "first")
    for line in lines:
        check_first_answers(line)
    assert pairs(lines, "weights") <= trained <= pairs(lines, "drawn")
    assert (0, 74) in pairs(lines, "failed")
    assert json.loads((tmp_path / "first.json").read_text()) == moved(lines)


@pytest.mark.slow
def test_training_that_gives_up_shows_the_exception_that_clients_raise(tmp_path: Path) -> None:
    result = play(tmp_path, FAILING)

    assert result.returncode != 0
    reasons = "had no usable reply: 4 times \"error 2: KeyError: 'img'\". Fix the clients"
    assert f"CohortStrategy: 2 rounds in a row {reasons}" in result.stderr, result.stderr[-3000:]
    assert "2 of 2 clients failed (0, 1): error 2: KeyError: 'img'" in result.stderr


@pytest.mark.slow
def test_secure_sums_keep_the_weights_on_the_engine(tmp_path: Path) -> None:
    """Nodes keep their keys between the stages, and one that fails in training is left out."""
    done = play(tmp_path, SECURE)

    assert done.returncode == 0, done.stderr[-3000:]
    lines, _ = rounds_of(tmp_path, "secure")
    steps = [sum(w * int(key) / 8 for key, w in line["weights"].items()) for line in lines]
    found = json.loads((tmp_path / "secure.json").read_text())
    # In each round at most 5 shares, of at most the largest weight, are rounded to 2 * 4 / 2^29.
    most = sum(5 * max(line["weights"].values()) * 1.1 * 8 / 2**29 for line in lines)
    assert "5" in lines[1]["failed"]
    assert "5" not in lines[1]["weights"]
    assert [len(line["failed"]) for line in lines] == [0, 1, 0]
    assert found == pytest.approx([sum(steps)] * 3, abs=most)
