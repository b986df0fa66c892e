"""Poisson sampling: an independent coin for every client."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs.base import drawable_clients
from fedcohort.designs.coins import CoinDesign, capped_coins
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population


@final
class PoissonDesign(CoinDesign):
    r"""Toss a coin for every client: in the cohort with chance :math:`q_i`, weight p_i / q_i.

    The chances are proportional to importance and capped, :math:`q_i = \min(1, \lambda p_i)` with
    :math:`\sum_i q_i = m`, so that m is the cohort's *expected* size. The coins are independent:

    .. math::

        \operatorname{Var}[w_i] = p_i^2 (1/q_i - 1), \qquad
        V = \sum_i p_i^2 (1/q_i - 1) \|\Delta_i\|^2 .

    Unbiased. The residual is random with mean 0 and may be negative; an empty cohort has residual
    1 and is never drawn again, since that would bias. With c clients of chance 1, whose sizes
    leave R samples to the others, :math:`q_i = (m - c)\,n_i / R`: an integer coin.

    Parameters
    ----------
    population, cohort_size
        Whom to draw from, and how many clients are expected.

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
        """Return the chance of each client, q, shape (n_clients,)."""
        return self._coins / self._sides

    @property
    def _missing_chance(self) -> NDArray[np.float64]:
        return (self._sides - self._coins) / self._sides

    def _heads(self, rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.bool_]:
        return np.asarray(rng.integers(self._sides, size=shape) < self._coins)


@final
@dataclass(frozen=True, repr=False)
class Poisson(Recipe):
    """Recipe of :class:`PoissonDesign`."""

    name: ClassVar[str] = "poisson"

    def design(self, population: Population, known: Knowledge) -> PoissonDesign:
        """Make the design from what is known."""
        return PoissonDesign(population, self.cohort_size)
