"""A client that adds a known vector to the model, and lies where a file tells it to."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedcohort.flower import register_size_query
from soak.task import layers, size_of, update_of

app = ClientApp()


def size(context: Context) -> int:
    """Return the number of samples; a file makes one answer nonsense."""
    partition = int(context.node_config["partition-id"])
    order = Path(str(context.run_config["folder"])) / f"size-lie-{partition}"
    if order.exists():
        order.unlink()
        _note(context, "size", 0)
        return -5
    _note(context, "known", 0)
    return size_of(partition)


def name(context: Context) -> str:
    """Return the client's name; an impostor's configuration has another client's."""
    return str(context.node_config.get("claims", context.node_config["partition-id"]))


register_size_query(app, size, key=name)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add this client's vector, or send what the lie is."""
    partition = int(context.node_config["partition-id"])
    number = int(str(message.content.config_records["config"]["server-round"]))
    order = Path(str(context.run_config["folder"])) / f"lie-{partition}"
    lie = order.read_text() if order.exists() else "honest"
    if "claims" in context.node_config:
        lie = "name"
    _note(context, lie, number)
    arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
    steps = layers(update_of(partition))
    moved = [a + step for a, step in zip(arrays, steps, strict=True)]
    return Message(_content(moved, size_of(partition), lie), reply_to=message)


def _content(moved: list[NDArray[Any]], size: int, lie: str) -> RecordDict:
    """Return the reply as the lie has it."""
    changes: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "nan": lambda a: np.full_like(a, np.nan),
        "shape": lambda a: a.reshape(-1)[:3],
        "type": lambda a: a.astype(np.int64),
        "norm": lambda a: a + np.float32(1e20),
        "float64": lambda a: a.astype(np.float64),
    }
    if lie == "exception":
        raise RuntimeError("this client fails on purpose")
    arrays = ArrayRecord([changes.get(lie, np.asarray)(a) for a in moved])
    if lie == "metrics":
        return RecordDict({"arrays": arrays})
    examples = {"examples": math.nan, "negative": -5}.get(lie, size)
    metrics = MetricRecord({"num-examples": examples, "loss": 1.0})
    return RecordDict({"arrays": arrays, "metrics": metrics})


def _note(context: Context, lie: str, number: int) -> None:
    """Append a line to the file of what clients sent."""
    line = {
        "client": str(context.node_config["partition-id"]),
        "node": context.node_id,
        "number": number,
        "lie": lie,
        "when": time.time(),
    }
    with (Path(str(context.run_config["folder"])) / "sent.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
