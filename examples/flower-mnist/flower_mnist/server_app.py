"""The server: FedAvg, with clients drawn by a design of fedcohort."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedcohort.designs import make_recipe
from fedcohort.flower import CohortStrategy
from flower_mnist.task import new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the rounds that the configuration asks for."""
    config = context.run_config
    log_file = str(config["log-file"])
    fedavg = FedAvg(fraction_evaluate=0.0, min_available_nodes=int(config["min-nodes"]))
    # Lines 2 and 3: which design draws, around the strategy that aggregates.
    recipe = make_recipe(str(config["design"]), int(config["cohort-size"]), {})
    strategy = CohortStrategy(
        fedavg,
        recipe,
        seed=int(config["seed"]),
        log_file=Path(log_file) if log_file else None,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model()),
        num_rounds=int(config["num-server-rounds"]),
    )
