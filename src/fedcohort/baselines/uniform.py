"""Uniform sampling without replacement: FedAvg's version, and an unbiased one."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import checked_flag
from fedcohort.cohort import Cohort
from fedcohort.designs.base import DistinctDesign, Relation, drawable_clients, spread
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population
from fedcohort.streams import draw_subsets


@final
class UniformDesign(DistinctDesign):
    r"""Draw ``cohort_size`` distinct clients, all subsets equally likely.

    FedAvg's sampling (``unbiased=False``) gives a drawn client the weight :math:`p_i`. The rest of
    the weight, the residual, stays on the current model. It is biased: :math:`E[w_i] = p_i\,m/n`.
    With ``unbiased=True`` the weight is :math:`p_i\,n/m`, and the residual is 0 only on average.
    Clients of size 0 do not take part; :math:`n` counts the others.

    With :math:`f = m/n` and :math:`s_i` the weight of a drawn client,

    .. math::

        \operatorname{Var}[w_i] = s_i^2 f (1 - f), \qquad
        \operatorname{Cov}[w_i, w_j] = -s_i s_j \frac{f (1 - f)}{n - 1} .

    Parameters
    ----------
    unbiased
        Whether to use the weights that make the aggregate unbiased, instead of FedAvg's.

    Examples
    --------
    >>> design = UniformDesign(Population([5, 3, 2]), cohort_size=2)
    >>> design.bias().round(4).tolist()
    [-0.1667, -0.1, -0.0667]

    References
    ----------
    B. McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017; eq. (3) of Fraboni et al. (2021).
    """

    def __init__(self, population: Population, cohort_size: int, *, unbiased: bool = False) -> None:
        super().__init__(population, cohort_size)
        self.unbiased = checked_flag(self.name, "unbiased", unbiased)
        self._drawable = drawable_clients(self)
        scale = len(self._drawable) / self.cohort_size if self.unbiased else 1.0
        # Precomputed: a draw then costs O(m), not O(n).
        self._weight_per_draw = scale * population.importance
        self._weight_per_draw.setflags(write=False)

    def expected_counts(self) -> NDArray[np.float64]:
        """Return the expected count of each client, m/n, shape (n_clients,)."""
        return np.where(self.population.sizes > 0, self.cohort_size / len(self._drawable), 0.0)

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the weight of each client if drawn: p n/m if unbiased, else p."""
        return self._weight_per_draw

    def weight_variance(self) -> NDArray[np.float64]:
        n, m = len(self._drawable), self.cohort_size
        return self.weight_per_draw() ** 2 * (m / n) * ((n - m) / n)

    def covariance(self) -> NDArray[np.float64]:
        n, m, weight = len(self._drawable), self.cohort_size, self.weight_per_draw()
        covariance = -np.outer(weight, weight) * (m / n) * ((n - m) / n) / max(n - 1, 1)
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        positions = draw_subsets(rng, len(self._drawable), self.cohort_size, rounds)
        return self._drawable[positions]

    def amplified_event(self, accounting: Any, gaussian: Any, relation: Relation) -> Any:
        n, m = len(self._drawable), self.cohort_size
        if relation != "replace-one" or m == n:
            return None
        return accounting.SampledWithoutReplacementDpEvent(n, m, gaussian)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        # The variance of a total without replacement: m (1 - m/n) times the sample variance.
        n, m = len(self._drawable), self.cohort_size
        weighted = self.weight_per_draw()[self._drawable, None] * updates[self._drawable]
        return m * (1 - m / n) * spread(np.full(n, 1 / n), weighted) * n / max(n - 1, 1)

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, self._weight_per_draw[clients])


@final
@dataclass(frozen=True, repr=False)
class Uniform(Recipe):
    """Recipe of :class:`UniformDesign`."""

    name: ClassVar[str] = "uniform"

    unbiased: bool = False

    def design(self, population: Population, known: Knowledge) -> UniformDesign:
        return UniformDesign(population, self.cohort_size, unbiased=self.unbiased)
