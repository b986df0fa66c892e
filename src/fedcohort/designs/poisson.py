"""Poisson sampling: an independent coin for every client."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design, drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.designs.spread import second_moment
from fedcohort.population import Population

#: Coins tossed at a time.
BLOCK_COINS = 2**22


@final
class PoissonDesign(Design):
    r"""Toss a coin for every client: in the cohort with chance :math:`q_i`, weight p_i / q_i.

    The chances are proportional to importance and capped, :math:`q_i = \min(1, \lambda p_i)` with
    :math:`\sum_i q_i = m`, so that m is the cohort's *expected* size. The coins are independent:

    .. math::

        \operatorname{Var}[w_i] = p_i^2 (1/q_i - 1), \qquad
        V = \sum_i p_i^2 (1/q_i - 1) \|\Delta_i\|^2 .

    Unbiased. The residual is random with mean 0 and may be negative; an empty cohort has residual
    1 and is never drawn again, since that would bias. With c clients of chance 1, whose sizes
    leave R samples to the others, :math:`q_i = (m - c)\,n_i / R`: an integer coin.

    Examples
    --------
    >>> PoissonDesign(Population([8, 1, 1]), cohort_size=2).expected_counts.tolist()
    [1.0, 0.5, 0.5]
    """

    unbiased = True

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        drawable_clients(self)
        self._heads, self._sides = _coins(population.sizes, self.cohort_size)

    @property
    def expected_counts(self) -> NDArray[np.float64]:
        """The chance of each client, q, shape (n_clients,)."""
        return self._heads / self._sides

    @property
    def weight_per_draw(self) -> NDArray[np.float64]:
        """What each client weighs if drawn, p / q; 0 where the size is 0."""
        chance, importance = self.expected_counts, self.population.importance
        return np.divide(importance, chance, out=np.zeros_like(chance), where=chance > 0)

    def weight_variance(self) -> NDArray[np.float64]:
        """Return Var[w], shape (n_clients,)."""
        tails = (self._sides - self._heads) / self._sides
        return self.weight_per_draw * self.population.importance * tails

    def weight_covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], diagonal, shape (n_clients, n_clients)."""
        return np.diag(self.weight_variance())

    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return q, shape (n_clients,)."""
        return self.expected_counts

    def max_count(self) -> NDArray[np.int64]:
        """Return 1 where the size is positive, shape (n_clients,)."""
        return (self.population.sizes > 0).astype(np.int64)

    def _draw_counts(self, rng: np.random.Generator, rounds: int) -> csr_array:
        step = max(1, BLOCK_COINS // self.population.n_clients)
        starts = range(0, max(rounds, 1), step)
        tossed = [self._toss(rng, min(step, rounds - start)) for start in starts]
        return tossed[0] if len(tossed) == 1 else csr_array(vstack(tossed))

    def _toss(self, rng: np.random.Generator, rounds: int) -> csr_array:
        shape = (rounds, self.population.n_clients)
        heads = rng.integers(self._sides, size=shape) < self._heads
        row, client = np.nonzero(heads)
        return csr_array((np.ones(len(row), dtype=np.int64), (row, client)), shape=shape)

    def _aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        return second_moment(self.weight_variance(), updates)

    def _cohort(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, self.weight_per_draw[clients])


def _coins(sizes: NDArray[np.int64], cohort_size: int) -> tuple[NDArray[np.int64], int]:
    """Return heads and sides, in integers: client i is drawn when randint(sides) < heads[i]."""
    order = np.argsort(-sizes, kind="stable")[:cohort_size]
    largest = sizes[order]
    left = int(sizes.sum()) - (np.cumsum(largest) - largest)
    # Having capped the c largest, the next is capped if its share of the other m - c draws is 1
    # or more. Once one is not, no smaller one is.
    capped = (cohort_size - np.arange(cohort_size)) * largest >= left
    n_certain = int(np.argmin(capped)) if not capped.all() else cohort_size
    sides = int(left[n_certain]) if n_certain < cohort_size else 1
    heads = (cohort_size - n_certain) * sizes
    heads[order[:n_certain]] = sides
    return heads, sides


@final
@dataclass(frozen=True)
class Poisson(Recipe):
    """Recipe of :class:`PoissonDesign`."""

    name: ClassVar[str] = "poisson"

    def _design(self, population: Population, known: Knowledge) -> PoissonDesign:
        return PoissonDesign(population, self.cohort_size)
