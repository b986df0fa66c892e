"""Questions to nodes before the draw: their sizes, and the signals that a recipe asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import getLogger
from operator import index
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedcohort._deployment import claimed_size
from fedcohort.designs.signals import AskedSignal
from fedcohort.flower.grid import error_of, exchange
from fedcohort.flower.replies import metrics_of

log = getLogger("flwr.fedcohort")

ACTION = "num_examples"
MESSAGE_TYPE = f"query.{ACTION}"
SIZE = "num-examples"
#: The record of the client's own name, and the entry in it.
CONFIG, KEY = "config", "key"
#: The record of what else a client says of itself.
PROPERTIES = "properties"
LONGEST_KEY, LONGEST_PROPERTIES = 128, 10_000
#: A client's answer, from the current model (empty for a duration) and its context.
SignalAnswer = Callable[[ArrayRecord, Context], float]
#: A client's description of itself: text and numbers by name.
Properties = Mapping[str, Any]


def register_size_query(
    app: ClientApp,
    size: Callable[[Context], int],
    *,
    key: Callable[[Context], str | int] | None = None,
    properties: Callable[[Context], Properties] | None = None,
) -> None:
    """Let a client app answer with its number of samples, its name and its properties.

    Parameters
    ----------
    app
        The client app.
    size
        Returns the number of training samples; called in every process that answers, so keep it
        free of heavy imports.
    key
        Returns a name that stays the same when the node comes back under another id; by default
        the node configuration's ``partition-id``, or the node's id without it.
    properties
        Returns text and numbers by name, for the server's ``eligible``.
    """

    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        name = context.node_config.get("partition-id", "") if key is None else key(context)
        content = RecordDict(
            {
                "metrics": MetricRecord({SIZE: index(size(context))}),
                CONFIG: ConfigRecord({KEY: str(name)}),
            }
        )
        if properties is not None:
            content[PROPERTIES] = ConfigRecord(dict(properties(context)))
        return Message(content, reply_to=message)


@dataclass(frozen=True, slots=True)
class Claim:
    """A node's description of itself: its client's name, samples and properties."""

    key: str
    size: int
    properties: Properties = field(default_factory=dict)


def size_queries(node_ids: Iterable[int], seconds: float) -> list[Message]:
    """Write the question for sizes to nodes; it can be answered for so long."""
    return [Message(RecordDict(), node_id, MESSAGE_TYPE, ttl=seconds) for node_id in node_ids]


def claim_of(reply: Message, node_id: int) -> Claim | str:
    """Return what a node says of itself, or what is wrong with it."""
    if reply.has_error():
        return error_of(reply)
    config = reply.content.config_records.get(CONFIG, ConfigRecord())
    size, key = claimed_size(metrics_of(reply).get(SIZE)), str(config.get(KEY) or node_id)
    if isinstance(size, str):
        return size
    if len(key) > LONGEST_KEY or not key.isprintable():
        return f"its key must be at most {LONGEST_KEY} printed letters"
    properties = dict(reply.content.config_records.get(PROPERTIES, ConfigRecord()))
    if bytes in map(type, _entries(properties)):
        return "its properties must be text and numbers; got bytes"
    if len(repr(properties)) > LONGEST_PROPERTIES:
        return f"its properties must be at most {LONGEST_PROPERTIES} letters"
    return Claim(key, size, properties)


def _entries(properties: Properties) -> Iterator[object]:
    for value in properties.values():
        yield from value if isinstance(value, list) else [value]


def register_signal_queries(
    app: ClientApp,
    *,
    loss: SignalAnswer | None = None,
    update_norm: SignalAnswer | None = None,
    duration: SignalAnswer | None = None,
) -> None:
    """Let a client app answer what designs ask before the draw.

    Each answer is a function of the current model and the client's context, and returns a number
    of at least 0. Register the ones that the server's recipe asks for.

    Parameters
    ----------
    app
        The client app.
    loss
        The mean loss of the model on the client's samples (power-of-choice).
    update_norm
        The norm of the update that the client would send (norm-optimal); it trains for that.
    duration
        The seconds that the client expects to take (deadline, first); the model is not sent.
    """
    answers: dict[str, SignalAnswer | None] = {
        "loss": loss,
        "update_norm": update_norm,
        "duration": duration,
    }
    for name, answer in answers.items():
        if answer is not None:
            _register(app, name, answer)


def _register(app: ClientApp, name: str, answer: SignalAnswer) -> None:
    @app.query(name)
    def reply(message: Message, context: Context) -> Message:
        model = next(iter(message.content.array_records.values()), ArrayRecord())
        value = float(answer(model, context))
        return Message(RecordDict({"metrics": MetricRecord({name: value})}), reply_to=message)


def ask_signal(
    grid: Grid,
    signal: AskedSignal,
    key_of: Mapping[int, str],
    model: ArrayRecord,
    *,
    seconds: float,
) -> dict[str, float]:
    """Ask nodes for a signal; return the valid answers, numbers of at least 0, by client."""
    content = RecordDict() if signal == "duration" else RecordDict({"arrays": model})
    messages = [Message(content, node, f"query.{signal}", ttl=seconds) for node in sorted(key_of)]
    found: dict[str, float] = {}
    for reply in exchange(grid, messages, seconds):
        key = key_of.get(reply.metadata.src_node_id)
        if key is not None and (value := _number(reply, signal)) is not None:
            found[key] = value
    if missing := [key for key in key_of.values() if key not in found]:
        log.warning(
            "%d of %d clients gave no %s: %.200s", len(missing), len(key_of), signal, missing
        )
    return found


def _number(reply: Message, signal: AskedSignal) -> float | None:
    if reply.has_error():
        return None
    value = metrics_of(reply).get(signal)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
