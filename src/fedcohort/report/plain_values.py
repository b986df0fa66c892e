"""Arrays as short JSON values: few digits, null for what is not there."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

DIGITS = 5


def plain(values: ArrayLike) -> list[int] | list[float | None]:
    """Return whole numbers as they are, others with five digits; NaN and infinity are None."""
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return [int(value) for value in array]
    return [short(float(value)) for value in array]


def short(value: float) -> float | None:
    """Round to five digits; None where there is no number."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def evenly(n: int, most: int) -> list[int]:
    """Choose at most ``most`` of 0 ... n - 1, evenly, the first and the last among them."""
    if n <= most:
        return list(range(n))
    return [int(place) for place in np.linspace(0, n - 1, most).round()]
