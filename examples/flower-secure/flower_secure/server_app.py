"""The server: FedAvg, with clients drawn by a design, and a secure sum of their updates."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.designs import make_recipe
from fedcohort.flower import CohortStrategy, SecureAggregation, Waits
from flower_secure.task import new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the configuration asks for."""
    config = context.run_config
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=int(config["min-nodes"])),
        make_recipe(str(config["design"]), int(config["cohort-size"]), {}),
        seed=int(config["seed"]),
        # 3: the protocol. Lost clients are waited for in each of its short stages.
        secure=SecureAggregation(threshold=float(config["threshold"]), clip=float(config["clip"])),
        waits=Waits(query=float(config["wait"]), reply=float(config["wait"])),
        log_file=str(config["log-file"]) or None,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model()),
        num_rounds=int(config["num-server-rounds"]),
    )
    if path := str(config["model-file"]):
        np.savez(path, *result.arrays.to_numpy_ndarrays())
