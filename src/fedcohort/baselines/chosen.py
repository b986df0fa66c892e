"""Base class of designs that choose their cohort when they are built."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design
from fedcohort.designs.recipe import Recipe
from fedcohort.errors import DesignError
from fedcohort.population import Population


class ChosenDesign(Design):
    r"""Draw the same clients every time; only the choice when building may be random.

    The weights do not vary. The bias is :math:`w - p`, and V is
    :math:`\|\sum_i (w_i - p_i) \Delta_i\|^2`. A recipe chooses again in every round;
    :func:`~fedcohort.diagnostics.estimated_bias` measures its bias over many rounds.

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
        return self.max_count().astype(np.float64)

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the weight of each client; 0 for those not chosen."""
        return self._weights

    def weight_variance(self) -> NDArray[np.float64]:
        """Return zeros, shape (n_clients,)."""
        return np.zeros(self.population.n_clients)

    def covariance(self) -> NDArray[np.float64]:
        """Return zeros, shape (n_clients, n_clients)."""
        return np.zeros((self.population.n_clients,) * 2)

    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return 1 for the chosen clients, shape (n_clients,)."""
        return self.expected_counts()

    def max_count(self) -> NDArray[np.int64]:
        """Return 1 for the chosen clients, shape (n_clients,)."""
        counts = np.zeros(self.population.n_clients, dtype=np.int64)
        counts[self.chosen] = 1
        return counts

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        """Draw the clients of ``rounds`` cohorts."""
        return np.broadcast_to(self.chosen, (rounds, len(self.chosen)))

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        """Return 0: the cohort does not vary."""
        return 0.0

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        """Make the cohort of the drawn clients."""
        if self._is_mean and len(clients):
            return Cohort.of_shares(clients, counts, len(clients))
        return Cohort.of_weights(clients, counts, self._weights[clients])


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
