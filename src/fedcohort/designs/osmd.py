"""OSMD sampling: m independent draws, with chances that online mirror descent learns from norms."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import checked_numbers
from fedcohort._fields import number, whole
from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design, spread
from fedcohort.designs.recipe import Knowledge, ObservedRound, Recipe
from fedcohort.errors import DesignError
from fedcohort.population import Population

Numbers = NDArray[np.float64]

#: Chances become integers for exact draws: the largest becomes this one.
CHANCE_UNITS = 2**40
#: Longer updates count as this long: their squares would be infinite.
LONGEST = 1e140
#: A smaller bound counts as 0: rates would be infinite.
SMALLEST = 1e-280


@final
class OSMDDesign(Design):
    r"""Draw m times with given chances :math:`r_i`; a draw weighs :math:`p_i / (m r_i)`.

    The draws are independent, and a client can be drawn more than once:

    .. math::

        \operatorname{Var}[w_i] = p_i^2 (1/r_i - 1) / m, \qquad
        V = \Big(\sum_i p_i^2 \|\Delta_i\|^2 / r_i - \|\bar\Delta\|^2\Big) / m .

    Unbiased for all chances above 0, since they are fixed before the draw. V is smallest for
    chances proportional to :math:`p_i \|\Delta_i\|`; :class:`OSMD` learns chances near these. With
    :math:`r = p` it is :class:`MultinomialDesign`. Weights do not sum to 1: the residual is random
    with mean 0.

    Parameters
    ----------
    population, cohort_size
        The clients to draw from, and the number of draws.
    chances
        In proportion, shape (n_clients,); above 0 for every client with samples. They become
        integers, so that draws are exact. A chance below 1e-12 of the largest is raised to it.

    Attributes
    ----------
    units
        The integers that the chances are proportional to, shape (n_clients,).

    Examples
    --------
    >>> design = OSMDDesign(Population([2, 1, 1]), 2, chances=[1.0, 1.0, 2.0])
    >>> design.chances.tolist(), design.weight_per_draw().tolist()
    ([0.25, 0.25, 0.5], [1.0, 0.5, 0.25])

    References
    ----------
    B. Zhao et al., "Adaptive client sampling in federated learning via online learning with bandit
    feedback", JMLR 26, 2025.
    """

    unbiased = True
    reads = "norms of clients' past updates"

    def __init__(self, population: Population, cohort_size: int, chances: ArrayLike) -> None:
        super().__init__(population, cohort_size)
        n = population.n_clients
        given = checked_numbers(self.name, "chances", chances, n).astype(np.float64)
        has_samples = population.sizes > 0
        if not (np.isfinite(given).all() and (given[has_samples] > 0).all()):
            client = int(np.argmin(np.where(has_samples, np.nan_to_num(given, nan=-1.0), np.inf)))
            raise DesignError(
                f"{self.name}: chances must be finite and above 0 for every client with samples; "
                f"client {client} has {given[client]}. Mix them with equal chances."
            )
        relative = np.where(has_samples, given, 0.0)
        units = np.rint(relative / relative.max() * CHANCE_UNITS).astype(np.int64)
        self.units = np.where(has_samples, np.maximum(units, 1), 0)
        self._ends = np.cumsum(self.units)
        self._total = int(self._ends[-1])

    @property
    def chances(self) -> Numbers:
        """The chance of each client in one draw, r, shape (n_clients,); the sum is 1."""
        return self.units / self._total

    def expected_counts(self) -> Numbers:
        return self.cohort_size * self.chances

    def weight_per_draw(self) -> Numbers:
        return self._over_chances(self.population.importance) / self.cohort_size

    def weight_variance(self) -> Numbers:
        own = self.population.importance * ((self._total - self.units) / self._total)
        return self.weight_per_draw() * own

    def covariance(self) -> Numbers:
        importance = self.population.importance
        covariance = -np.outer(importance, importance) / self.cohort_size
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def inclusion_probability(self) -> Numbers:
        """Return 1 - (1 - r)^m, shape (n_clients,)."""
        with np.errstate(divide="ignore"):  # log 0: a single client is always drawn
            misses = self.cohort_size * np.log1p(-self.chances)
        return np.asarray(0.0 - np.expm1(misses))

    def max_count(self) -> NDArray[np.int64]:
        """Return m where the size is positive, shape (n_clients,)."""
        return np.where(self.units > 0, self.cohort_size, 0)

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        units = rng.integers(self._total, size=(rounds, self.cohort_size))
        return np.searchsorted(self._ends, units, side="right")

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        ratios = self._over_chances(self.population.importance)
        return spread(self.chances, ratios[:, None] * updates) / self.cohort_size

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, counts * self.weight_per_draw()[clients])

    def _over_chances(self, values: Numbers) -> Numbers:
        """Divide by the chances; 0 where the size is 0."""
        chances = self.chances
        return np.divide(values, chances, out=np.zeros_like(values), where=chances > 0)


def raised(lengths: Numbers, floor: float) -> Numbers:
    r"""Return the chances with sum 1 that are nearest to ``lengths`` and at least ``floor`` / n.

    Nearest in the sense of the Kullback-Leibler divergence: :math:`\max(floor / n, \lambda x_i)`
    with the factor that makes the sum 1. Lengths are at least 0 and not all 0; ``floor`` is from 0
    to 1.

    Examples
    --------
    >>> raised(np.array([0.05, 0.25, 0.7]), 0.4).round(6).tolist()
    [0.133333, 0.22807, 0.638596]
    """
    n, order = len(lengths), np.argsort(lengths, kind="stable")
    ascending = lengths[order] / lengths.sum()
    left = np.cumsum(ascending[::-1])[::-1]
    # With the k smallest at the floor, the next one gets its share of what is left of 1. All
    # that would get at most the floor stand before those that get more.
    below = ascending * (1 - floor * np.arange(n) / n) <= floor / n * left
    k = int(np.max(np.flatnonzero(below), initial=-1)) + 1
    chances = np.full(n, floor / n)
    if k < n:
        chances[order[k:]] = ascending[k:] * (1 - floor * k / n) / left[k]
    return chances


def stepped(laws: Numbers, rates: Numbers, slopes: Numbers, floor: float) -> Numbers:
    """Take one step of mirror descent in every column: multiply, and project.

    ``laws`` and ``slopes`` have shape (n, experts): ``laws * exp(rates * slopes)`` is projected
    by :func:`raised`.
    """
    logs = np.log(laws) + rates * slopes
    lengths = np.exp(logs - logs.max(axis=0))  # a common factor does not matter
    return np.stack([raised(own, floor) for own in lengths.T], axis=1)


@final
@dataclass(frozen=True, repr=False)
class OSMD(Recipe):
    r"""Recipe of :class:`OSMDDesign`: learn the chances from the norms of the drawn clients.

    A drawn client's feedback is :math:`a_i = p_i^2 \|\Delta_i\|^2`; with an estimator the norm is
    that of :math:`\Delta_i - h_i`. A step of online mirror descent multiplies its chance by
    :math:`\exp(\eta\, c_i a_i / (m^2 r_i^3))`, and raises all chances to at least floor / n. The
    exponent is on average proportional to the slope of V. All chances are equal at first.

    The best rate :math:`\eta` is not known. Without ``rate``, E experts learn, each with a law of
    its own and twice the rate of the one before. The chances are the mean of their laws, weighted
    by how well each would have done. With :math:`\alpha` the floor,

    .. math::

        \eta_e = 2^{e-1} \frac{m^2 \alpha^3}{n^3 \bar a} \sqrt{\frac{\ln n}{2 R}}, \qquad
        r = \sum_e z_e r^e, \qquad
        z_e \propto \frac{1}{e (e+1)} \exp\Big(-\frac{\alpha}{n} \sqrt{\frac{8 m}{R}}\,
        \frac{L_e}{\bar a}\Big) ,

    and :math:`L_e` the sum of :math:`c_i a_i / (m^2 r_i^e r_i)` over all rounds.

    Parameters
    ----------
    floor
        The least chance of a client, in units of 1/n; above 0, at most 1.
    rounds
        The number of rounds, R; it sets the rates of the experts.
    rate
        The rate of a single expert, :math:`\eta`; None for several.
    bound
        A bound on :math:`a_i`, :math:`\bar a`. None: the largest that was heard so far. The authors
        ask all clients once.

    Notes
    -----
    The published program counts a client that is drawn twice once in its step; here it counts
    twice, as in the formula, so that the slope is unbiased. It divides by the root of
    :math:`\bar a` in g, so that the weights of experts depend on the unit of the updates.
    """

    name: ClassVar[str] = "osmd"
    keeps: ClassVar[tuple[str, ...]] = ("laws", "losses", "largest")

    floor: float = number(0.4, above=0, most=1)
    rounds: int = whole(1000, least=1, way_out="Pass the number of rounds.")
    rate: float | None = number(None, above=0)
    bound: float | None = number(None, above=0)

    def design(self, population: Population, known: Knowledge) -> OSMDDesign:
        there = np.flatnonzero(population.sizes)
        kept = {name: known.kept(name) for name in self.keeps}
        laws, losses = self._laws(kept["laws"], population), _columns(kept["losses"])
        shares = self._shares(losses, laws.shape[1], len(there), self._bound(kept["largest"]))
        chances = np.zeros(population.n_clients)
        chances[there] = self._projected(laws[there]) @ shares
        return OSMDDesign(population, self.cohort_size, chances)

    def observe(self, kept: dict[str, Numbers], observed: ObservedRound) -> None:
        population, cohort, design = observed.population, observed.cohort, observed.design
        assert isinstance(design, OSMDDesign)  # for mypy: the recipe built it
        there, m = np.flatnonzero(population.sizes), design.cohort_size
        lengths = population.importance[cohort.clients] * observed.norms
        squares = np.minimum(lengths, LONGEST) ** 2
        largest = kept["largest"]
        largest[cohort.clients] = np.fmax(largest[cohort.clients], squares)
        stored = self._laws(kept["laws"], population)
        laws = self._projected(stored[there])
        # A client's loss is (feedback / m^2) / (law * chance); its slope, that over the law.
        losses = np.zeros((population.n_clients, stored.shape[1]))
        own = laws[np.searchsorted(there, cohort.clients)]
        heard = cohort.counts * squares / (m**2 * design.chances[cohort.clients])
        losses[cohort.clients] = heard[:, None] / own
        bound = self._bound(largest)
        if bound > 0:  # else all updates so far were zero
            rates = self._rates(len(there), stored.shape[1], bound)
            moved = stepped(laws, rates, losses[there] / laws, self.floor)
            # Keep the sum, so that clients that are away keep their share.
            stored[there] = moved * stored[there].sum(axis=0)
        before = np.nan_to_num(_columns(kept["losses"]))
        kept["laws"], kept["losses"] = stored, before + losses

    def _n_experts(self, n: int) -> int:
        """Return the number of experts for n clients."""
        if self.rate is not None or n < 2:
            return 1
        logarithm = math.log(n)
        span = 1 + 4 * (self.rounds - 1) * math.log(n / self.floor) / logarithm
        return math.ceil(math.log2(span) / 2) + 1

    def _rates(self, n: int, experts: int, bound: float) -> Numbers:
        """Return the rate of each expert for n clients, shape (experts,)."""
        if self.rate is not None:
            return np.array([self.rate])
        base = self.cohort_size**2 * self.floor**3 / (n**3 * bound)
        slowest = base * math.sqrt(math.log(n) / (2 * self.rounds))
        return np.asarray(slowest * 2.0 ** np.arange(experts))

    def _shares(self, losses: Numbers, experts: int, n: int, bound: float) -> Numbers:
        """Return the share of each expert in the chances, z, shape (experts,)."""
        numbers = np.arange(1, experts + 1)
        logs = -np.log(numbers * (numbers + 1.0))
        if bound > 0:
            speed = self.floor / n * math.sqrt(8 * self.cohort_size / self.rounds)
            logs = logs - speed * np.nan_to_num(losses).sum(axis=0) / bound
        shares = np.exp(logs - logs.max())
        return np.asarray(shares / shares.sum())

    def _bound(self, largest: Numbers) -> float:
        """Return the bound on the feedback; 0 if none was heard."""
        if self.bound is not None:
            return self.bound
        heard = float(np.nanmax(largest, initial=0.0))
        return heard if heard > SMALLEST else 0.0

    def _laws(self, kept: Numbers, population: Population) -> Numbers:
        """Return a copy of the experts' laws, shape (n_clients, experts), with any sum.

        New clients get the mean of the others.
        """
        n, is_new = population.n_clients, np.isnan(_columns(kept)).any(axis=1)
        if is_new.all():
            experts = self._n_experts(int(np.count_nonzero(population.sizes)))
            return np.full((n, experts), 1 / n)
        laws = _columns(kept).copy()
        laws[is_new] = laws[~is_new].mean(axis=0)
        return laws

    def _projected(self, laws: Numbers) -> Numbers:
        """Return every expert's law over these clients: its sum is 1, and it keeps the floor."""
        return np.stack([raised(own, self.floor) for own in laws.T], axis=1)


def _columns(kept: Numbers) -> Numbers:
    """Return an array of the recipe as a row per client."""
    return kept.reshape(len(kept), -1)
