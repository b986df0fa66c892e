"""Train replies: checked on arrival, and weighed for the inner strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """A reply that can be used: the message, and its update as one vector."""

    message: Message
    update: NDArray[np.float32]


#: Makes arrays of a compressed reply: (content, the model that was sent) -> content.
Decode = Callable[[RecordDict, ArrayRecord], RecordDict]


def checked_reply(
    message: Message,
    sent: ArrayRecord,
    *,
    weight_key: str,
    max_norm: float | None,
    decode: Decode | None = None,
) -> Reply | str:
    """Return the reply with its update, or what is wrong with it."""
    if message.has_error():
        return f"error {message.error.code}: {message.error.reason}"
    if decode is not None:
        try:
            message = _with_content(message, decode(message.content, sent))
        except Exception as error:  # a client can send anything
            return f"cannot be decoded ({type(error).__name__}: {error})"
    content = message.content
    if len(content.array_records) != 1 or len(content.metric_records) != 1:
        return "needs one record of arrays and one of metrics"
    metrics = next(iter(content.metric_records.values()))
    if not _is_finite_number(metrics.get(weight_key)):
        return f"has no number under {weight_key!r}"
    arrays = next(iter(content.array_records.values()))
    if list(arrays) != list(sent):
        return "has other arrays than the model"
    parts = []
    for name, own in sent.items():
        before = own.numpy()
        try:
            after = arrays[name].numpy()
        except Exception as error:  # bytes that are no array
            return f"{name} cannot be read ({type(error).__name__})"
        if after.shape != before.shape or after.dtype != before.dtype:
            return (
                f"{name} must be {before.dtype} of shape {before.shape}; got {after.dtype} of "
                f"shape {after.shape}"
            )
        if before.dtype.kind == "f":  # counters are no part of an update
            parts.append((after.astype(np.float64) - before).ravel())
    update = np.concatenate(parts) if parts else np.empty(0)
    norm = float(np.sqrt(np.dot(update, update)))
    if not np.isfinite(norm):
        return "is not finite"
    if max_norm is not None and norm > max_norm:
        return f"its update has norm {norm:g}, more than {max_norm:g}"
    with np.errstate(over="ignore"):
        kept = update.astype(np.float32)
    return Reply(message, kept) if np.isfinite(kept).all() else "is too large for float32"


def shared_metrics(replies: Iterable[Reply], weight_key: str) -> list[str]:
    """Return the metrics that every reply has as one finite number."""
    records = [next(iter(reply.message.content.metric_records.values())) for reply in replies]
    names = set.intersection(*(set(record) for record in records)) if records else set()
    return sorted(
        name
        for name in names - {weight_key}
        if all(_is_finite_number(record[name]) for record in records)
    )


def _is_finite_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def weighed(
    reply: Reply,
    sent: ArrayRecord,
    *,
    weight: float,
    total: float,
    weight_key: str,
    metrics: Collection[str] = (),
) -> Message:
    """Return the reply as the inner strategy must see it.

    It divides by the sum W of all weights; with theta + W (theta_i - theta) in the place of
    theta_i it then computes theta + sum w_i (theta_i - theta), for any W. Records get the same
    names in every reply, and only the ``metrics`` that all share go along.
    """
    content = reply.message.content
    arrays = next(iter(content.array_records.values()))
    found = next(iter(content.metric_records.values()))
    if total != 1.0:
        arrays = ArrayRecord({name: _stretched(sent[name], arrays[name], total) for name in sent})
    shared = {name: found[name] for name in metrics}
    changed = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({**shared, weight_key: weight})}
    )
    return _with_content(reply.message, changed)


def resting(message: Message, sent: ArrayRecord, weight: float, weight_key: str) -> Message:
    """Return a reply of a client that did not move; it has the metrics of ``message``."""
    metrics = next(iter(message.content.metric_records.values()))
    own = MetricRecord({**metrics, weight_key: weight})
    return _with_content(message, RecordDict({"arrays": _nudged(sent), "metrics": own}))


def _nudged(sent: ArrayRecord) -> ArrayRecord:
    """Move one entry by the least amount: Flower's clipping divides by the norm of an update."""
    arrays = dict(sent.items())
    for name, array in arrays.items():
        values = array.numpy().copy()
        if values.size and values.dtype.kind == "f":
            first = values.reshape(-1)[0]
            least = max(np.spacing(np.abs(first)), values.dtype.type(1e-12))
            values.reshape(-1)[0] = first + least
            arrays[name] = Array(values)
            break
    return ArrayRecord(arrays)


def _with_content(message: Message, content: RecordDict) -> Message:
    """Return the message with other content; the one that came stays as it is."""
    changed = copy(message)
    changed.content = content
    return changed


def typed_like(arrays: ArrayRecord, sent: ArrayRecord) -> ArrayRecord:
    """Return the arrays in the types of the model that was sent: averages make floats of all."""
    typed = {}
    for name, array in arrays.items():
        own, new = np.dtype(sent[name].dtype), array.numpy()
        if new.dtype != own:
            array = Array(np.asarray(np.rint(new) if own.kind in "iub" else new, dtype=own))
        typed[name] = array
    return ArrayRecord(typed)


def _stretched(before: Array, after: Array, total: float) -> Array:
    start, end = before.numpy(), after.numpy()
    moved = start.astype(np.float64) + total * (end.astype(np.float64) - start)
    whole = np.rint(moved) if start.dtype.kind in "iub" else moved
    return Array(np.asarray(whole, dtype=start.dtype))
