"""Base class of designs that choose their cohort when they are built."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import Rng
from fedcohort.cohort import Cohort
from fedcohort.designs.base import DistinctDesign, drawable_clients
from fedcohort.designs.recipe import Recipe
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.similarity.measures import BLOCK_ENTRIES


class ChosenDesign(DistinctDesign):
    r"""Draw the same clients every time; only the choice when building may be random.

    The weights do not vary. The bias is :math:`w - p`, and V is
    :math:`\|\sum_i (w_i - p_i) \Delta_i\|^2`. A recipe chooses again in every round. If the law
    of these choices is known, ``over_rounds`` returns it; else
    :func:`~fedcohort.diagnostics.estimated_bias` measures the bias over many rounds.

    A subclass calls ``_choose`` at the end of its ``__init__``. If no client is chosen, the
    cohort is empty and the model stays as it is.
    """

    unbiased = False
    lasts = False

    #: The chosen clients, sorted.
    chosen: NDArray[np.int64]

    def _choose(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> None:
        """Keep distinct clients and their weights; without weights, they are averaged."""
        order = np.argsort(clients)
        self.chosen = clients[order]
        self.chosen.setflags(write=False)
        self._is_mean = weights is None
        self._weights = np.zeros(self.population.n_clients)
        self._weights[self.chosen] = 1 / max(len(clients), 1) if weights is None else weights[order]
        self._weights.setflags(write=False)

    def expected_counts(self) -> NDArray[np.float64]:
        """Return 1 for the chosen clients, shape (n_clients,)."""
        counts = np.zeros(self.population.n_clients)
        counts[self.chosen] = 1.0
        return counts

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the weight of each client; 0 for those not chosen."""
        return self._weights

    def weight_variance(self) -> NDArray[np.float64]:
        """Return zeros, shape (n_clients,)."""
        return np.zeros(self.population.n_clients)

    def covariance(self) -> NDArray[np.float64]:
        """Return zeros, shape (n_clients, n_clients)."""
        return np.zeros((self.population.n_clients,) * 2)

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        return np.broadcast_to(self.chosen, (rounds, len(self.chosen)))

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        """Return 0: the cohort does not vary."""
        return 0.0

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        if self._is_mean and len(clients):
            return Cohort.of_shares(clients, counts, len(clients))
        return Cohort.of_weights(clients, counts, self._weights[clients])


#: Cohorts are listed if they have at most this many members together.
MOST_LISTED = 10**6


class RoundsDesign(DistinctDesign):
    """The law of a round picked at random, for designs that are one round's choice.

    Every client with samples has the chance m/n. A subclass defines the weights of a cohort's
    members and draws cohorts. If there are few cohorts, it lists all, equally likely, and moments
    are exact.
    """

    lasts = False
    unbiased = False

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        self._drawable = drawable_clients(self)
        self.exact_moments = self.n_cohorts() * self.cohort_size <= MOST_LISTED

    @abstractmethod
    def n_cohorts(self) -> int:
        """Return the number of equally likely cohorts."""

    @abstractmethod
    def _every_cohort(self) -> NDArray[np.int64]:
        """Return all cohorts, shape (n_cohorts, m). Called only if ``exact_moments``."""

    @abstractmethod
    def _weights_of(self, cohorts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights of the members of these cohorts, shape (cohorts, m)."""

    def expected_counts(self) -> NDArray[np.float64]:
        """Return m/n where the size is positive, shape (n_clients,)."""
        return np.where(self.population.sizes > 0, self.cohort_size / len(self._drawable), 0.0)

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the mean weight of each client if drawn, shape (n_clients,)."""
        mean, count = self._mean_weights, self.expected_counts()
        return np.divide(mean, count, out=np.zeros_like(mean), where=count > 0)

    def bias(self) -> NDArray[np.float64]:
        """Return E[w] - p, shape (n_clients,)."""
        if self.unbiased:
            return np.zeros(self.population.n_clients)
        return self._mean_weights - self.population.importance

    def weight_variance(self) -> NDArray[np.float64]:
        cohorts, mean = self._listed, self._mean_weights
        off = (cohorts.data - mean[cohorts.indices]) ** 2
        drawn, absent = self._by_client(off), 1 - self._by_client(np.ones_like(off))
        return drawn + np.maximum(absent, 0.0) * mean**2

    def covariance(self) -> NDArray[np.float64]:
        cohorts, mean = self._listed, self._mean_weights
        products: NDArray[np.float64] = (cohorts.T @ cohorts).toarray() / cohorts.shape[0]
        covariance = products - np.outer(mean, mean)
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        cohorts, mean, total = self._listed, self._mean_weights @ updates, 0.0
        step = max(1, BLOCK_ENTRIES // updates.shape[1])
        for start in range(0, cohorts.shape[0], step):
            off = cohorts[start : start + step] @ updates - mean
            total += float(np.einsum("ij,ij->", off, off))
        return total / cohorts.shape[0]

    def draw_weights(self, rounds: int, rng: Rng = None) -> csr_array:
        counts = self.draw_many(rounds, rng)
        return self._matrix(counts.indices.reshape(rounds, -1))

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, self._weights_of(clients[None])[0])

    @cached_property
    def _mean_weights(self) -> NDArray[np.float64]:
        return self._by_client(self._listed.data)

    @cached_property
    def _listed(self) -> csr_array:
        """The weights of all cohorts, shape (n_cohorts, n_clients)."""
        return self._matrix(self._every_cohort())

    def _matrix(self, cohorts: NDArray[np.integer]) -> csr_array:
        shape = (len(cohorts), self.population.n_clients)
        starts = np.arange(len(cohorts) + 1) * self.cohort_size
        weights = self._weights_of(np.asarray(cohorts, dtype=np.int64))
        return csr_array((weights.ravel(), cohorts.ravel(), starts), shape=shape)

    def _by_client(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Average values of the listed cohorts' members over all cohorts, shape (n_clients,)."""
        n, cohorts = self.population.n_clients, self._listed
        return np.bincount(cohorts.indices, values, n) / cohorts.shape[0]


def smallest(
    values: NDArray[np.float64],
    clients: NDArray[np.int64],
    number: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the ``number`` clients with the smallest values; ties are random, NaN is left out.

    Examples
    --------
    >>> values = np.array([3.0, np.nan, 1.0, 2.0])
    >>> smallest(values, np.array([0, 1, 2, 3]), 2, np.random.default_rng(0)).tolist()
    [2, 3]
    """
    known = rng.permutation(clients[~np.isnan(values[clients])])
    return known[np.argsort(values[known], kind="stable")][:number]


#: The default number of candidates per draw.
CANDIDATES_A_DRAW = 3


@dataclass(frozen=True, repr=False)
class CandidatesRecipe(Recipe):
    """The base of recipes that ask some candidates for a signal, and choose among these.

    Parameters
    ----------
    candidates
        How many clients are asked; 0 for three times the cohort's size.
    """

    candidates: int = 0

    def check(self) -> None:
        """Validate the number of candidates: at least the cohort's size, or 0."""
        if self.candidates < 0 or 0 < self.candidates < self.cohort_size:
            raise DesignError(
                f"{type(self).__name__}: candidates must be a whole number of at least "
                f"cohort_size, {self.cohort_size}, or 0 for {CANDIDATES_A_DRAW} times that; got "
                f"{self.candidates!r}. Raise it."
            )

    def n_candidates(self, population: Population) -> int:
        """Return how many clients to ask: at most all clients with samples."""
        wanted = self.candidates or CANDIDATES_A_DRAW * self.cohort_size
        return min(wanted, int(np.count_nonzero(population.sizes)))
