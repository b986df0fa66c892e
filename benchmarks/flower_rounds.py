"""Rounds of a thousand virtual nodes, beside Flower's own FedAvg in the same run.

Run ``python benchmarks/flower_rounds.py [--nodes 1000] [--rounds 8] [--draws 10] [--dimension N]``.
One program on Flower's simulation engine plays FedAvg and strategies of ours in turn, each with as
many drawn nodes; clients add a constant to the model. A round of FedAvg starts the engine before.
Printed: seconds of the first round, the median of the later ones, and both as ratios to FedAvg's.

Bars: later rounds 1.2; the first 3 where ``sizes=`` are given by node. Sizes by name leave the
nodes' names to ask for: as many messages as nodes, before the first round.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from measurement import machine

PROGRAM = """
import json, sys, time
import numpy as np
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from fedcohort import SimilarityClustered, SizeClustered
from fedcohort.flower import CohortStrategy, register_size_query

nodes, rounds, draws, dimension, out = (*map(int, sys.argv[1:5]), sys.argv[5])
client, server = ClientApp(), ServerApp()
SIZES = {str(k): 10 + 7 * k % 991 for k in range(nodes)}
register_size_query(client, lambda context: SIZES[str(context.node_config["partition-id"])])

@client.train()
def train(message, context):
    arrays = [part + 1 for part in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)

def fedavg():
    return FedAvg(fraction_train=draws / nodes, fraction_evaluate=0.0, min_available_nodes=nodes)

@server.main()
def main(grid, context):
    zeros = ArrayRecord([np.zeros(dimension, np.float32)])
    fedavg().start(grid, zeros, 1)  # starts the engine, and waits for the nodes
    by_node = {node: 10 + 7 * k % 991 for k, node in enumerate(sorted(grid.get_node_ids()))}
    strategies = {
        "FedAvg": fedavg(),
        "size, sizes by node": CohortStrategy(
            fedavg(), SizeClustered(draws), seed=0, sizes=by_node),
        "size, sizes by name": CohortStrategy(fedavg(), SizeClustered(draws), seed=0, sizes=SIZES),
        "size, sizes asked": CohortStrategy(fedavg(), SizeClustered(draws), seed=0),
        "similarity": CohortStrategy(
            fedavg(), SimilarityClustered(draws), seed=0, sizes=by_node, sketch=64),
        "size, difference": CohortStrategy(
            fedavg(), SizeClustered(draws), seed=0, sizes=by_node, estimator="difference"),
        "FedAvg again": fedavg(),
    }
    found = {}
    for name, strategy in strategies.items():
        marks = [time.perf_counter()]
        strategy.start(
            grid, zeros, rounds,
            evaluate_fn=lambda number, arrays: marks.append(time.perf_counter()),
        )
        found[name] = np.diff(marks[1:]).tolist()  # without the evaluation before the first round
        with open(out, "w") as file:
            json.dump(found, file)

if __name__ == "__main__":
    run_simulation(
        server, client, num_supernodes=nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
"""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}


def measured(nodes: int, rounds: int, draws: int, dimension: int) -> dict[str, list[float]]:
    """Return the seconds of every round by strategy."""
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "program.py", Path(folder) / "found.json"
        program.write_text(PROGRAM)
        numbers = [str(each) for each in (nodes, rounds, draws, dimension)]
        with (Path(folder) / "log").open("w+") as log:
            ended = subprocess.run(
                [sys.executable, str(program), *numbers, str(out)],
                env={**os.environ, **QUIET},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if ended.returncode:
                log.seek(0)
                raise SystemExit(log.read()[-3000:])
        found: dict[str, list[float]] = json.loads(out.read_text())
        return found


def table(found: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return first and later rounds, with their ratios to FedAvg's."""
    own = [np.array(found[name]) for name in ("FedAvg", "FedAvg again")]
    first = float(np.mean([times[0] for times in own]))
    later = float(np.mean([np.median(times[1:]) for times in own]))
    rows: dict[str, dict[str, float]] = {}
    for name, times in found.items():
        median = float(np.median(times[1:]))
        rows[name] = {
            "first_s": times[0],
            "later_s": median,
            "first_ratio": times[0] / first,
            "later_ratio": median / later,
        }
    return rows


def main() -> None:
    """Print a line per strategy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--dimension", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options: dict[str, Any] = vars(parser.parse_args())
    as_json = options.pop("json")
    rows = table(measured(**options))
    if as_json:
        print(json.dumps({"machine": machine(), **options, "rounds": rows}, indent=2))
        return
    print(machine(), time.strftime("%Y-%m-%d"), options)
    print(f"{'strategy':24s} {'first':>8s} {'ratio':>6s} {'later':>8s} {'ratio':>6s}")
    for name, row in rows.items():
        numbers = (row["first_s"], row["first_ratio"], row["later_s"], row["later_ratio"])
        print("{:24s} {:6.2f} s {:6.2f} {:6.2f} s {:6.2f}".format(name, *numbers))


if __name__ == "__main__":
    main()
