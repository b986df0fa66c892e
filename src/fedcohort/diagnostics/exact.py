"""What a design does to its clients, from its exact moments."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort._display import short_repr
from fedcohort.designs.base import Design, checked_design


def bias(design: Design) -> NDArray[np.float64]:
    """Return E[w] - p, shape (n_clients,); exactly 0 for a design that claims to be unbiased.

    Examples
    --------
    >>> from fedcohort import Population, Uniform
    >>> bias(Uniform(1).build(Population([6, 2]))).tolist()
    [-0.375, -0.125]
    """
    return checked_design(design).bias()


def weight_variance(design: Design) -> NDArray[np.float64]:
    """Return Var[w], shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> weight_variance(Multinomial(3).build(Population([6, 2]))).tolist()
    [0.0625, 0.0625]
    """
    return checked_design(design).weight_variance()


def weight_covariance(design: Design) -> NDArray[np.float64]:
    """Return Cov[w], shape (n_clients, n_clients); for small populations.

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> weight_covariance(Multinomial(3).build(Population([6, 2]))).tolist()
    [[0.0625, -0.0625], [-0.0625, 0.0625]]
    """
    return checked_design(design).weight_covariance()


def inclusion_probability(design: Design) -> NDArray[np.float64]:
    """Return the chance of each client to be in the cohort, shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> inclusion_probability(Multinomial(2).build(Population([6, 2]))).round(6).tolist()
    [0.9375, 0.4375]
    """
    return checked_design(design).inclusion_probability()


def max_count(design: Design) -> NDArray[np.int64]:
    """Return how often each client can be drawn at most in one round, shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> max_count(Multinomial(2).build(Population([6, 0]))).tolist()
    [2, 0]
    """
    return checked_design(design).max_count()


def expected_distinct(design: Design) -> float:
    """Return how many different clients a cohort has on average.

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> expected_distinct(Multinomial(2).build(Population([6, 2])))
    1.375
    """
    return float(checked_design(design).inclusion_probability().sum())


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
    >>> from fedcohort import Multinomial, Population
    >>> summary(Multinomial(2).build(Population([6, 2]))).expected_distinct
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
