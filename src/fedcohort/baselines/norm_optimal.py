"""Norm-optimal sampling: independent coins that favour clients with large updates."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import checked_flag
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.poisson import CoinDesign, capped_chances
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.designs.signals import SignalName, checked_signal
from fedcohort.population import Population

#: The largest number of passes of the approximate iteration.
APPROXIMATE_PASSES = 4
#: Norms below this share of the largest norm count as 0.
SMALLEST = 1e-290


@final
class NormOptimalDesign(CoinDesign):
    r"""Toss a coin for every client, with the chances that make V smallest among all coins.

    Every client trains and reports the norm of its update; only drawn clients send the update. With
    :math:`u_i = p_i \|\Delta_i\|` in ascending order, and *l* the largest number such that
    :math:`0 < m + l - n \le \sum_{j \le l} u_j / u_l`,

    .. math::

        q_i = (m + l - n)\,u_i \Big/ \sum_{j \le l} u_j \quad (i \le l), \qquad
        q_i = 1 \quad (i > l),

        V = \sum_i (1/q_i - 1)\,u_i^2 .

    No independent coins with the same expected cohort size m have a smaller V. Dependent draws
    may. For four equal clients with equal updates of norm 1, and m = 2, V is 1/4 here and 0 with
    :class:`MultinomialDesign`.

    ``approximate=True`` finds the chances without a sort, from sums that secure aggregation can
    provide. It starts with :math:`q_i = \min(1, m u_i / \sum_j u_j)`. At most four times, it
    multiplies all chances below 1 by :math:`C = (m - n + I) / P`, capped at 1, where I is their
    number and P their sum. It stops when C is 1 or less. The expected cohort size may be below m.

    Unbiased if every client with samples reports a positive norm. A client with norm 0 or without
    a norm (NaN: it did not answer) is never drawn; ``unbiased`` is then False, and ``bias`` shows
    the missing weight. A zero norm changes no aggregate; a missing norm does. If no norm is
    positive, the cohort is empty.

    Needs the signal ``update_norm`` of all clients. All of them train in every round: the design
    saves upload, not work.

    Parameters
    ----------
    population, cohort_size
        The clients to draw from, and the expected number of clients.
    norms
        The norm of every client's update, shape (n_clients,); NaN if unknown.
    approximate
        Whether to use the iteration instead of the sort.

    Notes
    -----
    The difference estimator is refused: a client of norm 0 would also lose its term -w h, and the
    estimate would be biased.

    Examples
    --------
    >>> design = NormOptimalDesign(Population([1, 1, 1, 1]), 2, norms=[6.0, 1.0, 1.0, 0.0])
    >>> design.expected_counts().tolist()
    [1.0, 0.5, 0.5, 0.0]

    References
    ----------
    W. Chen, S. Horváth, P. Richtárik, "Optimal client sampling for federated learning", TMLR 2022.
    """

    reads = "norms of clients' updates"

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        norms: ArrayLike,
        *,
        approximate: bool = False,
    ) -> None:
        super().__init__(population, cohort_size)
        drawable_clients(self)
        self.norms = checked_signal(self.name, "update_norm", norms, population.n_clients)
        self.norms.setflags(write=False)
        # Sizes can replace importances, since chances depend only on ratios. Scale by the largest
        # norm first, so that no product overflows or underflows.
        known = np.nan_to_num(self.norms)
        relative = known / (known.max() or 1.0)
        # Treat tiny norms as 0: one over their chance would overflow.
        relative[relative < SMALLEST] = 0.0
        lengths = np.asarray(population.sizes * relative, dtype=np.float64)
        self.approximate = checked_flag(self.name, "approximate", approximate)
        chances = _approximate_chances if self.approximate else capped_chances
        self._chance = np.zeros(population.n_clients)
        takes_part = np.flatnonzero(lengths)
        if len(takes_part):
            draws = min(self.cohort_size, len(takes_part))
            self._chance[takes_part] = chances(lengths[takes_part], draws)
        self._chance.setflags(write=False)
        self.unbiased = bool((self._chance[population.sizes > 0] > 0).all())

    def expected_counts(self) -> NDArray[np.float64]:
        return self._chance

    def bias(self) -> NDArray[np.float64]:
        """Return E[w] - p, shape (n_clients,): -p where the chance is 0, else 0."""
        return np.where(self._chance > 0, 0.0, -self.population.importance)


def _approximate_chances(lengths: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    """Return the chances that the approximate iteration finds."""
    chances = np.minimum(1.0, draws * lengths / lengths.sum())
    for _ in range(APPROXIMATE_PASSES):
        below = chances < 1
        if not below.any():
            break
        scale = (draws - np.count_nonzero(~below)) / chances[below].sum()
        # Only rounding can make it less than 1. Do not lower any chance then.
        if scale <= 1:
            break
        chances[below] = np.minimum(1.0, scale * chances[below])
    return np.asarray(chances)


@final
@dataclass(frozen=True, repr=False)
class NormOptimal(Recipe):
    """Recipe of :class:`NormOptimalDesign`; asks all clients for the norm of their update."""

    name: ClassVar[str] = "norm-optimal"
    signals: ClassVar[tuple[SignalName, ...]] = ("update_norm",)
    plain_only: ClassVar[bool] = True

    approximate: bool = False

    def design(self, population: Population, known: Knowledge) -> NormOptimalDesign:
        norms = known.signal("update_norm")
        return NormOptimalDesign(population, self.cohort_size, norms, approximate=self.approximate)
