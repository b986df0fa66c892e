"""The client of the Flower federation; in a file of its own, so that Ray's workers import it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from peers.torch_model import Samples, new_model, samples, train_locally
from peers.workload import Federation

app = ClientApp()


@cache
def federation(path: str) -> Federation:
    """Read the data once in every worker."""
    return Federation.load(Path(path))


@cache
def own_samples(path: str, client: int) -> Samples:
    """Return a client's samples, ready to train on."""
    everything = federation(path)
    return samples(everything.x[client], everything.y[client])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train from the model that came, by the same loop as the plain program's."""
    path = str(message.content.config_records["config"]["data"])
    x, y = own_samples(path, int(context.node_config["partition-id"]))
    model = new_model(federation(path).start)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    taken = train_locally(model, x, y)
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(y), "steps": taken}),
            }
        ),
        reply_to=message,
    )
