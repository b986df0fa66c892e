"""Multinomial (MD) sampling: m independent draws, each by importance."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs.base import Design, spread
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population


@final
class MultinomialDesign(Design):
    r"""Draw m = ``cohort_size`` clients independently, each with probability :math:`p_i`.

    A draw weighs 1/m. Every count is binomial. With :math:`\bar\Delta = \sum_i p_i \Delta_i`

    .. math::

        \operatorname{Cov}[w_i, w_j] = (p_i [i = j] - p_i p_j) / m, \qquad
        B_{MD} = \tfrac1m \sum_i p_i \|\Delta_i - \bar\Delta\|^2 .

    Unbiased, and without extra communication. But one client may fill the whole cohort: prefer
    :class:`SizeClusteredDesign`, whose aggregate never varies more. A plan would need m equal rows;
    this design keeps one cumulative sum instead, and draws in integers.

    Examples
    --------
    >>> design = MultinomialDesign(Population([5, 3, 2]), cohort_size=4)
    >>> design.draw(0).counts.sum()
    np.int64(4)

    References
    ----------
    T. Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.
    """

    unbiased = True

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        self._ends = np.cumsum(population.sizes)

    def weight_variance(self) -> NDArray[np.float64]:
        sizes, total = self.population.sizes, self.population.total
        return (sizes / total) * ((total - sizes) / total) / self.cohort_size

    def covariance(self) -> NDArray[np.float64]:
        importance = self.population.importance
        covariance = -np.outer(importance, importance) / self.cohort_size
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return 1 - (1 - p)^m, shape (n_clients,)."""
        with np.errstate(divide="ignore"):  # log 0: a single client is always drawn
            misses = self.cohort_size * np.log1p(-self.population.importance)
        return np.asarray(0.0 - np.expm1(misses))

    def max_count(self) -> NDArray[np.int64]:
        """Return m where the size is positive, shape (n_clients,)."""
        return np.where(self.population.sizes > 0, self.cohort_size, 0)

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        units = rng.integers(self.population.total, size=(rounds, self.cohort_size))
        return np.searchsorted(self._ends, units, side="right")

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        return spread(self.population.importance, updates) / self.cohort_size


@final
@dataclass(frozen=True, repr=False)
class Multinomial(Recipe):
    """Recipe of :class:`MultinomialDesign`."""

    name: ClassVar[str] = "multinomial"

    def design(self, population: Population, known: Knowledge) -> MultinomialDesign:
        return MultinomialDesign(population, self.cohort_size)
