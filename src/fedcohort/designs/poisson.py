"""Poisson sampling: one independent coin for each client."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from fedcohort.cohort import Cohort
from fedcohort.designs.base import DistinctDesign, Relation, drawable_clients, second_moment
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population
from fedcohort.similarity.measures import BLOCK_ENTRIES


class CoinDesign(DistinctDesign):
    """The base of designs with independent coins: client i is drawn with chance q_i.

    A subclass defines the chances, ``expected_counts``. Where it has them as integers, it also
    tosses exact coins, by ``heads``, and says what is missing to certainty without cancellation.
    """

    @abstractmethod
    def expected_counts(self) -> NDArray[np.float64]:
        """Return the chance of each client, q, shape (n_clients,)."""

    def missing_chance(self) -> NDArray[np.float64]:
        """Return 1 - q, shape (n_clients,)."""
        return 1.0 - self.expected_counts()

    def heads(self, rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.bool_]:
        """Toss every client's coin in every round; ``shape`` is (rounds, n_clients)."""
        return np.asarray(rng.random(shape) < self.expected_counts())

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the weight of each client if drawn, p / q; 0 if its chance is 0."""
        chance, importance = self.expected_counts(), self.population.importance
        return np.divide(importance, chance, out=np.zeros_like(chance), where=chance > 0)

    def weight_variance(self) -> NDArray[np.float64]:
        return self.weight_per_draw() * self.population.importance * self.missing_chance()

    def covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], diagonal, shape (n_clients, n_clients)."""
        return np.diag(self.weight_variance())

    def size_deviation(self) -> float:
        """Return the standard deviation of the number of clients in the cohort."""
        return float(np.sqrt(self.expected_counts() @ self.missing_chance()))

    def sample(self, rng: np.random.Generator, rounds: int) -> csr_array:
        step = max(1, BLOCK_ENTRIES // self.population.n_clients)
        starts = range(0, max(rounds, 1), step)
        tossed = [self._toss(rng, min(step, rounds - start)) for start in starts]
        return tossed[0] if len(tossed) == 1 else csr_array(vstack(tossed))

    def _toss(self, rng: np.random.Generator, rounds: int) -> csr_array:
        shape = (rounds, self.population.n_clients)
        row, client = np.nonzero(self.heads(rng, shape))
        return csr_array((np.ones(len(row), dtype=np.int64), (row, client)), shape=shape)

    def amplified_event(self, accounting: Any, gaussian: Any, relation: Relation) -> Any:
        """Return Poisson sampling with the largest chance of all clients."""
        chance = float(self.expected_counts().max())
        if relation != "zero-out" or chance >= 1:
            return None
        return accounting.PoissonSampledDpEvent(chance, gaussian)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        return second_moment(self.weight_variance(), updates)

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, self.weight_per_draw()[clients])


def capped_coins(masses: NDArray[np.int64], draws: int) -> tuple[NDArray[np.int64], int]:
    """Return heads and sides: chances heads / sides proportional to mass, capped at 1.

    sum(heads) = draws * sides. Client i is drawn when randint(sides) < heads[i]. At least
    ``draws`` masses must be positive.

    Examples
    --------
    >>> heads, sides = capped_coins(np.array([8, 1, 1]), draws=2)
    >>> heads.tolist(), sides
    ([2, 1, 1], 2)
    """
    order = np.argsort(-masses, kind="stable")[:draws]
    largest = masses[order]
    left = int(masses.sum()) - (np.cumsum(largest) - largest)
    # With the c largest capped, the next is capped if its share of the other m - c draws is 1 or
    # more. After the first client that is not capped, no smaller one is.
    capped = (draws - np.arange(draws)) * largest >= left
    n_certain = int(np.argmin(capped)) if not capped.all() else draws
    sides = int(left[n_certain]) if n_certain < draws else 1
    heads = (draws - n_certain) * masses
    heads[order[:n_certain]] = sides
    return heads, sides


def capped_chances(lengths: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    r"""Return the chances q with sum ``draws`` that make :math:`\sum_i u_i^2 / q_i` smallest.

    They are proportional to the lengths u, capped at 1. At least ``draws`` lengths, all positive.

    Examples
    --------
    >>> capped_chances(np.array([6.0, 1.0, 1.0]), draws=2).tolist()
    [1.0, 0.5, 0.5]
    """
    order = np.argsort(-lengths, kind="stable")
    largest = lengths[order]
    left = np.cumsum(largest[::-1])[::-1]
    # With the c largest at chance 1, find the first c where the next client's share of the other
    # draws is at most 1. This holds for c = draws - 1 at the latest.
    certain = int(np.argmax((draws - np.arange(draws)) * largest[:draws] <= left[:draws]))
    chances = np.empty_like(lengths)
    chances[order] = np.minimum(1.0, (draws - certain) * largest / left[certain])
    chances[order[:certain]] = 1.0
    return chances


@final
class PoissonDesign(CoinDesign):
    r"""Toss a coin for every client: in the cohort with chance :math:`q_i`, weight p_i / q_i.

    The chances are proportional to importance and capped: :math:`q_i = \min(1, \lambda p_i)` with
    :math:`\sum_i q_i = m`. The cohort's *expected* size is m. The coins are independent:

    .. math::

        \operatorname{Var}[w_i] = p_i^2 (1/q_i - 1), \qquad
        V = \sum_i p_i^2 (1/q_i - 1) \|\Delta_i\|^2 .

    Unbiased. The residual is random with mean 0 and may be negative. An empty cohort has residual
    1. It is not redrawn, since that would add a bias. If c clients have chance 1 and the others
    hold R samples, :math:`q_i = (m - c)\,n_i / R`. Coins are tossed in integers.

    Parameters
    ----------
    population, cohort_size
        The clients to draw from, and the expected number of clients.

    Examples
    --------
    >>> PoissonDesign(Population([8, 1, 1]), cohort_size=2).expected_counts().tolist()
    [1.0, 0.5, 0.5]

    References
    ----------
    J. Hájek, "Asymptotic theory of rejective sampling with varying probabilities from a finite
    population", Annals of Mathematical Statistics, 1964 (Poisson sampling).
    """

    unbiased = True

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        drawable_clients(self)
        self._coins, self._sides = capped_coins(population.sizes, self.cohort_size)

    def expected_counts(self) -> NDArray[np.float64]:
        return self._coins / self._sides

    def missing_chance(self) -> NDArray[np.float64]:
        """Return 1 - q, shape (n_clients,), without cancellation."""
        return (self._sides - self._coins) / self._sides

    def heads(self, rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.bool_]:
        return np.asarray(rng.integers(self._sides, size=shape) < self._coins)


@final
@dataclass(frozen=True, repr=False)
class Poisson(Recipe):
    """Recipe of :class:`PoissonDesign`."""

    name: ClassVar[str] = "poisson"

    def design(self, population: Population, known: Knowledge) -> PoissonDesign:
        return PoissonDesign(population, self.cohort_size)
