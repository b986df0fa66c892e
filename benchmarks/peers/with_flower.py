"""Flower: its FedAvg on its simulation engine, with Ray and one CPU.

``run_simulation`` and the command ``flwr run`` start the same engine. The clients train by the
plain program's loop. With evaluation: the strategy's ``evaluate_fn`` on the server.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peers.contract import Laps, Task, Trained, main
from peers.flower_app import app as client_app
from peers.torch_model import accuracy, mean_loss, new_model, parameters_of, samples
from peers.workload import CLIENTS, COHORT, Federation

ONE_CPU: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 1},
}


def train(federation: Federation, task: Task, laps: Laps) -> Trained:
    """Run the engine with an app of this round loop."""
    model, taken = new_model(federation.start), [0]
    everyone = samples(federation.x, federation.y)
    test = samples(federation.test_x, federation.test_y)
    own: list[float | None] = [None, None]

    def count(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        steps = [reply.metric_records["metrics"]["steps"] for reply in replies]
        taken[0] += int(np.sum(steps))
        return MetricRecord()

    def end_of_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0:
            laps.begin()
            return None
        if task.evaluate:
            model.load_state_dict(arrays.to_torch_state_dict())
            own[:] = mean_loss(model, *everyone), accuracy(model, *test)
        elif server_round == task.rounds:
            model.load_state_dict(arrays.to_torch_state_dict())
        laps.lap()
        return None

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=COHORT / CLIENTS,
            fraction_evaluate=0.0,
            # The first round is sized before all nodes are there: this holds it to the cohort.
            min_train_nodes=COHORT,
            min_available_nodes=CLIENTS,
            train_metrics_aggr_fn=count,
        )
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=task.rounds,
            train_config=ConfigRecord({"data": str(task.data)}),
            evaluate_fn=end_of_round,
        )

    torch.set_num_threads(1)
    random.seed(task.seed)
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=ONE_CPU)
    return Trained(parameters_of(model), taken[0], *own)


if __name__ == "__main__":
    main(train, "flwr", "ray", "torch", "numpy")
