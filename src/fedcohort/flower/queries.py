"""Questions to nodes before the draw: their sizes, and the signals that a recipe asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import getLogger
from operator import index

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedcohort.designs.signals import AskedSignal
from fedcohort.flower.replies import metrics_of

log = getLogger("flwr.fedcohort")

ACTION = "num_examples"
MESSAGE_TYPE = f"query.{ACTION}"
SIZE = "num-examples"
#: The record of the client's own name.
KEY = "key"
LONGEST_KEY = 128
#: The largest size: a million such clients and a thousand draws still fit 63 bits.
LARGEST_SIZE = 10**12
#: A client's answer, from the current model (empty for a duration) and its context.
SignalAnswer = Callable[[ArrayRecord, Context], float]


def register_size_query(
    app: ClientApp,
    size: Callable[[Context], int],
    *,
    key: Callable[[Context], str | int] | None = None,
) -> None:
    """Let a client app answer with its number of samples and its name.

    Parameters
    ----------
    app
        The client app.
    size
        Returns the number of training samples; called in every process that answers, so keep it
        free of heavy imports.
    key
        Returns a name that stays the same when the node comes back under another id; by default
        the node configuration's ``partition-id``, or the node's id where there is none.
    """

    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        name = context.node_config.get("partition-id", "") if key is None else key(context)
        content = RecordDict(
            {
                "metrics": MetricRecord({SIZE: index(size(context))}),
                "config": ConfigRecord({KEY: str(name)}),
            }
        )
        return Message(content, reply_to=message)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node said of itself."""

    node_id: int
    size: int
    key: str


def ask_sizes(grid: Grid, node_ids: Iterable[int], *, timeout: float) -> list[Answer]:
    """Ask nodes for their sizes; log and leave out nodes without a valid answer."""
    asked = list(node_ids)
    messages = [Message(RecordDict(), node_id, MESSAGE_TYPE, ttl=timeout) for node_id in asked]
    answers: dict[int, Answer] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        found = _answer(reply)
        if found is not None:
            answers[found.node_id] = found
    for node_id in sorted(set(asked) - set(answers)):
        log.warning("node %d did not say how many samples it has: left out", node_id)
    return [answers[node_id] for node_id in sorted(answers)]


def _answer(reply: Message) -> Answer | None:
    node_id = reply.metadata.src_node_id
    if reply.has_error():
        log.warning("node %d: no size (%.200r)", node_id, reply.error.reason)
        return None
    metrics = metrics_of(reply)
    config = next(iter(reply.content.config_records.values()), ConfigRecord())
    size, key = metrics.get(SIZE), str(config.get(KEY) or node_id)
    if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
        log.warning(
            "node %d: its size must be a whole number from 0 to 10^12; got %.50r", node_id, size
        )
        return None
    if len(key) > LONGEST_KEY or not key.isprintable():
        log.warning("node %d: its key must be at most %d printed letters", node_id, LONGEST_KEY)
        return None
    return Answer(node_id, size, key)


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
    timeout: float,
) -> dict[str, float]:
    """Ask nodes for a signal; return the valid answers, numbers of at least 0, by client."""
    content = RecordDict() if signal == "duration" else RecordDict({"arrays": model})
    messages = [Message(content, node, f"query.{signal}", ttl=timeout) for node in sorted(key_of)]
    found: dict[str, float] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
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
