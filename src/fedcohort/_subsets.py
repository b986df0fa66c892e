"""Subsets of equal probability, many at once."""

import numpy as np
from numpy.typing import NDArray

#: Up to this many members comparing all pairs of them is faster than a call for every subset.
FEW = 64


def draw_subsets(rng: np.random.Generator, n: int, size: int, times: int) -> NDArray[np.int64]:
    """Draw ``size`` distinct numbers below n, ``times`` times; shape (times, size), not sorted.

    All subsets are equally likely, exactly. Drawing k times and then l times gives the same as
    drawing k + l times.

    Examples
    --------
    >>> draw_subsets(np.random.default_rng(0), n=3, size=3, times=1).tolist()
    [[0, 1, 2]]
    """
    return (_few if size <= FEW else _many)(rng, n, size, times)


def _few(rng: np.random.Generator, n: int, size: int, times: int) -> NDArray[np.int64]:
    """All subsets at once: Floyd's algorithm, O(size^2) each.

    Step k draws t from 0 ... n - size + k and takes it, or n - size + k if t is taken already.
    """
    last = np.arange(n - size, n)
    drawn = rng.integers(last + 1, size=(times, size)).T.copy()
    for k in range(1, size):
        taken = (drawn[:k] == drawn[k]).any(axis=0)
        drawn[k, taken] = last[k]
    return drawn.T


def _many(rng: np.random.Generator, n: int, size: int, times: int) -> NDArray[np.int64]:
    """One subset after the other, O(size) each."""
    drawn = np.empty((times, size), dtype=np.int64)
    for row in drawn:
        row[:] = rng.choice(n, size, replace=False, shuffle=False)
    return drawn
