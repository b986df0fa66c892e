"""Statistical tests with a stated false-alarm rate."""

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import chi2, norm

from fedcohort.testing.laws import Counts, Law

#: The chance that a correct program fails one of these tests, if its seed were drawn at random.
FALSE_ALARM = 1e-6
#: Cells that are expected less often than this are counted as one: the chi-square law is then
#: close enough that FALSE_ALARM keeps its order of magnitude.
SMALLEST_CELL = 20


def follows_law(counts: csr_array, expected: Law) -> bool:
    """Pearson's test of observed cohorts (not proportions) against their law."""
    rounds = counts.shape[0]
    observed: Counter[Counts] = Counter(map(tuple, counts.toarray().tolist()))
    if set(observed) - set(expected):
        return False
    cells = [
        (observed[outcome], float(rounds * probability))
        for outcome, probability in expected.items()
    ]
    rare = [cell for cell in cells if cell[1] < SMALLEST_CELL]
    kept = [cell for cell in cells if cell[1] >= SMALLEST_CELL]
    rest = (sum(cell[0] for cell in rare), math.fsum(cell[1] for cell in rare))
    kept += [rest] if rest[1] >= SMALLEST_CELL else []
    statistic = math.fsum((seen - mean) ** 2 / mean for seen, mean in kept)
    return len(kept) < 2 or bool(statistic < chi2.isf(FALSE_ALARM, len(kept) - 1))


def agree(
    observed: NDArray[np.float64], mean: NDArray[np.float64], deviation: NDArray[np.float64]
) -> bool:
    """Two-sided z-test of many sums at once (Bonferroni); sums that cannot vary must be exact."""
    bound = norm.isf(FALSE_ALARM / 2 / len(observed))
    return bool((np.abs(observed - mean) <= bound * deviation + 1e-9 * np.abs(mean)).all())
