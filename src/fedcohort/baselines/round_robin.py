"""Round robin: the clients take turns."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import checked_whole
from fedcohort._fields import whole
from fedcohort.baselines.chosen import ChosenDesign, RoundsDesign
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population


@final
class RoundRobinDesign(ChosenDesign):
    r"""Let the clients take turns, ``cohort_size`` per round, in a fixed order set by ``seed``.

    Round *t* takes places :math:`tm, \dots, tm + m - 1` of the circle of the *n* clients with
    samples. Each weighs :math:`p_i\,n/m`. The residual is 1 minus the sum of the weights.

    Every round is biased by :math:`w - p`, since its cohort is certain. The design is unbiased in
    two weaker senses. Over a cycle of :math:`n / \gcd(n, m)` rounds, a client's weights average
    exactly to its importance. But the model moves during the cycle, so a cycle does not equal a
    step of full participation. Over random orders, any one round is :class:`UniformDesign`'s
    unbiased draw. But the rounds of one order are not independent.

    ``over_rounds`` is the law of a random round of the cycle.

    Needs only the round. The order stays the same while the clients do.

    Parameters
    ----------
    round_
        The round, from 0.
    seed
        The seed of the order.

    Examples
    --------
    >>> designs = [RoundRobinDesign(Population([5, 3, 2]), 2, round_=t) for t in range(3)]
    >>> np.mean([design.weight_per_draw() for design in designs], axis=0).round(12).tolist()
    [0.5, 0.3, 0.2]

    References
    ----------
    Y. J. Cho et al., "On the convergence of federated averaging with cyclic client
    participation", ICML 2023 (whose cycle is one of groups, with random draws inside each).
    """

    def __init__(
        self, population: Population, cohort_size: int, round_: int, *, seed: int = 0
    ) -> None:
        super().__init__(population, cohort_size)
        drawable = drawable_clients(self)
        round_ = checked_whole(self.name, "round_", round_, way_out="Count rounds from 0.")
        seed = checked_whole(self.name, "seed", seed)
        self._circle = np.random.default_rng(seed).permutation(drawable)
        n = len(self._circle)
        # Python integers: no round number overflows.
        start = round_ * self.cohort_size % n
        turn = self._circle[(start + np.arange(self.cohort_size)) % n]
        self._choose(turn, n / self.cohort_size * population.importance[turn])

    def participations(self, rounds: int) -> int:
        """Return the most turns of a client in ``rounds`` rounds in a row."""
        return -(-super().participations(rounds) * self.cohort_size // len(self._circle))

    def over_rounds(self) -> "RoundRobinCycle":
        """Return the law of a random round of the cycle."""
        return RoundRobinCycle(self.population, self.cohort_size, self._circle)


@final
class RoundRobinCycle(RoundsDesign):
    r"""A round of :class:`RoundRobinDesign`'s cycle, all equally likely.

    Its mean weights are the importances, and :math:`\operatorname{Var}[w_i] = p_i^2 (n/m - 1)`, as
    for :class:`UniformDesign` with unbiased weights. It is still not called unbiased, since the
    rounds of a cycle are not drawn: every single one is biased.

    Parameters
    ----------
    circle
        The clients in the order of their turns.
    """

    def __init__(self, population: Population, cohort_size: int, circle: NDArray[np.int64]) -> None:
        self.circle = circle
        super().__init__(population, cohort_size)
        self._mean_weights = population.importance

    def n_cohorts(self) -> int:
        """Return the number of rounds in a cycle."""
        return len(self.circle) // math.gcd(len(self.circle), self.cohort_size)

    def weight_variance(self) -> NDArray[np.float64]:
        n, m = len(self.circle), self.cohort_size
        return self.population.importance**2 * ((n - m) / m)

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        return self._turns(rng.integers(self.n_cohorts(), size=rounds))

    def _every_cohort(self) -> NDArray[np.int64]:
        return self._turns(np.arange(self.n_cohorts()))

    def _turns(self, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
        places = rounds[:, None] * self.cohort_size + np.arange(self.cohort_size)
        clients: NDArray[np.int64] = self.circle[places % len(self.circle)]
        return clients

    def _weights_of(self, cohorts: NDArray[np.int64]) -> NDArray[np.float64]:
        return len(self.circle) / self.cohort_size * self.population.importance[cohorts]


@final
@dataclass(frozen=True, repr=False)
class RoundRobin(Recipe):
    """Recipe of :class:`RoundRobinDesign`; ``seed`` fixes the order."""

    name: ClassVar[str] = "round-robin"

    seed: int = whole(0)

    def design(self, population: Population, known: Knowledge) -> RoundRobinDesign:
        return RoundRobinDesign(population, self.cohort_size, known.round_, seed=self.seed)
