"""The model that a round's clients start from, and what they add to it, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

#: Entries that are turned to float64 at a time, 8 MB: no model is copied whole in that type.
PIECE = 2**20


@final
class SentModel:
    """The arrays that were sent, decoded once for all replies.

    Attributes
    ----------
    record
        The arrays as they were sent.
    arrays
        The same as numpy arrays.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self.record = record
        self.arrays: dict[str, NDArray[Any]] = {
            name: array.numpy() for name, array in record.items()
        }

    def norm_of_update(self, name: str, after: NDArray[Any]) -> float:
        """Return the norm of one array's update; not finite where an entry is not."""
        with np.errstate(all="ignore"):
            steps = _steps(self.arrays[name], after)
            return math.sqrt(sum(float(np.dot(step, step)) for _, step in steps))

    def flat_update(self, arrays: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the whole update as one vector; counters are no part of it."""
        parts = {name: own for name, own in self.arrays.items() if own.dtype.kind == "f"}
        update = np.empty(sum(own.size for own in parts.values()), dtype=np.float32)
        start = 0
        with np.errstate(all="ignore"):
            for name, own in parts.items():
                for place, step in _steps(own, arrays[name].numpy()):
                    update[start:][place] = step
                start += own.size
        return update

    def stretched(self, name: str, array: Array, factor: float) -> NDArray[Any]:
        """Return one array as if its client had gone ``factor`` times as far."""
        own = self.arrays[name]
        is_whole = own.dtype.kind in "iub"
        result = np.empty(own.shape, dtype=own.dtype)
        before, moved = own.reshape(-1), result.reshape(-1)
        with np.errstate(all="ignore"):
            for place, step in _steps(own, array.numpy()):
                values = before[place] + factor * step
                moved[place] = np.rint(values) if is_whole else values
        return result


def _steps(
    before: NDArray[Any], after: NDArray[Any]
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Go through an array's update in float64, with the place of every piece."""
    start, end = before.reshape(-1), after.reshape(-1)
    for first in range(0, start.size, PIECE):
        place = slice(first, min(first + PIECE, start.size))
        yield place, np.subtract(end[place].astype(np.float64), start[place])
