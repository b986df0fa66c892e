"""A design in one line of numbers."""

from dataclasses import asdict, dataclass

import numpy as np

from fedcohort._display import short_repr
from fedcohort.designs.base import Design, checked_design


@dataclass(frozen=True, slots=True)
class Summary:
    """What a design does to its clients; estimated where its ``exact_weights`` is False.

    Attributes
    ----------
    unbiased
        What the design claims.
    bias
        The sum over the clients of ``|E[w] - p|``: the share of the weight that is misplaced.
    weight_variance
        The sum over the clients of Var[w].
    smallest_inclusion
        The smallest chance of a client of positive size to be in the cohort.
    mean_inclusion
        The importance-weighted mean chance to be in the cohort.
    expected_distinct
        How many different clients a cohort has on average.
    max_count
        How often one client can be drawn at most.
    """

    unbiased: bool
    bias: float
    weight_variance: float
    smallest_inclusion: float
    mean_inclusion: float
    expected_distinct: float
    max_count: int

    def __repr__(self) -> str:
        return short_repr(self, **asdict(self))


def summary(design: Design) -> Summary:
    """Put a design's diagnostics together.

    Examples
    --------
    >>> from fedcohort import Population
    >>> from fedcohort.designs import MultinomialDesign
    >>> summary(MultinomialDesign(Population([6, 2]), cohort_size=2)).expected_distinct
    1.375
    """
    inclusion = checked_design(design).inclusion_probability()
    return Summary(
        unbiased=design.unbiased,
        bias=float(np.abs(design.bias()).sum()),
        weight_variance=float(design.weight_variance().sum()),
        smallest_inclusion=float(inclusion[design.population.sizes > 0].min()),
        mean_inclusion=float(design.population.importance @ inclusion),
        expected_distinct=float(inclusion.sum()),
        max_count=int(design.max_count().max()),
    )
