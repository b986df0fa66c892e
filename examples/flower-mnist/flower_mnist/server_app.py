"""The server: FedAvg, with clients drawn by a design of fedcohort."""

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
    checkpoint = str(config["checkpoint"]) or None
    fedavg = FedAvg(fraction_evaluate=0.0, min_available_nodes=int(config["min-nodes"]))
    # 2 and 3: which design draws, around the strategy that aggregates.
    recipe = make_recipe(str(config["design"]), int(config["cohort-size"]), {})
    strategy = CohortStrategy(
        fedavg,
        recipe,
        seed=int(config["seed"]),
        log_file=str(config["log-file"]) or None,
        checkpoint=checkpoint,
        every=int(config["every"]),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model()),
        num_rounds=int(config["num-server-rounds"]),
        resume=checkpoint is not None,
    )
