"""Updates in one byte per number: a client mod that shrinks replies, and the server's inverse.

The client sends round(update / scale) in int8, with the largest entry at 127; an entry is then off
by at most half a scale. On the client ``ClientApp(mods=[int8_mod])``, on the server
``CohortStrategy(..., decode=from_int8)``.
"""

from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

#: The record of the scales, one per array.
SCALES = "scales"


def int8_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Let the app train, then replace its model by the update in bytes."""
    if message.metadata.message_type != "train":
        return call_next(message, context)
    sent = next(iter(message.content.array_records.values()))
    reply = call_next(message, context)
    if not reply.has_error():
        reply.content = _shrunk(reply.content, sent)
    return reply


def _shrunk(content: RecordDict, sent: ArrayRecord) -> RecordDict:
    name, trained = next(iter(content.array_records.items()))
    arrays, scales = {}, {}
    for key, array in trained.items():
        update = array.numpy().astype(np.float64) - sent[key].numpy()
        scales[key] = float(np.abs(update).max(initial=0.0)) / 127 or 1.0
        arrays[key] = Array(np.rint(update / scales[key]).astype(np.int8))
    small = RecordDict(dict(content.items()))
    small[name] = ArrayRecord(arrays)
    small[SCALES] = ConfigRecord(scales)
    return small


def from_int8(content: RecordDict, sent: ArrayRecord) -> RecordDict:
    """Return the reply as it would have come without the mod, up to rounding."""
    name, arrays = next(iter(content.array_records.items()))
    scales = content.config_records[SCALES]
    whole = {}
    for key, array in arrays.items():
        before = sent[key].numpy()
        after = before + float(scales[key]) * array.numpy()  # type: ignore[arg-type]
        whole[key] = Array(np.asarray(after, dtype=before.dtype))
    large = RecordDict({key: record for key, record in content.items() if key != SCALES})
    large[name] = ArrayRecord(whole)
    return large
