"""Shuffled: every client once in a pass, in random order."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import checked_whole
from fedcohort._fields import whole
from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.cohort import Cohort
from fedcohort.designs.base import DistinctDesign, drawable_clients, spread
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population
from fedcohort.streams import draw_subsets


@final
class ShuffledDesign(ChosenDesign):
    r"""Let every client take part once in a pass, ``cohort_size`` per round, in random order.

    A pass has :math:`R = \lceil n/m \rceil` rounds, over the *n* clients with samples; its last
    round takes those that are left. Each pass has an order of its own. A client weighs
    :math:`p_i R` in its round, so that its weights in a pass average exactly to its importance. The
    residual is 1 minus the sum of the weights.

    Every round is biased by :math:`w - p`, given the earlier ones of its pass: who has had a turn
    cannot come. Over random orders any one round is unbiased, and the errors of a pass nearly
    cancel: their sum is not that of R independent draws. ``over_rounds`` is the law of a random
    round.

    Needs only the round. If clients come and go, each pass is one of those that are there now.

    Parameters
    ----------
    round_
        The round, from 0.
    seed
        The seed of the orders.

    Examples
    --------
    >>> designs = [ShuffledDesign(Population([5, 3, 2]), 2, round_=t) for t in range(4)]
    >>> [design.chosen.tolist() for design in designs]
    [[0, 2], [1], [0, 2], [1]]
    >>> np.mean([design.weight_per_draw() for design in designs[:2]], axis=0).tolist()
    [0.5, 0.3, 0.2]

    References
    ----------
    G. Malinovsky, S. Horvath, K. Burlachenko and P. Richtarik, "Federated learning with regularized
    client participation", arXiv 2302.03662.
    """

    def __init__(
        self, population: Population, cohort_size: int, round_: int, *, seed: int = 0
    ) -> None:
        super().__init__(population, cohort_size)
        drawable = drawable_clients(self)
        round_ = checked_whole(self.name, "round_", round_, way_out="Count rounds from 0.")
        seed = checked_whole(self.name, "seed", seed)
        self._pass_rounds = rounds_of_a_pass(len(drawable), self.cohort_size)
        number, self._place = divmod(round_, self._pass_rounds)
        order = np.random.default_rng([seed, number]).permutation(drawable)
        start = self._place * self.cohort_size
        turn = order[start : start + self.cohort_size]
        self._choose(turn, self._pass_rounds * population.importance[turn])

    def participations(self, rounds: int) -> int:
        """Return the most turns of a client in this many rounds, this one included."""
        after = super().participations(rounds) - (self._pass_rounds - self._place)
        return 1 + max(0, math.ceil(after / self._pass_rounds))

    def over_rounds(self) -> "ShuffledRounds":
        """Return the law of a random round: any cohort of its size, all equally likely."""
        return ShuffledRounds(self.population, self.cohort_size)


def rounds_of_a_pass(n: int, cohort_size: int) -> int:
    """Return how many rounds it takes until each of n clients has had its turn."""
    return -(-n // cohort_size)


@final
class ShuffledRounds(DistinctDesign):
    r"""A random round of :class:`ShuffledDesign`, over all orders.

    It has m distinct clients, and in one round of R the :math:`n - (R - 1) m` that are left. A
    client takes part with chance 1/R and then weighs :math:`p_i R`: so :math:`E[w_i] = p_i` and
    :math:`\operatorname{Var}[w_i] = p_i^2 (R - 1)`. It is still not called unbiased, since the
    rounds of a pass are not independent: given the earlier ones, each is biased.
    """

    unbiased = False
    lasts = False

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        self._drawable = drawable_clients(self)
        n, m = len(self._drawable), self.cohort_size
        self._rounds = rounds_of_a_pass(n, m)
        #: The number of clients in the last round of a pass.
        self._left = n - (self._rounds - 1) * m

    @property
    def name(self) -> str:
        """The name in messages: that of the design."""
        return ShuffledDesign.__name__

    def _mean_over_sizes(self, ordinary: float, last: float) -> float:
        """Average over the rounds of a pass."""
        return (ordinary * (self._rounds - 1) + last) / self._rounds

    def expected_counts(self) -> NDArray[np.float64]:
        """Return 1/R where the size is positive, shape (n_clients,)."""
        return np.where(self.population.sizes > 0, 1 / self._rounds, 0.0)

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the weight of each client if it takes part, p R."""
        return self._rounds * self.population.importance

    def bias(self) -> NDArray[np.float64]:
        """Return zeros, shape (n_clients,): a random round has E[w] = p."""
        return np.zeros(self.population.n_clients)

    def weight_variance(self) -> NDArray[np.float64]:
        return self.population.importance**2 * (self._rounds - 1)

    def covariance(self) -> NDArray[np.float64]:
        n, m, left, weight = len(self._drawable), self.cohort_size, self._left, 0.0
        if n > 1:
            pairs = self._mean_over_sizes(m * (m - 1), left * (left - 1)) / (n * (n - 1))
            weight = self._rounds**2 * pairs - 1
        covariance = np.outer(self.population.importance, self.population.importance) * weight
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def size_deviation(self) -> float:
        """Return the standard deviation of the number of clients."""
        return (self.cohort_size - self._left) * math.sqrt(self._rounds - 1) / self._rounds

    def sample(self, rng: np.random.Generator, rounds: int) -> csr_array:
        cohorts, n = list[NDArray[np.int64]](), len(self._drawable)
        for _ in range(rounds):
            is_last = rng.integers(self._rounds) == self._rounds - 1
            size = self._left if is_last else self.cohort_size
            cohorts.append(np.sort(self._drawable[draw_subsets(rng, n, size, 1)[0]]))
        starts = np.cumsum([0, *map(len, cohorts)])
        clients = np.concatenate([*cohorts, np.empty(0, dtype=np.int64)])
        shape = (rounds, self.population.n_clients)
        return csr_array((np.ones(len(clients), dtype=np.int64), clients, starts), shape=shape)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        # Within rounds of one size: the variance of a total without replacement. Between sizes: all
        # such totals are their size times one mean.
        n, m, left = len(self._drawable), self.cohort_size, self._left
        weighted = self.weight_per_draw()[self._drawable, None] * updates[self._drawable]
        equal, mean = np.full(n, 1 / n), weighted.mean(axis=0)
        within = self._mean_over_sizes(m * (1 - m / n), left * (1 - left / n))
        return float(
            within * spread(equal, weighted) * n / max(n - 1, 1)
            + self.size_deviation() ** 2 * float(mean @ mean)
        )

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, self.weight_per_draw()[clients])


@final
@dataclass(frozen=True, repr=False)
class Shuffled(Recipe):
    """Recipe of :class:`ShuffledDesign`; ``seed`` fixes the orders."""

    name: ClassVar[str] = "shuffled"

    seed: int = whole(0)

    def design(self, population: Population, known: Knowledge) -> ShuffledDesign:
        return ShuffledDesign(population, self.cohort_size, known.round_, seed=self.seed)
