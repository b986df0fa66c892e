"""The class that a client holds most of."""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def main_classes(counts: Integers, n_clients: int) -> Integers:
    """Return the class that each client holds most of; -1 for a client without samples."""
    main = np.full(n_clients, -1)
    held = counts.sum(axis=1) > 0
    main[: len(counts)][held] = counts.argmax(axis=1)[held]
    return main


def main_class_order(counts: Integers) -> Integers:
    """Return the clients sorted by the class they hold most of, the purest of each first."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    main = counts.argmax(axis=1)
    return np.lexsort((-shares.max(axis=1, initial=0.0), main))
