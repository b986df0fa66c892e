"""Write ``flower.txt`` and ``flower.jsonl``: stock Flower, with a recorder around FedAvg.

``python .../written/write_flower.py``: half a minute on 2 cores. Half of ten nodes are
asked in each of eight rounds of Flower's simulation engine; one of them breaks from round 4 on. Of
the log, only the lines of the level INFO are kept, 120 characters of each.
"""

import logging
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedcohort.flower import record

WRITTEN = Path(__file__).parent
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Add the node's number to the model."""
    number = int(str(context.node_config["partition-id"]))
    if number == 3 and int(str(message.content.config_records["config"]["server-round"])) >= 4:
        raise RuntimeError("the disk is full")
    sent = message.content.array_records["arrays"]
    arrays = [part + number for part in sent.to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 10 * (number + 1)})
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and keep Flower's log."""
    log = logging.FileHandler(WRITTEN / "flower.txt", mode="w")
    log.setFormatter(logging.Formatter("%(levelname)s :      %(message)s"))
    logging.getLogger("flwr").addHandler(log)
    (WRITTEN / "flower.jsonl").unlink(missing_ok=True)
    strategy = record(
        FedAvg(fraction_train=0.5, fraction_evaluate=0.0, min_available_nodes=10),
        WRITTEN / "flower.jsonl",
    )
    strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=8)


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=10, backend_config={"init_args": {"num_cpus": 2}})
    log = WRITTEN / "flower.txt"
    lines = [line[:120] for line in log.read_text().splitlines() if line.startswith("INFO")]
    log.write_text("\n".join([*lines, ""]))
