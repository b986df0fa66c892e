"""Flower's own simulation engine: a hundred nodes, and exactly the drawn ones train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("ray", reason="Flower's simulation engine is not installed")

PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from fedcohort import SizeClustered
from fedcohort.flower import CohortStrategy, register_size_query

folder = Path(sys.argv[1])
client, server = ClientApp(), ServerApp()
register_size_query(client, lambda context: 1 + int(context.node_config["partition-id"]) % 7)

@client.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    round_ = int(message.content["config"]["server-round"])
    (folder / f"{round_}-{number}").touch()
    arrays = [part + number for part in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)

@server.main()
def main(grid, context: Context) -> None:
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=100)
    log = folder / "selections.jsonl"
    strategy = CohortStrategy(inner, SizeClustered(10), seed=0, log_file=log)
    result = strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=3)
    (folder / "model.json").write_text(json.dumps(result.arrays.to_numpy_ndarrays()[0].tolist()))

if __name__ == "__main__":
    run_simulation(
        server, client, num_supernodes=100,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
"""


@pytest.mark.slow
def test_in_a_hundred_nodes_exactly_the_drawn_ones_train(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OPENBLAS_NUM_THREADS": "1",
    }

    result = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=400,
    )

    assert result.returncode == 0, result.stderr[-3000:]
    lines = [json.loads(line) for line in (tmp_path / "selections.jsonl").read_text().splitlines()]
    drawn = {(line["round"], int(key)) for line in lines for key in line["drawn"]}
    trained = {tuple(map(int, path.name.split("-"))) for path in tmp_path.glob("[0-9]*-*")}
    moves = [sum(w * int(key) for key, w in line["weights"].items()) for line in lines]
    assert trained == drawn
    assert [sum(line["drawn"].values()) for line in lines] == [10, 10, 10]
    assert json.loads((tmp_path / "model.json").read_text()) == pytest.approx([sum(moves)] * 3)
