"""Seeds as a band: the mean, the lowest and the highest, at no more points than a reader sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiments.summary import Curve

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """A curve over seeds, shape (points,) each.

    Attributes
    ----------
    rounds
        How many rounds are done at each point, from 1.
    mean, low, high
        Over seeds: the mean, the smallest and the largest.
    n_seeds
        How many there are; with one, the three are equal.
    """

    rounds: NDArray[np.int64]
    mean: Numbers
    low: Numbers
    high: Numbers
    n_seeds: int

    def thinned(self, most: int) -> Band:
        """Draw neighbours as one point (mean of means, lowest low, highest high)."""
        n = len(self.rounds)
        if n <= most:
            return self
        starts = np.linspace(0, n, most, endpoint=False).astype(np.int64)
        lengths = np.diff([*starts, n])
        return Band(
            self.rounds[starts + lengths - 1],
            np.add.reduceat(self.mean, starts) / lengths,
            np.minimum.reduceat(self.low, starts),
            np.maximum.reduceat(self.high, starts),
            self.n_seeds,
        )


def band(curve: Curve) -> Band:
    """Reduce a curve over its seeds."""
    values = curve.values
    if not values.size:
        nothing = np.empty(0)
        return Band(np.empty(0, np.int64), nothing, nothing, nothing, len(values))
    return Band(
        curve.rounds + 1, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(values)
    )
