"""Train replies, checked on arrival."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from fedcohort.flower.sent_model import SentModel


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """A reply that can be used.

    Attributes
    ----------
    message
        What came, decoded. ``SentModel.flat_update`` gives its whole update.
    kept
        What the memory keeps of its update; None where nothing is remembered.
    update
        Its whole update; None where only the difference estimator would need it.
    """

    message: Message
    kept: NDArray[np.float32] | None = None
    update: NDArray[np.float32] | None = None

    @property
    def arrays(self) -> ArrayRecord:
        """The client's model."""
        return next(iter(self.message.content.array_records.values()))


#: Makes arrays of a compressed reply: (content, the model that was sent) -> content.
Decode = Callable[[RecordDict, ArrayRecord], RecordDict]
#: Returns what is to be remembered of an update.
Keep = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def checked_reply(
    message: Message,
    sent: SentModel,
    *,
    weight_key: str,
    max_norm: float | None,
    decode: Decode | None = None,
    keep: Keep | None = None,
    whole: bool = False,
) -> Reply | str:
    """Return the reply with what is kept of its update, or what is wrong with it.

    With ``whole`` it has its whole update as well.
    """
    if message.has_error():
        return f"error {message.error.code}: {message.error.reason}"
    if decode is not None:
        try:
            message = with_content(message, decode(message.content, sent.record))
        except Exception as error:  # a client can send anything
            return f"cannot be decoded ({type(error).__name__}: {error})"
    content = message.content
    if len(content.array_records) != 1 or len(content.metric_records) != 1:
        return "needs one record of arrays and one of metrics"
    metrics = next(iter(content.metric_records.values()))
    if not is_finite_number(metrics.get(weight_key)):
        return f"has no number under {weight_key!r}"
    reply = Reply(message)
    norm = _norm(reply.arrays, sent)
    if isinstance(norm, str):
        return norm
    if max_norm is not None and norm > max_norm:
        return f"its update has norm {norm:g}, more than {max_norm:g}"
    if keep is None and not whole:
        return reply
    with np.errstate(all="ignore"):
        update = sent.flat_update(reply.arrays)
        kept = None if keep is None else keep(update)
    reply = Reply(message, kept, update if whole else None)
    known = [values for values in (reply.kept, reply.update) if values is not None]
    return reply if all(np.isfinite(each).all() for each in known) else "is too large for float32"


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
        if before.dtype.kind == "f":  # counters are no part of an update
            norms.append(sent.norm_of_update(name, after))
    norm = math.hypot(*norms)
    return norm if math.isfinite(norm) else "is not finite"


def is_finite_number(value: object) -> bool:
    """Whether a metric is one number, and finite."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def with_content(message: Message, content: RecordDict) -> Message:
    """Return the message with other content; the one that came stays as it is."""
    changed = copy(message)
    changed.content = content
    return changed
