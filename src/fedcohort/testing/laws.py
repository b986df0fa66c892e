"""The design under test: its law in exact fractions, and the moments that follow from it."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import chi2, norm

from fedcohort.designs import Design, RowDesign
from fedcohort.errors import ContractError, DesignError
from fedcohort.population import Population

#: The count of each client in a cohort.
Counts = tuple[int, ...]
#: The probability of every possible vector of counts.
Law = dict[Counts, Fraction]


def law_of_rows(design: Design) -> Law:
    """Return the law of a row design: one client from every row of its plan.

    Examples
    --------
    >>> from fedcohort.designs import SizeClusteredDesign
    >>> law = law_of_rows(SizeClusteredDesign(Population([5, 3, 2]), 2, rng=0))
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
    """Return the law of one independent draw per row; a row's units sum to ``total``."""
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
    """The exact moments of a law."""

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
    """Return w = p c / E[c]; for a biased design, c times its ``weight_per_draw``."""
    if not design.unbiased:
        own = design.weight_per_draw().tolist()
        return [Fraction(weight) * count for weight, count in zip(own, counts, strict=True)]
    return [
        share * count / mean if mean else Fraction(0)
        for share, count, mean in zip(importance(design.population), counts, expected, strict=True)
    ]


#: The chance that a correct program fails one of these tests with a random seed.
FALSE_ALARM = 1e-6
#: Cells with a smaller expected count are merged into one. The chi-square approximation is then
#: close enough for FALSE_ALARM to keep its order of magnitude.
SMALLEST_CELL = 20


def follows_law(counts: csr_array, expected: Law) -> bool:
    """Test observed cohorts (counts, not proportions) against their law by Pearson's chi-square."""
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
    """Test many sums at once by two-sided z (Bonferroni); sums without variance must be exact."""
    bound = norm.isf(FALSE_ALARM / 2 / len(observed))
    return bool((np.abs(observed - mean) <= bound * deviation + 1e-9 * np.abs(mean)).all())


#: The largest relative error: a computation has fewer than a thousand roundings of 2^-53.
ROUNDING = 1000 * 2.0**-53

Builder = Callable[[Population, int, np.random.Generator], Design]


@dataclass(frozen=True)
class Candidate:
    """The design that the clauses of the contract check.

    Attributes
    ----------
    name
        For messages.
    build
        Makes the design from a population, a cohort size and a generator for ties.
    law
        Returns the probability of every cohort by enumeration. Row designs do not need it: their
        plan gives the law.
    distinct
        Whether the design needs at least as many clients of positive size as draws.
    fixed_size
        Whether it draws exactly ``cohort_size`` times in every round.
    in_floats
        Whether its chances are floats. The means of its law are then checked up to rounding.
    thinner
        For slow designs: statistical clauses draw this many times fewer cohorts. The smallest
        bias that they detect grows by the square root of this number.
    """

    name: str
    build: Builder
    law: Callable[[Any], Law] = law_of_rows
    distinct: bool = False
    fixed_size: bool = True
    in_floats: bool = False
    thinner: int = 1

    def fits(self, population: Population, cohort_size: int) -> bool:
        """Return whether the design can be built with these arguments."""
        return not self.distinct or cohort_size <= int(np.count_nonzero(population.sizes))

    def demand(self, held: bool, sentence: str, design: Design | None = None) -> None:
        """Raise :class:`ContractError` if ``held`` is False; name the design's arguments."""
        if not held:
            on = ""
            if design is not None and design.population.n_clients < 10:
                on = f" (sizes {design.population.sizes.tolist()}, {design.cohort_size} draws)"
            raise ContractError(f"{self.name}{on}: {sentence}")

    def demand_equal(self, design: Design, what: str, found: object, right: object) -> None:
        """Require exactly this value."""
        self.demand(found == right, f"{what} must be {right}; got {found}.", design)

    def demand_close(
        self,
        design: Design,
        what: str,
        found: Sequence[float] | NDArray[np.floating],
        exact: Sequence[Fraction],
    ) -> None:
        """Require the exact number for every client, up to rounding."""
        self.demand(
            np.shape(found) == (len(exact),),
            f"{what} must be one number per client; got shape {np.shape(found)}.",
            design,
        )
        for client, (number, right) in enumerate(zip(found, exact, strict=True)):
            self.demand(
                close(number, right),
                f"{what} of client {client} must be {float(right):.6g}, as the law has it; got "
                f"{number:.6g}. Fix the formula, or the law.",
                design,
            )

    def demand_unbiased(self, design: Design, mean_weights: list[Fraction]) -> None:
        """Require E[w] = p if the design claims it: exactly, unless its chances are floats."""
        shares = importance(design.population)
        for client, (mean, share) in enumerate(zip(mean_weights, shares, strict=True)):
            equal = close(float(mean), share) if self.in_floats else mean == share
            self.demand(
                not design.unbiased or equal,
                f"unbiased is True, so client {client}'s mean weight must be {share}; got {mean}. "
                f"Fix the law, or say unbiased = False.",
                design,
            )


def close(value: float, exact: Fraction, scale: float = 1.0) -> bool:
    """Return whether a float equals an exact number up to rounding; False for NaN."""
    return bool(abs(value - float(exact)) <= ROUNDING * max(scale, abs(float(exact))))


def refuses(c: Candidate, sentence: str, act: Callable[[], object]) -> None:
    """Require a :class:`DesignError` whose message matches ``sentence``."""
    try:
        act()
    except DesignError as error:
        c.demand(
            re.search(sentence, str(error)) is not None,
            f"the error must say {sentence!r}; it says {str(error)!r}. Let the base class check.",
        )
    except Exception as error:
        c.demand(
            False, f"must raise DesignError ({sentence!r}); raised {type(error).__name__}: {error}."
        )
    else:
        c.demand(False, f"must raise DesignError ({sentence!r}); raised nothing. Refuse it so.")
