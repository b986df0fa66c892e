"""What follows from a law that is written out, cohort by cohort, in fractions."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import chi2, norm

from fedcohort.designs import Design, RowDesign
from fedcohort.errors import ContractError
from fedcohort.population import Population

#: How often each client is drawn.
Counts = tuple[int, ...]
#: The probability of every vector of counts that can come up.
Law = dict[Counts, Fraction]


def law_of_rows(design: Design) -> Law:
    """Return the law of a row design: one client from every row of its plan.

    Examples
    --------
    >>> import numpy as np
    >>> from fedcohort.designs import SizeClusteredDesign
    >>> law = law_of_rows(
    ...     SizeClusteredDesign(Population([5, 3, 2]), 2, rng=np.random.default_rng(0))
    ... )
    >>> {counts: str(probability) for counts, probability in law.items()}
    {(1, 1, 0): '3/5', (1, 0, 1): '2/5'}
    """
    if not isinstance(design, RowDesign):
        raise ContractError(
            f"{design.name}: has no plan, so the contract needs its law; got none. Pass law=, a "
            f"function of a design that returns {{counts: Fraction}}."
        )
    return independent_rows(design.plan.units.toarray().tolist(), design.population.total)


def independent_rows(rows: list[list[int]], total: int) -> Law:
    """Draw one client from every row; the rows hold units of ``total``."""
    outcomes: Law = {(0,) * len(rows[0]): Fraction(1)}
    for row in rows:
        following: Law = defaultdict(Fraction)
        for counts, probability in outcomes.items():
            for i, units in enumerate(row):
                if units:
                    drawn = (*counts[:i], counts[i] + 1, *counts[i + 1 :])
                    following[drawn] += probability * Fraction(units, total)
        outcomes = dict(following)
    return outcomes


@dataclass(frozen=True)
class Moments:
    """What follows from a law; every number exact."""

    expected_counts: list[Fraction]
    mean_weights: list[Fraction]
    weight_covariance: list[list[Fraction]]
    inclusion: list[Fraction]
    max_count: list[int]


def importance(population: Population) -> list[Fraction]:
    """Return p, exactly."""
    return [Fraction(size, population.total) for size in population.sizes.tolist()]


def moments(design: Design, law: Law) -> Moments:
    """Return the exact moments of a design with this law."""
    clients = range(design.population.n_clients)
    expected = _expected(design, law)
    weights = {c: _weights(c, design, expected) for c in law}
    mean = [sum(p * weights[c][i] for c, p in law.items()) + Fraction(0) for i in clients]
    covariance = [
        [
            sum(p * weights[c][i] * weights[c][j] for c, p in law.items()) - mean[i] * mean[j]
            for j in clients
        ]
        for i in clients
    ]
    inclusion = [sum(p for c, p in law.items() if c[i]) + Fraction(0) for i in clients]
    most = [max(c[i] for c in law) for i in clients]
    return Moments(expected, mean, covariance, inclusion, most)


def aggregate_variance(design: Design, law: Law, updates: Sequence[Sequence[int]]) -> Fraction:
    """Return E|sum w z - sum p z|^2, outcome by outcome."""
    expected, shares = _expected(design, law), importance(design.population)
    total = Fraction(0)
    for counts, probability in law.items():
        weights = _weights(counts, design, expected)
        for column in zip(*updates, strict=True):
            off = sum((w - p) * z for w, p, z in zip(weights, shares, column, strict=True))
            total += probability * off**2
    return total


def _expected(design: Design, law: Law) -> list[Fraction]:
    clients = range(design.population.n_clients)
    return [sum(p * c[i] for c, p in law.items()) + Fraction(0) for i in clients]


def _weights(counts: Counts, design: Design, expected: list[Fraction]) -> list[Fraction]:
    """Return w = p c / E[c], the one formula; a biased design says itself what a draw weighs."""
    if not design.unbiased:
        own = design.weight_per_draw().tolist()
        return [Fraction(weight) * count for weight, count in zip(own, counts, strict=True)]
    return [
        share * count / mean if mean else Fraction(0)
        for share, count, mean in zip(importance(design.population), counts, expected, strict=True)
    ]


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
