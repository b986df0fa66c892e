"""A training round: the model that was sent, the replies, and who did not answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

log = getLogger("flwr.fedcohort")

#: Entries that are converted to float64 at a time, 8 MB: a whole model would need too much memory.
PIECE = 2**20
#: What float32 can hold.
LARGEST = float(np.finfo(np.float32).max)
#: The metric of a train reply that is remembered as ``past_loss``.
LOSS_METRIC = "rms_loss"
#: Decompresses a reply: (content, the model that was sent) -> content.
Decode = Callable[[RecordDict, ArrayRecord], RecordDict]


@final
class SentModel:
    """The arrays that were sent, decoded once for all replies.

    Integer arrays beside floating-point ones are counters; an update's norm leaves them out.

    Attributes
    ----------
    record
        The arrays as they were sent.
    arrays
        The same as numpy arrays.
    dimension
        How many numbers an update has, without counters.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self.record = record
        self.arrays: dict[str, NDArray[Any]] = {
            name: array.numpy() for name, array in record.items()
        }
        floats = [name for name, own in self.arrays.items() if own.dtype.kind == "f"]
        self._counted = floats or list(self.arrays)
        self.dimension = sum(self.arrays[name].size for name in self._counted)

    def norm_of_update(self, name: str, after: NDArray[Any]) -> float:
        """Return the norm of one array's update; infinite where its type cannot hold it."""
        own = self.arrays[name]
        start, end, square = own.reshape(-1), after.reshape(-1), 0.0
        with np.errstate(all="ignore"):
            for first in range(0, start.size, PIECE):
                place = slice(first, first + PIECE)
                step = np.subtract(end[place].astype(np.float64), start[place])
                square += float(np.dot(step, step))
        largest = float(np.finfo(np.result_type(own.dtype, np.float32)).max)
        return math.sqrt(square) if math.sqrt(square) <= largest else math.inf

    def step(self, name: str, after: NDArray[Any]) -> NDArray[Any]:
        """Return one array's update, at least in float32; a counter's in integers."""
        own = self.arrays[name]
        if own.dtype.kind != "f":
            return np.asarray(after.astype(np.int64) - own.astype(np.int64))
        with np.errstate(all="ignore"):
            return np.asarray(np.subtract(after, own, dtype=np.result_type(own, np.float32)))

    def moved(self, update: Mapping[str, NDArray[Any]]) -> ArrayRecord | None:
        """Return the model plus an update; None where its types cannot hold the sum."""
        arrays = {}
        for name, own in self.arrays.items():
            with np.errstate(all="ignore"):
                values = own + update[name]
                values = np.asarray(np.rint(values) if own.dtype.kind in "iub" else values)
                values = values.astype(own.dtype, copy=False)
            if not is_finite(values):
                return None
            arrays[name] = Array(values)
        return ArrayRecord(arrays)

    def unflat(self, vector: NDArray[np.floating]) -> dict[str, NDArray[Any]]:
        """Return a flat update as arrays; counters stay."""
        arrays = {name: np.zeros_like(own) for name, own in self.arrays.items()}
        start = 0
        for name in self._counted:
            own = self.arrays[name]
            arrays[name] = vector[start : start + own.size].reshape(own.shape)
            start += own.size
        return arrays


@final
class ClientUpdate(Mapping[str, NDArray[Any]]):
    """A client's model minus the one that it was sent; an array is computed when it is read."""

    def __init__(self, sent: SentModel, arrays: ArrayRecord) -> None:
        self._sent, self._arrays = sent, arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._sent.step(name, self._arrays[name].numpy())

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent.arrays)

    def __len__(self) -> int:
        return len(self._sent.arrays)


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
        """What the client reports."""
        return metrics_of(self.message)


@final
@dataclass(frozen=True, slots=True)
class ReplyCheck:
    """Checks whether a reply can be used.

    Attributes
    ----------
    weight_key
        The metric that every reply must have.
    max_norm
        The largest norm of an update; None for any.
    decode
        Decompresses replies; None where they come as they are.
    is_remembered
        Whether the memory keeps updates, in float32, and sums of their entries.
    """

    weight_key: str
    max_norm: float | None = None
    decode: Decode | None = None
    is_remembered: bool = False

    def __call__(self, message: Message, sent: SentModel) -> Reply | str:
        """Return the reply with its update, or what is wrong with it."""
        if message.has_error():
            return f"error {message.error.code}: {message.error.reason}"
        if self.decode is not None:
            try:
                message = with_content(message, self.decode(message.content, sent.record))
            except Exception as error:  # a client can send anything
                return f"cannot be decoded ({type(error).__name__}: {error})"
        content = message.content
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            return "needs one record of arrays and one of metrics"
        if not is_finite_number(metrics_of(message).get(self.weight_key)):
            return f"has no number under {self.weight_key!r}"
        arrays = next(iter(content.array_records.values()))
        norm = _norm(arrays, sent)
        if isinstance(norm, str):
            return norm
        if self.max_norm is not None and norm > self.max_norm:
            return f"its update has norm {norm:g}, more than {self.max_norm:g}"
        # No sum of entries is larger than sqrt(dimension) times the norm.
        if self.is_remembered and norm * math.sqrt(sent.dimension) > LARGEST:
            return "is too large for float32"
        return Reply(message, ClientUpdate(sent, arrays))


def _norm(arrays: ArrayRecord, sent: SentModel) -> float | str:
    """Return the norm of an update, or why these arrays are none."""
    if list(arrays) != list(sent.arrays):
        return "has other arrays than the model"
    norms = []
    for name, before in sent.arrays.items():
        try:
            after = arrays[name].numpy()
        except Exception as error:  # bytes that are no array
            return f"{name} cannot be read ({type(error).__name__})"
        if after.shape != before.shape or after.dtype != before.dtype:
            return (
                f"{name} must be {before.dtype} of shape {before.shape}; got {after.dtype} of "
                f"shape {after.shape}"
            )
        if before.dtype.kind == "f":
            norms.append(sent.norm_of_update(name, after))
    norm = math.hypot(*norms)
    return norm if math.isfinite(norm) else "is not finite, or too large for its type"


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
    answered: dict[str, Reply] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def updates(self) -> dict[str, ClientUpdate]:
        """The updates of those that answered, none of them computed yet."""
        return {key: reply.update for key, reply in self.answered.items()}

    def accept(self, replies: Iterable[Message], key_of: Mapping[int, str]) -> None:
        """Sort the replies of the nodes in ``key_of``; a client's first one counts."""
        node_of = {each.message_id: each.dst_node_id for each in self.asked if each.message_id}
        for message in replies:
            node = message.metadata.src_node_id
            if message.has_error() and node not in key_of:
                # The SuperLink answers in its own name for a node that has gone.
                node = node_of.get(message.metadata.reply_to_message_id, node)
            key = key_of.get(node)
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
        for key in key_of.values():
            if key not in self.answered:
                self._log(key, self.failed.setdefault(key, "no answer"))

    def reject(self, key: str, reason: str) -> None:
        """Count a client that answered as one that failed."""
        del self.answered[key]
        self.failed[key] = reason
        self._log(key, reason)

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

    def _log(self, key: str, reason: str) -> None:
        log.warning("client %r, round %d: %.200r", key, self.number - 1, reason)


def is_finite(values: NDArray[Any]) -> bool:
    """Whether every entry is finite."""
    return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())


def is_finite_number(value: object) -> bool:
    """Whether a metric is one number, and finite."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def metrics_of(message: Message) -> MetricRecord:
    """Return the message's first record of metrics; an empty one where there is none."""
    return next(iter(message.content.metric_records.values()), MetricRecord())


def with_content(message: Message, content: RecordDict) -> Message:
    """Return a copy of the message with other content."""
    changed = copy(message)
    changed.content = content
    return changed
