"""Round robin: the clients take turns."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from fedcohort._arguments import checked_whole
from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population


@final
class RoundRobinDesign(ChosenDesign):
    r"""Let the clients take turns, ``cohort_size`` a round, in one order that ``seed`` fixes.

    Round *t* takes places :math:`tm, \dots, tm + m - 1` of the circle of the *n* clients with
    samples; each weighs :math:`p_i\,n/m`, and the residual is what the weights leave of 1.

    Biased in every round, since its cohort is certain: :math:`w - p`. Unbiased in two weaker
    senses. Over a cycle, any :math:`n / \gcd(n, m)` rounds in a row, a client's weights average
    exactly to its importance; but the model moves between them, so that a cycle is not a step of
    full participation. And over the orders, all equally likely, any one round is
    :class:`UniformDesign`'s unbiased draw; but the rounds of one order are not independent.

    Needs nothing but the round. The order holds while the clients stay the same.

    Parameters
    ----------
    population, cohort_size
        Who takes turns, and how many a round.
    round_
        From 0.
    seed
        Of the order.

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
        circle = np.random.default_rng(seed).permutation(drawable)
        # In Python's integers: no number of rounds is too large.
        start = round_ * self.cohort_size % len(circle)
        turn = circle[(start + np.arange(self.cohort_size)) % len(circle)]
        scale = len(circle) / self.cohort_size
        self._choose(turn, scale * population.importance[turn])


@final
@dataclass(frozen=True, repr=False)
class RoundRobin(Recipe):
    """Recipe of :class:`RoundRobinDesign`; ``seed`` fixes the order."""

    name: ClassVar[str] = "round-robin"

    seed: int = 0

    def check(self) -> None:
        """Validate the seed."""
        checked_whole(type(self).__name__, "seed", self.seed)

    def design(self, population: Population, known: Knowledge) -> RoundRobinDesign:
        """Make the design from what is known."""
        return RoundRobinDesign(population, self.cohort_size, known.round_, seed=self.seed)
