"""Weighted squared distances of updates from their mean, a block of clients at a time."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

#: Entries of a block: 32 MB in float64.
BLOCK_ENTRIES = 2**22


def spread(weights: NDArray[np.float64], points: NDArray[np.floating]) -> float:
    r"""Return :math:`\sum_i w_i \|x_i - \sum_j w_j x_j\|^2` for weights that sum to 1.

    About the mean, not as a difference of squares: never negative, and a common shift of all
    points costs no precision.
    """
    mean = np.zeros(points.shape[1])
    for block in _blocks(points):
        mean += weights[block] @ points[block].astype(np.float64)
    total = 0.0
    for block in _blocks(points):
        off = points[block] - mean
        total += float(weights[block] @ np.einsum("ij,ij->i", off, off))
    return total


def second_moment(weights: NDArray[np.float64], points: NDArray[np.floating]) -> float:
    r"""Return :math:`\sum_i w_i \|x_i\|^2`."""
    total = 0.0
    for block in _blocks(points):
        rows = points[block].astype(np.float64)
        total += float(weights[block] @ np.einsum("ij,ij->i", rows, rows))
    return total


def _blocks(points: NDArray[np.floating]) -> Iterator[slice]:
    """Yield slices of clients."""
    step = max(1, BLOCK_ENTRIES // max(1, points.shape[1]))
    for start in range(0, len(points), step):
        yield slice(start, start + step)
