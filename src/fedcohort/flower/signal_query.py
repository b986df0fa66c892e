"""What designs ask of clients before the draw: the client's answers, and the server's question."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from logging import getLogger

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedcohort.designs.signals import AskedSignal

log = getLogger("flwr.fedcohort")

#: A client's answer, from the current model (empty for a duration) and its context.
SignalAnswer = Callable[[ArrayRecord, Context], float]


def register_signal_queries(
    app: ClientApp,
    *,
    loss: SignalAnswer | None = None,
    update_norm: SignalAnswer | None = None,
    duration: SignalAnswer | None = None,
) -> None:
    """Let a client app answer what designs ask before the draw.

    Each is a function of the current model and the client's context that returns a number of at
    least 0; register those that the server's recipe asks for.

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
    """Ask nodes for a signal; return it by client, of those that gave a number of at least 0."""
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
    metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
    value = metrics.get(signal)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    return float(value)
