"""The model that a round's clients start from, and what they add to it, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

#: Entries that are turned to float64 at a time, 8 MB: no model is copied whole in that type.
PIECE = 2**20


@final
@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """What the difference estimator puts around an update, flat as :meth:`SentModel.flat_update`.

    Attributes
    ----------
    remembered
        h of the client, taken off its update.
    mean
        The importance-weighted mean of everybody's h, added.
    """

    remembered: NDArray[np.floating]
    mean: NDArray[np.floating]


@final
class SentModel:
    """The arrays that were sent, decoded once for all replies.

    Attributes
    ----------
    record
        The arrays as they were sent.
    arrays
        The same as numpy arrays.
    dimension
        How many numbers an update has: those of all float arrays.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self.record = record
        self.arrays: dict[str, NDArray[Any]] = {
            name: array.numpy() for name, array in record.items()
        }
        self._place_of: dict[str, slice] = {}
        self.dimension = 0
        for name, own in self.arrays.items():
            if own.dtype.kind == "f":  # counters are no part of an update
                self._place_of[name] = slice(self.dimension, self.dimension + own.size)
                self.dimension += own.size

    def norm_of_update(self, name: str, after: NDArray[Any]) -> float:
        """Return the norm of one array's update; not finite where an entry is not."""
        with np.errstate(all="ignore"):
            steps = _steps(self.arrays[name], after)
            return math.sqrt(sum(float(np.dot(step, step)) for _, step in steps))

    def flat_update(self, arrays: Mapping[str, Array]) -> NDArray[np.float32]:
        """Return the whole update as one vector; counters are no part of it."""
        update = np.empty(self.dimension, dtype=np.float32)
        with np.errstate(all="ignore"):
            for name, whole in self._place_of.items():
                for place, step in _steps(self.arrays[name], arrays[name].numpy()):
                    update[whole][place] = step
        return update

    def stretched(
        self, name: str, array: Array, factor: float, around: Around | None = None
    ) -> NDArray[Any]:
        """Return one array as if its client had gone ``factor`` times as far.

        With ``around`` that is theta + factor (Delta - h) + the mean; counters have no h.
        """
        own, after = self.arrays[name], array.numpy()
        is_whole = own.dtype.kind in "iub"
        result = np.empty(own.shape, dtype=own.dtype)
        before, end, moved = own.reshape(-1), after.reshape(-1), result.reshape(-1)
        with np.errstate(all="ignore"):
            for place, step in _steps(own, after):
                # By 1 exactly: theta + (theta_i - theta) is rounded, and need not be theta_i.
                values = end[place] if factor == 1.0 else before[place] + factor * step
                if around is not None and name in self._place_of:
                    whole = self._place_of[name]
                    less = around.remembered[whole][place].astype(np.float64)
                    values = values - factor * less + around.mean[whole][place]
                moved[place] = np.rint(values) if is_whole else values
        return result

    def displaced(self, vector: NDArray[np.floating]) -> ArrayRecord:
        """Return the model moved by a flat update; counters stay."""
        arrays = dict(self.record.items())
        with np.errstate(all="ignore"):
            for name, whole in self._place_of.items():
                own = self.arrays[name]
                moved = own + vector[whole].reshape(own.shape)
                arrays[name] = Array(np.asarray(moved, dtype=own.dtype))
        return ArrayRecord(arrays)


def _steps(
    before: NDArray[Any], after: NDArray[Any]
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Go through an array's update in float64, with the place of every piece."""
    start, end = before.reshape(-1), after.reshape(-1)
    for first in range(0, start.size, PIECE):
        place = slice(first, min(first + PIECE, start.size))
        yield place, np.subtract(end[place].astype(np.float64), start[place])
