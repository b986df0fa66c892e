"""Replies as the inner strategy must see them, and what it makes of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedcohort.flower.replies import Reply, is_finite_number, with_content
from fedcohort.flower.sent_model import Around, SentModel
from fedcohort.flower.training_round import TrainingRound


def weighed_replies(
    now: TrainingRound, weights: Mapping[str, float], *, weight_key: str, is_wrapped: bool
) -> list[Message]:
    """Return the replies of the clients in ``weights``, in that order.

    A wrapper clips what it gets: it must get the updates as they are, and the lost weight as a
    client that did not move.
    """
    total = sum_of(weights)
    metrics = shared_metrics([now.answered[key] for key in weights], weight_key)
    messages = [
        weighed(
            now.answered[key],
            now.sent,
            weight=weight,
            total=1.0 if is_wrapped else total,
            weight_key=weight_key,
            metrics=metrics,
            around=now.around(key),
        )
        for key, weight in weights.items()
    ]
    if is_wrapped and total < 1.0:
        messages.append(resting(messages, now.sent, weight_key))
    return messages


def sum_of(weights: Mapping[str, float]) -> float:
    """Return the sum of the weights, without the rounding where it is 1."""
    total = math.fsum(weights.values())
    return 1.0 if math.isclose(total, 1.0, rel_tol=1e-12) else total


def shared_metrics(replies: Iterable[Reply], weight_key: str) -> list[str]:
    """Return the metrics that every reply has as one finite number."""
    records = [next(iter(reply.message.content.metric_records.values())) for reply in replies]
    names = set.intersection(*(set(record) for record in records)) if records else set()
    return sorted(
        name
        for name in names - {weight_key}
        if all(is_finite_number(record[name]) for record in records)
    )


def weighed(
    reply: Reply,
    sent: SentModel,
    *,
    weight: float,
    total: float,
    weight_key: str,
    metrics: Collection[str] = (),
    around: Around | None = None,
) -> Message:
    """Return the reply as the inner strategy must see it.

    It divides by the sum W of all weights; with theta + W (theta_i - theta) in the place of
    theta_i it then computes theta + sum w_i (theta_i - theta), for any W. The difference
    estimator's theta + W (theta_i - theta - h_i) + H gives theta + sum w_i (theta_i - theta - h_i)
    + H. Records get the same names in every reply, and only the ``metrics`` that all share go
    along.
    """
    arrays = reply.arrays
    found = next(iter(reply.message.content.metric_records.values()))
    if total != 1.0 or around is not None:
        arrays = ArrayRecord(
            {name: Array(sent.stretched(name, arrays[name], total, around)) for name in sent.arrays}
        )
    shared = {name: found[name] for name in metrics}
    changed = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({**shared, weight_key: weight})}
    )
    return with_content(reply.message, changed)


def leaves_the_range(
    reply: Reply, sent: SentModel, total: float, around: Around | None = None
) -> bool:
    """Whether the stretched reply has entries that the model's types cannot hold."""
    return any(
        not _is_finite(sent.stretched(name, array, total, around))
        for name, array in reply.arrays.items()
    )


def memory_alone(sent: SentModel, mean: NDArray[np.floating], weight_key: str) -> Message:
    """Return the only reply of a round without clients: the model moved by what is remembered."""
    metrics = MetricRecord({weight_key: 1.0})
    content = RecordDict({"arrays": sent.displaced(mean), "metrics": metrics})
    return Message(content, dst_node_id=0, message_type=MessageType.TRAIN)


def resting(messages: Sequence[Message], sent: SentModel, weight_key: str) -> Message:
    """Return a reply of a client that did not move, with the weight that the others leave.

    Its metrics are the others' means, which then stay as they are.
    """
    records = [next(iter(message.content.metric_records.values())) for message in messages]
    weights = [float(record[weight_key]) for record in records]  # type: ignore[arg-type]
    means = {
        name: float(np.average([record[name] for record in records], weights=weights))
        for name in records[0]
    }
    metrics = MetricRecord({**means, weight_key: 1.0 - math.fsum(weights)})
    content = RecordDict({"arrays": _nudged(sent), "metrics": metrics})
    return with_content(messages[0], content)


def _nudged(sent: SentModel) -> ArrayRecord:
    """Move one entry by the least amount: Flower's clipping divides by the norm of an update."""
    arrays = dict(sent.record.items())
    for name, own in sent.arrays.items():
        if own.size and own.dtype.kind == "f":
            values = own.copy()
            first = values.reshape(-1)[0]
            least = max(np.spacing(np.abs(first)), values.dtype.type(1e-12))
            values.reshape(-1)[0] = first + least
            arrays[name] = Array(values)
            break
    return ArrayRecord(arrays)


def model_of(arrays: ArrayRecord, sent: SentModel) -> ArrayRecord | None:
    """Return the aggregate in the model's types; None where an entry is not finite.

    Averages make floats of counters, and doubles of floats.
    """
    typed = {}
    for name, array in arrays.items():
        own, new = sent.arrays[name].dtype, array.numpy()
        if not _is_finite(new):
            return None
        if new.dtype != own:
            with np.errstate(over="ignore"):
                new = np.asarray(np.rint(new) if own.kind in "iub" else new, dtype=own)
            if not _is_finite(new):
                return None
            array = Array(new)
        typed[name] = array
    return ArrayRecord(typed)


def _is_finite(values: NDArray[Any]) -> bool:
    return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())
