"""A training round: the model that was sent, the replies, and who did not answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, final

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcohort._deployment import (
    LOSS_METRIC,
    SILENCE,
    ArrayCheck,
    ClientUpdate,
    ModelArrays,
    is_finite_number,
    log_reasons,
)
from fedcohort.flower.grid import error_of, node_of

log = getLogger("flwr.fedcohort")

#: Decompresses a reply: (content, the model that was sent) -> content.
Decode = Callable[[RecordDict, ArrayRecord], RecordDict]


@final
class SentModel(ModelArrays):
    """The arrays that were sent, ``record``, decoded once for all replies."""

    def __init__(self, record: ArrayRecord) -> None:
        super().__init__(Decoded(record))
        self.record = record

    def moved(self, update: Mapping[str, NDArray[Any]]) -> ArrayRecord | None:
        """Return the model plus an update; None where its types cannot hold the sum."""
        arrays = self.plus(update)
        if arrays is None:
            return None
        return ArrayRecord({name: Array(values) for name, values in arrays.items()})


@final
class Decoded(Mapping[str, NDArray[Any]]):
    """The arrays of a record; one is decoded when it is read."""

    def __init__(self, record: ArrayRecord) -> None:
        self._record = record

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._record[name].numpy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """A usable reply: the decoded message, and the update in it."""

    message: Message
    update: ClientUpdate

    @property
    def arrays(self) -> ArrayRecord:
        """The client's model."""
        return next(iter(self.message.content.array_records.values()))

    @property
    def metrics(self) -> MetricRecord:
        """The metrics that the client reports."""
        return metrics_of(self.message)


@final
@dataclass(frozen=True, slots=True)
class ReplyCheck:
    """Checks whether a reply can be used.

    Attributes
    ----------
    weight_key
        The metric that every reply must have.
    arrays
        Checks the arrays.
    decode
        Decompresses replies; None where they come as they are.
    """

    weight_key: str
    arrays: ArrayCheck
    decode: Decode | None = None

    def __call__(self, message: Message, sent: SentModel) -> Reply | str:
        """Return the reply with its update, or what is wrong with it."""
        if message.has_error():
            return error_of(message)
        if self.decode is not None:
            try:
                message = with_content(message, self.decode(message.content, sent.record))
            except Exception as error:  # a client can send anything
                return f"cannot be decoded: {type(error).__name__}, {error}"
        content = message.content
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            return "needs one record of arrays and one of metrics"
        if not is_finite_number(metrics_of(message).get(self.weight_key)):
            return f"has no number under {self.weight_key!r}"
        name, arrays = next(iter(content.array_records.items()))
        cast = self.arrays(Decoded(arrays), sent)
        if isinstance(cast, str):
            return cast
        if cast:
            typed = {name: Array(values) for name, values in cast.items()}
            arrays = ArrayRecord({**arrays, **typed})
            message = with_content(message, RecordDict({**content, name: arrays}))
        return Reply(message, ClientUpdate(sent, Decoded(arrays)))


@final
@dataclass(slots=True)
class TrainingRound:
    """A round between sending and receiving: who answered, and why others did not.

    Attributes
    ----------
    server_round, number
        The round as Flower counts it from every start, and as the inner strategy sees it: from 1,
        over all starts.
    sent, config, grid
        What was sent, and where.
    check
        Says whether a reply can be used.
    asked
        The metadata of the messages that were written: Flower gives them ids when it sends them.
    silence
        The reason for clients that do not answer.
    unheard
        Why no client could be drawn, if none gave the signal that was asked for.
    answered, failed
        The usable replies by client, in order of arrival, and why others cannot be used.
    """

    server_round: int
    number: int
    sent: SentModel
    config: ConfigRecord
    grid: Grid
    check: ReplyCheck
    asked: list[Any] = field(default_factory=list)
    silence: str = SILENCE
    unheard: str | None = None
    answered: dict[str, Reply] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def updates(self) -> dict[str, ClientUpdate]:
        """The updates of those that answered, none of them computed yet."""
        return {key: reply.update for key, reply in self.answered.items()}

    def accept(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Sort the replies of the nodes in ``key_of``; a client's first one counts."""
        nodes = {each.message_id: each.dst_node_id for each in self.asked if each.message_id}
        for message in replies:
            key = key_of.get(node_of(message, nodes))
            if key is None or key in self.answered or key in self.failed:
                continue
            found = self.check(message, self.sent)
            if isinstance(found, Reply):
                self.answered[key] = found
            else:
                self.failed[key] = found

    def take(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Accept the last replies of the nodes in ``key_of``; a node without a reply has failed."""
        self.accept(replies, key_of)
        failed = {
            key: self.failed.setdefault(key, self.silence)
            for key in key_of.values()
            if key not in self.answered
        }
        log_reasons(failed, f"training in round {self.number - 1}", len(key_of), logger=log)

    def reject(self, key: str, reason: str) -> None:
        """Count a client that answered as one that failed."""
        del self.answered[key]
        self.failed[key] = reason
        log_reasons(
            {key: reason}, f"training in round {self.number - 1}", len(self.asked), logger=log
        )

    def reported(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return what clients reported: losses, the metric ``rms_loss``, and durations.

        A duration is the time between message and reply, by the clocks of server and client.
        """
        sent_at = {each.dst_node_id: each.created_at for each in self.asked}
        losses, durations = dict[str, float](), dict[str, float]()
        for key, reply in self.answered.items():
            loss = reply.metrics.get(LOSS_METRIC)
            if isinstance(loss, (int, float)) and math.isfinite(loss) and loss >= 0:
                losses[key] = float(loss)
            about = reply.message.metadata
            if (start := sent_at.get(about.src_node_id)) is not None:
                durations[key] = max(0.0, about.created_at - start)
        return losses, durations


def metrics_of(message: Message) -> MetricRecord:
    """Return the message's first record of metrics; an empty one if it has none."""
    return next(iter(message.content.metric_records.values()), MetricRecord())


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a copy of the message with other content."""
    changed = copy(message)
    changed.content = content
    return changed
