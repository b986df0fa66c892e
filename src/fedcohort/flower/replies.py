"""Training messages: the model that was sent, and what replies bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, final

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedcohort.deployment.arrays import Arrays, LazyArrays, ModelArrays
from fedcohort.deployment.round import ClientAnswer, Round, TrainingRound, is_number
from fedcohort.flower.grid import error_of, node_of

#: Decompresses a reply: (content, the model that was sent) -> content.
Decode = Callable[[RecordDict, ArrayRecord], RecordDict]


@final
class SentModel(ModelArrays):
    """The arrays that were sent, ``record``, decoded once for all replies."""

    def __init__(self, record: ArrayRecord) -> None:
        super().__init__(decoded(record))
        self.record = record


def decoded(record: ArrayRecord) -> LazyArrays:
    """Return the arrays of a record; one is decoded when it is read."""
    return LazyArrays(record, lambda array: array.numpy())


def record_of(arrays: Arrays) -> ArrayRecord:
    """Return arrays as Flower sends them."""
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def client_model(answer: ClientAnswer) -> ArrayRecord:
    """Return a client's model in the model's order and types: FedAvgM adds arrays by position."""
    update = answer.update
    assert update is not None  # for mypy: the round trains
    if answer.scaled is not None:
        return record_of(answer.scaled)
    assert isinstance(update.arrays, LazyArrays)  # for mypy: of the reply's record
    record = update.arrays.source
    cast = update.held.keys() - set(update.sent.counters)
    return ArrayRecord(
        {
            name: Array(update.held[name]) if name in cast else record[name]
            for name in update.sent.arrays
        }
    )


@final
@dataclass(slots=True, eq=False)
class TrainingMessages:
    """The messages of a training round.

    Attributes
    ----------
    server_round
        The round as Flower counts it from every start.
    sent, config, grid
        What is sent, and where.
    weight_key
        The metric that every reply must have.
    decode
        Decompresses replies; None where they come as they are.
    answers
        The round's answers.
    metadata
        The metadata of the messages that were written: Flower gives them ids when it sends them.
    """

    server_round: int
    sent: SentModel
    config: ConfigRecord
    grid: Grid
    weight_key: str
    decode: Decode | None
    answers: TrainingRound
    metadata: list[Any] = field(default_factory=list)

    def accept(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Read the replies of the nodes in ``key_of``; a client's first one counts."""
        for name, message in expected(replies, self.metadata, key_of, self.answers):
            self._accept(name, message)

    def take(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Accept the last replies of the nodes in ``key_of``; a node without a reply has failed."""
        self.accept(replies, key_of)
        self.answers.close(key_of.values())

    def _accept(self, name: str, message: Message) -> None:
        """Read a reply: its arrays, its metrics, and how long it took by both clocks."""
        content = self._content(message)
        if isinstance(content, str):
            self.answers.accept(name, content)
            return
        arrays, metrics = content
        about = message.metadata
        sent_at = {each.dst_node_id: each.created_at for each in self.metadata}
        start = sent_at.get(about.src_node_id)
        seconds = None if start is None else max(0.0, about.created_at - start)
        self.answers.accept_arrays(name, decoded(arrays), message, metrics=metrics, seconds=seconds)

    def _content(self, message: Message) -> tuple[ArrayRecord, MetricRecord] | str:
        """Return a reply's arrays and metrics, or why it cannot be used."""
        if message.has_error():
            return error_of(message)
        content = message.content
        if self.decode is not None:
            try:
                content = self.decode(content, self.sent.record)
            except Exception as error:  # a client can send anything
                return f"cannot be decoded: {type(error).__name__}, {error}"
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            return "needs one record of arrays and one of metrics"
        metrics = next(iter(content.metric_records.values()))
        if not is_number(metrics.get(self.weight_key)):
            return f"has no number under {self.weight_key!r}"
        return next(iter(content.array_records.values())), metrics


def expected(
    replies: Iterable[Message], metadata: Iterable[Any], key_of: Mapping[int, str], round_: Round
) -> Iterator[tuple[str, Message]]:
    """Yield each reply that the round waits for, with the client that it is about."""
    nodes = {each.message_id: each.dst_node_id for each in metadata if each.message_id}
    for message in replies:
        name = key_of.get(node_of(message, nodes))
        if name is not None and round_.expects(name):
            yield name, message


def metrics_of(message: Message) -> MetricRecord:
    """Return the message's first record of metrics; an empty one if it has none."""
    return next(iter(message.content.metric_records.values()), MetricRecord())


def rewritten(
    message: Message, metrics: Mapping[str, Any], arrays: ArrayRecord | None = None
) -> Message:
    """Return a copy of a reply with other metrics, and another model where one is given.

    The records get the same names in every reply.
    """
    changed = copy(message)
    models = message.content.array_records if arrays is None else {"arrays": arrays}
    changed.content = RecordDict({**models, "metrics": MetricRecord(dict(metrics))})
    return changed
