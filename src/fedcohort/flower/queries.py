"""Questions to nodes before the draw: their sizes, and the signals that a recipe asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import index

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedcohort._arguments import brief, checked_kind
from fedcohort.deployment.directory import Claim, Properties
from fedcohort.designs.signals import AskedSignal
from fedcohort.errors import FlowerError
from fedcohort.flower.grid import error_of
from fedcohort.flower.replies import metrics_of

ACTION = "num_examples"
MESSAGE_TYPE = f"query.{ACTION}"
SIZE = "num-examples"
#: The record of the client's own name, and the entry in it.
CONFIG, KEY = "config", "key"
#: The record of the client's properties.
PROPERTIES = "properties"
LONGEST_KEY = 128
#: A client's answer, from the current model (empty for a duration) and its context.
SignalAnswer = Callable[[ArrayRecord, Context], float]


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
        Returns text, numbers and lists of them by name, for the server's ``eligible``. They are
        the features of the estimator ``Regression(features="given")``.
    """
    _check("register_size_query", app, size=size, key=key, properties=properties)

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


def size_queries(node_ids: Iterable[int], seconds: float) -> list[Message]:
    """Write the question for sizes to nodes; it expires after ``seconds``."""
    return [Message(RecordDict(), node_id, MESSAGE_TYPE, ttl=seconds) for node_id in node_ids]


def claim_of(reply: Message, node_id: int) -> Claim | str:
    """Return what a node says of itself, or what is wrong with it."""
    if reply.has_error():
        return error_of(reply)
    config = reply.content.config_records.get(CONFIG, ConfigRecord())
    key = str(config.get(KEY) or node_id)
    if len(key) > LONGEST_KEY or not key.isprintable():
        return f"its key must be at most {LONGEST_KEY} printable characters"
    properties = dict(reply.content.config_records.get(PROPERTIES, ConfigRecord()))
    return Claim.of(key, metrics_of(reply).get(SIZE), properties)


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
    _check("register_signal_queries", app, **answers)
    for name, answer in answers.items():
        if answer is not None:
            _register(app, name, answer)


def _check(owner: str, app: object, **functions: object) -> None:
    """Validate a client app and functions."""
    way_out = "Pass app = ClientApp()."
    checked_kind(owner, "app", app, ClientApp, way_out=way_out, error=FlowerError)
    for name, function in functions.items():
        if not callable(function) and (function is not None or name == "size"):
            raise FlowerError(
                f"{owner}: {name} must be a function; got {brief(function)}. Pass a function that "
                f"returns it."
            )


def _register(app: ClientApp, name: str, answer: SignalAnswer) -> None:
    @app.query(name)
    def reply(message: Message, context: Context) -> Message:
        model = next(iter(message.content.array_records.values()), ArrayRecord())
        value = float(answer(model, context))
        return Message(RecordDict({"metrics": MetricRecord({name: value})}), reply_to=message)


def signal_queries(
    signal: AskedSignal, node_ids: Iterable[int], model: ArrayRecord, seconds: float
) -> list[Message]:
    """Write the question for a signal to nodes; it expires after ``seconds``."""
    content = RecordDict() if signal == "duration" else RecordDict({"arrays": model})
    return [Message(content, node, f"query.{signal}", ttl=seconds) for node in sorted(node_ids)]


def signals_of(
    replies: Iterable[Message], signal: AskedSignal, key_of: Mapping[int, str]
) -> dict[str, object]:
    """Return the answers by client, None for none."""
    answers: dict[str, object] = dict.fromkeys(key_of.values())
    for reply in replies:
        key = key_of.get(reply.metadata.src_node_id)
        if key is not None and not reply.has_error():
            answers[key] = metrics_of(reply).get(signal)
    return answers
