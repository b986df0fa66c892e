"""The answer of a comparison: what to use for these clients and why, in two sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcohort._comparison_rows import Row
from fedcohort.baselines.cohort_mean import CohortMean
from fedcohort.designs import Multinomial
from fedcohort.population import Population

#: Variances closer to each other differ by rounding only.
ROUNDING = 1e-9
#: Estimates closer to each other than this many standard errors count as equal.
ERRORS = 2
#: A gain below this share is called small. A design that needs more than sizes must gain as much
#: more than one that does not.
SMALL_GAIN = 0.01
#: A client with this share of all samples is said to dominate.
DOMINANT = 0.5
#: Above this gain, no better design is hinted at.
MUCH_GAIN = 0.5
#: The most clauses of the second sentence.
MOST_PARTS = 2
#: Designs of equal variance that are named.
MOST_NAMED = 2


@dataclass(frozen=True)
class Answer:
    """The rows of a comparison, and what their words need.

    A design wins only if it is unbiased and its cohort size is fixed.
    """

    rows: Sequence[Row]
    population: Population
    cohort_size: int
    has_updates: bool

    def text(self) -> str:
        """Return the two sentences."""
        unbiased = [row for row in self.rows if row.unbiased]
        if not unbiased:
            return self._only_biased()
        fixed = [row for row in unbiased if row.size_deviation == 0]
        if not fixed:
            best = min(unbiased, key=self._variance)
            return (
                f"{best.label} is unbiased{self._gain_of(best)}, but its cohort size is random: "
                f"{spread_text(best)} clients. Compare size as well, which draws "
                f"{self.cohort_size} times in every round."
            )
        best = self._best(fixed)
        second = self._second(best, unbiased)
        return f"{self._first(best, fixed)} {second}".rstrip()

    def _first(self, best: Row, fixed: Sequence[Row]) -> str:
        """Say what to use, and what it gains."""
        gain = self._gain(best)
        equal = [row.label for row in fixed if row is not best and self._equals(row, best)]
        others = f" ({_listed(equal)} {'are' if len(equal) > 1 else 'is'} equal)" if equal else ""
        if gain is None:
            why = "all updates are equal" if self.has_updates else "one client has all samples"
            return f"Any unbiased design will do: {why}, and multinomial's {self._what} is 0."
        if gain <= ROUNDING:
            return f"{self._no_gain(best)}{self._reason() if len(self.rows) > 1 else ''}."
        start = f"Use {best.label}{others}: it"
        if len(self.rows) == 1:
            start = f"{best.label}, the only design compared,"
        is_small = gain < SMALL_GAIN
        return (
            f"{start} {self._how(best)} {'but' if is_small else 'and'} cuts {self._the_what} by "
            f"{'only ' if is_small else ''}{self._percent(best)} against multinomial sampling"
            f"{self._reason() if is_small else ''}."
        )

    def _second(self, best: Row, unbiased: Sequence[Row]) -> str:
        """Say what is cheaper, what is lower but random, or which small variance misleads."""
        gain = self._gain(best)
        if gain is None:
            return ""
        parts = [
            self._cheaper(best, unbiased),
            self._random(best, unbiased),
            self._usual(best) or self._misleading(best),
        ]
        found = [part for part in parts if part][:MOST_PARTS] or [self._hint(best, gain)]
        text = "; ".join(found)
        return f"{text[:1].upper() if _is_word(text) else text[:1]}{text[1:]}." if text else ""

    def _hint(self, best: Row, gain: float) -> str:
        """Say where more could be gained."""
        learns = any(row.recipe.learns for row in self.rows)
        if self.has_updates or learns or len(self.rows) == 1 or self.cohort_size == 1:
            return ""
        if self._equal_sizes and gain > ROUNDING:
            return "all sizes are equal: only the clients' updates can lead further"
        return "the clients' updates can lead further" if gain < MUCH_GAIN else ""

    def _cheaper(self, best: Row, unbiased: Sequence[Row]) -> str:
        """Name the best design that needs less than the winner."""
        needs = _needs(best)
        free = [row for row in unbiased if not _needs(row) and row.size_deviation == 0]
        if not needs or not free:
            return ""
        other = self._best(free)
        gain = self._gain(other)
        if gain is None or gain <= ROUNDING:
            return f"without {needs}, none of these designs gains anything"
        return f"{other.label} does it with {self._percent(other)} and needs no {needs}"

    def _random(self, best: Row, unbiased: Sequence[Row]) -> str:
        """Name the lowest design of random cohort size, if it is below the winner."""
        lower = [row for row in unbiased if row.size_deviation and self._is_below(row, best)]
        other = min(lower, key=self._variance, default=best)
        if self._percent(other) == self._percent(best):
            return ""
        return (
            f"{other.label} would cut it by {self._percent(other)}, but its cohort size is random: "
            f"{spread_text(other)} clients"
        )

    def _usual(self, best: Row) -> str:
        """Say what is wrong with what most frameworks do."""
        row = next((row for row in self.rows if isinstance(row.recipe, CohortMean)), best)
        if row.unbiased:
            return ""
        times = self._variance(row) / self._variance(best) if self._variance(best) else 1.0
        more = f" and has {_times(times)} times this {self._what}"
        if times < 1 + SMALL_GAIN:
            more = ", whatever its variance"
        return f"{row.label}, the FedAvg of most frameworks, is biased{_by(row)}{more}"

    def _misleading(self, best: Row) -> str:
        """Warn of the biased design with the smallest variance, if it is below the winner's."""
        low = [row for row in self.rows if not row.unbiased and self._is_below(row, best)]
        if not low:
            return ""
        row = min(low, key=self._variance)
        return f"{row.label} has a smaller {self._what}, but is biased{_by(row)}"

    def _only_biased(self) -> str:
        """Answer if no design is unbiased."""
        if len(self.rows) == 1:
            (row,) = self.rows
            return f"{row.label} is biased{_by(row)}. Compare size as well, which is unbiased."
        return "None of these designs is unbiased. Compare size as well, which is."

    def _no_gain(self, best: Row) -> str:
        if len(self.rows) == 1:
            others = "Compare size as well" if self.cohort_size > 1 else "No design gains much here"
            is_baseline = isinstance(best.recipe, Multinomial)
            what = "is the baseline itself" if is_baseline else "gains nothing against multinomial"
            return f"{best.label}, the only design compared, {what}. {others}"
        return (
            f"Use {best.label}: none of these unbiased designs lowers {self._the_what} below "
            f"multinomial sampling's"
        )

    def _reason(self) -> str:
        """Explain why nothing gains, if that is clear."""
        if self.cohort_size == 1 and not self.has_updates:
            return ", as there is only one draw"
        share = self.population.sizes.max() / self.population.total
        if share > DOMINANT:
            return f", as one client holds {_share_text(share)} of all samples"
        return ", as all sizes are equal" if self._equal_sizes else ""

    @property
    def _equal_sizes(self) -> bool:
        sizes = self.population.sizes[self.population.sizes > 0]
        return len(sizes) > 1 and bool((sizes == sizes[0]).all())

    @property
    def _what(self) -> str:
        return "V" if self.has_updates else "weight variance"

    @property
    def _the_what(self) -> str:
        if self.has_updates:
            return "V, the mean squared distance of its aggregate from that of all clients,"
        return "the variance of the weights"

    def _how(self, row: Row) -> str:
        """Say what makes the design unbiased."""
        population = self.population
        by_size = row.law.cohort_size * population.importance
        # The same quotient in another order of operations.
        if np.allclose(row.law.expected_counts(), by_size, rtol=1e-12, atol=0):
            return "draws each client as often as its size says"
        return "is unbiased"

    def _gain_of(self, row: Row) -> str:
        gain = self._gain(row)
        if gain is None or gain <= ROUNDING:
            return ""
        return f" and cuts {self._the_what} by {self._percent(row)} against multinomial sampling"

    def _best(self, rows: Sequence[Row]) -> Row:
        """Return the first row of smallest variance; one that needs only sizes if it is close."""
        lowest = self._lowest(rows)
        free = [row for row in rows if not _needs(row)]
        if not _needs(lowest) or not free:
            return lowest
        other = self._lowest(free)
        gain, others = self._gain(lowest), self._gain(other)
        is_close = gain is None or others is None or gain - others < SMALL_GAIN
        return other if is_close else lowest

    def _lowest(self, rows: Sequence[Row]) -> Row:
        lowest = min(rows, key=self._variance)
        return next(row for row in rows if self._equals(row, lowest))

    def _equals(self, row: Row, other: Row) -> bool:
        return not self._is_below(row, other) and not self._is_below(other, row)

    def _is_below(self, row: Row, other: Row) -> bool:
        """Return whether a variance is smaller, by more than rounding and standard errors."""
        error = ERRORS * math.hypot(self._error(row), self._error(other))
        return self._variance(row) < self._variance(other) * (1 - ROUNDING) - error

    def _error(self, row: Row) -> float:
        name = "aggregate_variance" if self.has_updates else "weight_variance"
        return float(getattr(row, f"{name}_standard_error") or 0.0)

    def _variance(self, row: Row) -> float:
        return row.weight_variance if row.aggregate_variance is None else row.aggregate_variance

    def _gain(self, row: Row) -> float | None:
        """Return 1 minus the ratio to multinomial's variance; None if that is 0."""
        ratio = row.aggregate_variance_ratio if self.has_updates else row.weight_variance_ratio
        return None if ratio is None else 1 - ratio

    def _percent(self, row: Row) -> str:
        is_exact = row.aggregate_variance_exact if self.has_updates else row.weights_exact
        return f"{'' if is_exact else 'about '}{_share_text(self._gain(row) or 0.0)}"


def _times(ratio: float) -> str:
    """Write a ratio with two digits."""
    return f"{ratio:.2g}" if ratio < 100 else f"{float(f'{ratio:.2g}'):,.0f}"


def _by(row: Row) -> str:
    """Write how large a bias is."""
    return f" by {'' if row.weights_exact else 'about '}{row.bias:.2g}"


def spread_text(row: Row) -> str:
    """Write the size of a cohort and its deviation: ``10 ± 2.9``."""
    return f"{row.expected_distinct:.3g} ± {row.size_deviation:.2g}"


def _share_text(share: float) -> str:
    """Write a share in per cent, with two digits, and more near 100 %."""
    percent = 100 * share
    for digits in (2, 3, 4, 5):
        text = f"{percent:.{digits}g}"
        if percent < 99 or float(text) < 100:
            break
    return f"{text} %"


def _needs(row: Row) -> str:
    """Name what a design must know besides the sizes."""
    kinds: list[tuple[str, Callable[[], bool]]] = [
        ("updates", lambda: row.recipe.learns),
        ("signals", lambda: bool(row.recipe.signals)),
        ("groups", lambda: row.recipe.grouped),
    ]
    return next((name for name, is_needed in kinds if is_needed()), "")


def _listed(labels: Sequence[str]) -> str:
    """Write ``a``, ``a and b``, or ``a, b and 3 others``."""
    if len(labels) > MOST_NAMED + 1:
        return f"{', '.join(labels[:MOST_NAMED])} and {len(labels) - MOST_NAMED} others"
    return f"{', '.join(labels[:-1])} and {labels[-1]}" if len(labels) > 1 else labels[0]


def _is_word(text: str) -> bool:
    """Return whether a sentence starts with a word of ours, which gets a capital."""
    return text.startswith(("without ", "all ", "the "))
