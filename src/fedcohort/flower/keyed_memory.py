"""The memory of updates by client name: nodes leave and come back, the memory stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort.similarity import CountSketch


@final
class KeyedMemory:
    """The last update of every client that ever sent one, whole or sketched.

    Parameters
    ----------
    sketch
        Numbers to keep of an update; None keeps it whole.
    seed
        Of the sketch.
    """

    def __init__(self, sketch: int | None = None, *, seed: int = 0) -> None:
        self._sketch_size, self._seed = sketch, seed
        self._sketch: CountSketch | None = None
        self._kept: dict[str, NDArray[np.float32]] = {}

    def shortened(self, update: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what is kept of one flat update."""
        if self._sketch_size is None:
            return update
        if self._sketch is None:
            self._sketch = CountSketch(len(update), self._sketch_size, seed=self._seed)
        return np.asarray(self._sketch(update[None])[0])

    def record(self, kept: Mapping[str, NDArray[np.float32]]) -> None:
        """Remember what :meth:`shortened` gave of the clients' updates."""
        self._kept.update(kept)

    def of(self, keys: Sequence[str]) -> Remembered:
        """Return what is remembered of these clients, as designs read it."""
        width = len(next(iter(self._kept.values()))) if self._kept else 1
        updates = np.zeros((len(keys), width), dtype=np.float32)
        for row, key in zip(updates, keys, strict=True):
            if key in self._kept:
                row[:] = self._kept[key]
        return Remembered(updates)

    def state(self) -> dict[str, NDArray[np.float32]]:
        """Return what is to be kept."""
        return dict(self._kept)

    def restore(self, kept: Mapping[str, NDArray[np.float32]]) -> None:
        """Take over what :meth:`state` gave."""
        self._kept = {key: np.asarray(update, dtype=np.float32) for key, update in kept.items()}


@final
class Remembered:
    """The last updates of the clients that are there, zero before the first."""

    def __init__(self, updates: NDArray[np.float32]) -> None:
        self.updates = updates
