"""Stratified sampling: a fixed number of draws in each of the given groups."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Rng, checked_choice, checked_rng, group_numbers
from fedcohort._fields import choice
from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design, spread
from fedcohort.designs.recipe import Knowledge, Recipe, known_updates
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.similarity.measures import checked_updates

Allocation = Literal["proportional", "neyman"]
ALLOCATIONS: tuple[Allocation, ...] = get_args(Allocation)
#: Neyman's allocation rounds each stratum's share to this many parts of the largest share.
NEYMAN_PARTS = 2**40


@final
class StratifiedDesign(Design):
    r"""Draw :math:`m_h` times in stratum *h*, by size and with replacement.

    With :math:`P_h` the importance of the stratum and :math:`\bar\Delta_h` the mean of its updates
    weighted by size, a draw weighs :math:`P_h / m_h`, and

    .. math::

        E[c_i] = m_h\,p_i / P_h, \qquad
        \operatorname{Cov}[w_i, w_j] = \bigl(p_i P_h [i = j] - p_i p_j\bigr) / m_h, \qquad
        V = \sum_h \frac{P_h^2}{m_h} \sigma_h^2, \quad
        \sigma_h^2 = \sum_{i \in h} \frac{p_i}{P_h} \|\Delta_i - \bar\Delta_h\|^2 ,

    Covariances between strata are 0. The design is unbiased, and the residual is 0 up to rounding:
    every stratum always has its full weight. Unlike in :class:`TargetDesign`, each stratum has a
    whole number of draws and shares none of them with another stratum.

    The m draws are allocated by largest remainder, at least one to each stratum. They are
    proportional to :math:`P_h`, or to :math:`P_h \sigma_h` (``"neyman"``), which nearly minimises V
    on the given updates. If every :math:`m P_h` is an integer, proportional allocation is never
    worse than multinomial sampling; otherwise it may be. If no stratum has any spread, as before
    the first update, Neyman's allocation is the proportional one. Clients that have sent no update
    count as zeros, which makes a partly known stratum look wide in the first rounds.

    Parameters
    ----------
    population, cohort_size
        The clients to draw from, and the number of draws, at least one per stratum with
        samples.
    groups
        The stratum of every client: n_clients labels of any kind.
    allocation
        ``"proportional"`` or ``"neyman"``.
    updates
        The clients' last updates, shape (n_clients, dimension), for ``"neyman"``.

    Attributes
    ----------
    strata
        The stratum of every client, numbered by first appearance, shape (n_clients,).
    draws
        The number of draws in each stratum; 0 for a stratum without samples.

    Examples
    --------
    >>> population = Population([5, 3, 2])
    >>> design = StratifiedDesign(population, 3, ["a", "b", "b"], rng=0)
    >>> sorted(design.draws.tolist()), design.expected_counts().sum().round(12)
    ([1, 2], np.float64(3.0))

    References
    ----------
    J. Neyman, "On the two different aspects of the representative method", Journal of the Royal
    Statistical Society, 1934.
    """

    unbiased = True

    strata: NDArray[np.int64]
    draws: NDArray[np.int64]

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        groups: Sequence[Hashable],
        *,
        allocation: Allocation = "proportional",
        updates: ArrayLike | None = None,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        checked_choice(self.name, "allocation", allocation, ALLOCATIONS)
        self.strata = group_numbers(self.name, groups, population.n_clients)
        self.strata.setflags(write=False)
        self._masses = np.zeros(self.strata.max() + 1, dtype=np.int64)
        np.add.at(self._masses, self.strata, population.sizes)
        # Clients in the order of their strata: one cumulative sum then draws from any stratum.
        self._line = np.argsort(self.strata, kind="stable")
        n_strata = int(np.count_nonzero(self._masses))
        if self.cohort_size < n_strata:
            raise DesignError(
                f"{self.name}: needs at least one draw in each of the {n_strata} strata with "
                f"samples; got cohort_size {self.cohort_size}. Raise it, join strata, or use "
                f"TargetDesign or TournamentDesign."
            )
        claims = self._masses
        if allocation == "neyman":
            claims = self._neyman_claims(updates)
            self.reads = "clients' updates"
        self.draws = _allocated(claims, self._masses > 0, self.cohort_size, rng)
        self.draws.setflags(write=False)
        self._ends = np.cumsum(population.sizes[self._line])
        starts = np.cumsum(self._masses) - self._masses
        self._row_masses = np.repeat(self._masses, self.draws)
        self._row_starts = np.repeat(starts, self.draws)

    def expected_counts(self) -> NDArray[np.float64]:
        """Return the expected count of each client, m_h p_i / P_h, shape (n_clients,)."""
        return self._share * self.draws[self.strata]

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the weight of one draw of each client, P_h / m_h; 0 if its size is 0."""
        per_draw = self._masses / self.population.total / np.maximum(self.draws, 1)
        return np.where(self.population.sizes > 0, per_draw[self.strata], 0.0)

    def weight_variance(self) -> NDArray[np.float64]:
        masses, sizes = np.maximum(self._masses, 1)[self.strata], self.population.sizes
        others = (masses - sizes) / masses
        return self.weight_per_draw() ** 2 * self.expected_counts() * others

    def covariance(self) -> NDArray[np.float64]:
        importance = self.population.importance
        together = self.strata[:, None] == self.strata[None, :]
        draws = np.maximum(self.draws, 1)[self.strata]
        covariance = np.where(together, -np.outer(importance, importance) / draws, 0.0)
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return 1 - (1 - p_i / P_h)^m_h, shape (n_clients,)."""
        with np.errstate(divide="ignore"):  # log 0: the only client of a stratum is always drawn
            misses = self.draws[self.strata] * np.log1p(-self._share)
        return np.where(self.population.sizes > 0, 0.0 - np.expm1(misses), 0.0)

    def max_count(self) -> NDArray[np.int64]:
        """Return m_h where the size is positive, shape (n_clients,)."""
        return np.where(self.population.sizes > 0, self.draws[self.strata], 0)

    @property
    def _share(self) -> NDArray[np.float64]:
        """The share of each client in its stratum, p_i / P_h."""
        return self.population.sizes / np.maximum(self._masses, 1)[self.strata]

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        units = rng.integers(self._row_masses, size=(rounds, self.cohort_size))
        places = np.searchsorted(self._ends, self._row_starts + units, side="right")
        return self._line[places]

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        masses = self._masses / self.population.total
        return float(masses**2 / np.maximum(self.draws, 1) @ self._spreads(updates))

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, counts * self.weight_per_draw()[clients])

    def _spreads(self, updates: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the size-weighted variance of the updates in every stratum."""
        ends, share = np.cumsum(np.bincount(self.strata)), self._share
        strata = np.split(self._line, ends[:-1])
        return np.array([spread(share[members], updates[members]) for members in strata])

    def _neyman_claims(self, updates: ArrayLike | None) -> NDArray[np.int64]:
        """Return integers proportional to P_h sigma_h."""
        if updates is None:
            raise DesignError(
                f"{self.name}: allocation neyman needs the clients' updates; got none. Pass "
                f"updates, or allocation='proportional'."
            )
        deltas = checked_updates(self.name, updates, self.population.n_clients)
        wide = self._masses / self.population.total * np.sqrt(self._spreads(deltas))
        if not wide.any():
            return self._masses
        return np.asarray(np.rint(wide / wide.max() * NEYMAN_PARTS), dtype=np.int64)


def _allocated(
    claims: NDArray[np.int64],
    takes_part: NDArray[np.bool_],
    draws: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Divide the draws in proportion to the claims, by largest remainder, at least one each.

    A stratum with a claim to less than one draw gets one; the others share the rest. Python
    integers cannot overflow here. Equal remainders are ordered at random.
    """
    held = {h: int(claims[h]) for h in rng.permutation(np.flatnonzero(takes_part)).tolist()}
    given = np.zeros(len(claims), dtype=np.int64)
    while True:
        left, total = draws - int(given.sum()), sum(held.values())
        small = [h for h, claim in held.items() if claim * left < total]
        if not small:
            break
        for h in small:
            given[h] = 1
            del held[h]
    remainder = {}
    for h, claim in held.items():
        given[h], remainder[h] = divmod(claim * left, total)
    by_remainder = sorted(remainder, key=lambda h: -remainder[h])
    given[by_remainder[: draws - int(given.sum())]] += 1
    return given


@final
@dataclass(frozen=True, repr=False)
class Stratified(Recipe):
    """Recipe of :class:`StratifiedDesign`; Neyman's allocation reads the memory.

    The strata are the population's groups. Without a memory every update is zero, and Neyman's
    allocation is the proportional one.
    """

    name: ClassVar[str] = "stratified"
    grouped: ClassVar[bool] = True

    allocation: Allocation = choice("proportional", ALLOCATIONS)

    @property
    def learns(self) -> bool:  # type: ignore[override]  # depends on a hyper-parameter
        """Whether the design depends on the memory."""
        return self.allocation == "neyman"

    def design(self, population: Population, known: Knowledge) -> StratifiedDesign:
        return StratifiedDesign(
            population,
            self.cohort_size,
            population.groups or (),
            allocation=self.allocation,
            updates=known_updates(population, known) if self.learns else None,
            rng=known.rng,
        )
