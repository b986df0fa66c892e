"""A training round: the model that was sent, the replies, and who did not answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedcohort.errors import FlowerError
from fedcohort.flower.grid import SILENCE, error_of, node_of

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
        fitted = _in_the_models_types(arrays, sent)
        if isinstance(fitted, str):
            return fitted
        norm = _norm(fitted, sent)
        if not math.isfinite(norm):
            return "is not finite, or too large for its type"
        if self.max_norm is not None and norm > self.max_norm:
            return f"its update is too large: its norm is {norm:g}, more than {self.max_norm:g}"
        # No sum of entries is larger than sqrt(dimension) times the norm.
        if self.is_remembered and norm * math.sqrt(sent.dimension) > LARGEST:
            return "is too large for float32"
        if fitted is not arrays:
            message = with_content(message, RecordDict({**content, name: fitted}))
        return Reply(message, ClientUpdate(sent, fitted))


def _in_the_models_types(arrays: ArrayRecord, sent: SentModel) -> ArrayRecord | str:
    """Return the arrays, floating-point ones in the model's types, or why they do not fit it."""
    if list(arrays) != list(sent.arrays):
        return "has other arrays than the model"
    cast: dict[str, Array] = {}
    for name, before in sent.arrays.items():
        try:
            after = arrays[name].numpy()
        except Exception as error:  # bytes that are no array
            return f"{name} cannot be read: {type(error).__name__}"
        is_same_kind = after.dtype == before.dtype or after.dtype.kind == before.dtype.kind == "f"
        if after.shape != before.shape or not is_same_kind:
            return (
                f"has other arrays than the model: {name} must be {before.dtype} of shape "
                f"{before.shape}; got {after.dtype} of shape {after.shape}"
            )
        if after.dtype != before.dtype:
            with np.errstate(over="ignore"):
                values = after.astype(before.dtype)
            if is_finite(after) and not is_finite(values):
                return f"is too large for its type: {name} overflows {before.dtype}"
            cast[name] = Array(values)
    return ArrayRecord({**arrays, **cast}) if cast else arrays


def _norm(arrays: ArrayRecord, sent: SentModel) -> float:
    """Return the norm of an update, without counters."""
    floats = [name for name, own in sent.arrays.items() if own.dtype.kind == "f"]
    return math.hypot(*(sent.norm_of_update(name, arrays[name].numpy()) for name in floats))


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
        The reason of those that do not answer.
    unheard
        Why nobody could be drawn, where nobody gave the signal that was asked for.
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
        log_reasons(failed, f"training in round {self.number - 1}", len(key_of))

    def reject(self, key: str, reason: str) -> None:
        """Count a client that answered as one that failed."""
        del self.answered[key]
        self.failed[key] = reason
        log_reasons({key: reason}, f"training in round {self.number - 1}", len(self.asked))

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


@final
class Patience:
    """Counts rounds in a row without a usable reply, and why.

    Parameters
    ----------
    rounds
        Give up after so many.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds, self._fruitless = rounds, 0
        self._kinds: Counter[str] = Counter()
        self._example: dict[str, str] = {}

    def reset(self) -> None:
        """Begin anew after a usable reply."""
        self._fruitless, self._kinds, self._example = 0, Counter(), {}

    def lose(self, reasons: Iterable[str]) -> None:
        """Count a round without a usable reply; give up after the last."""
        self._fruitless += 1
        for reason in reasons:
            kind = reason.partition(":")[0]
            self._kinds[kind] += 1
            self._example.setdefault(kind, reason)
        if self._fruitless >= self._rounds:
            found = [
                f"{count} times {self._example[kind]!r:.150}"
                for kind, count in self._kinds.most_common()
            ]
            raise FlowerError(
                f"CohortStrategy: {self._fruitless} rounds in a row had no usable reply: "
                f"{', '.join(found)}. Mend the clients, or raise Limits(give_up_after=...)."
            )


def log_reasons(failed: Mapping[str, str], doing: str, n_asked: int, who: str = "clients") -> None:
    """Log why clients failed, every reason once."""
    clients: dict[str, list[str]] = {}
    for key, reason in failed.items():
        clients.setdefault(reason, []).append(key)
    for reason, keys in clients.items():
        log.warning(
            "%s: %d of %d %s failed (%.200s): %.200s",
            *(doing, len(keys), n_asked, who, ", ".join(keys), reason),
        )


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
