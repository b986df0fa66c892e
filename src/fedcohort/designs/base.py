"""The base of all designs: a probability law over cohorts, with its exact moments."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from fedcohort._arguments import (
    UNIT_LIMIT,
    Rng,
    checked_choice,
    checked_cohort_size,
    checked_flag,
    checked_kind,
    checked_number,
    checked_numbers,
    checked_rng,
    checked_rounds,
    checked_whole,
)
from fedcohort._lazy import import_extra
from fedcohort.cohort import Cohort
from fedcohort.errors import DesignError
from fedcohort.plan import Plan
from fedcohort.population import Population
from fedcohort.similarity.measures import BLOCK_ENTRIES, LARGEST_EXACT, checked_updates

#: Which two federations a privacy guarantee compares: in ``"zero-out"`` one client's updates are
#: zero in one of them, in ``"replace-one"`` they are any others. Sizes are the same in both.
Relation = Literal["zero-out", "replace-one"]


def spread(weights: NDArray[np.float64], points: NDArray[np.floating]) -> float:
    r"""Return :math:`\sum_i w_i \|x_i - \sum_j w_j x_j\|^2` for weights that sum to 1.

    Points are centred first. The result is never negative, and a common shift of all points
    costs no precision.
    """
    mean = np.zeros(points.shape[1])
    for block in _blocks(points):
        mean += weights[block] @ points[block].astype(np.float64)
    return second_moment(weights, points, about=mean)


def second_moment(
    weights: NDArray[np.float64],
    points: NDArray[np.floating],
    about: NDArray[np.float64] | float = 0.0,
) -> float:
    r"""Return :math:`\sum_i w_i \|x_i - c\|^2`, with c = ``about``."""
    total = 0.0
    for block in _blocks(points):
        off = points[block].astype(np.float64) - about
        total += float(weights[block] @ np.einsum("ij,ij->i", off, off))
    return total


def _blocks(points: NDArray[np.floating]) -> Iterator[slice]:
    """Yield slices of clients, each of at most ``BLOCK_ENTRIES`` entries."""
    step = max(1, BLOCK_ENTRIES // max(1, points.shape[1]))
    for start in range(0, len(points), step):
        yield slice(start, start + step)


class Design(ABC):
    r"""A probability law over cohorts.

    A draw gives client :math:`i` a count :math:`c_i` and the aggregation weight
    :math:`w_i = p_i c_i / E[c_i]`. A design is built once from what the server knows. It does not
    change, and ``draw`` keeps no state.

    The base class covers the common case, m draws with :math:`E[c_i] = m p_i`. Every draw then
    weighs 1/m, and the residual is 0. A design with other counts or weights overrides
    ``expected_counts``, ``weight_per_draw`` and ``weigh``.

    To write your own design, define ``unbiased``, ``sample``, ``covariance``,
    ``inclusion_probability`` and ``max_count``. Everything else is computed from these. Override
    it where a shorter formula exists.

    Every design takes the population to draw from and the number of draws. Most also take ``rng``
    to break ties: an integer, a generator, or None for a random one.
    """

    #: Whether the design claims :math:`E[w_i] = p_i`. ``check_design`` tests the claim.
    unbiased: bool
    #: Whether ``weight_covariance`` and ``aggregate_variance`` have a formula. If not, they raise
    #: :class:`DesignError`; use ``diagnostics.estimated_aggregate_variance`` instead.
    exact_moments: bool = True
    #: Whether expected counts and inclusion are exact. If not, they are estimated from draws.
    exact_counts: bool = True
    #: Whether the weights' mean and variance are exact. If not, they are estimated from draws.
    exact_weights: bool = True
    #: The number of drawn cohorts that estimates come from; 0 if there are none.
    estimate_cohorts: int = 0
    #: Whether later rounds can draw from the same design. False if building the design already
    #: chooses the clients.
    lasts: bool = True
    #: What the choice of clients depends on besides sizes, groups and the round, such as the
    #: clients' updates; empty if nothing. If not empty, ``privacy_event`` is refused.
    reads: str = ""

    def __init__(self, population: Population, cohort_size: int) -> None:
        self.population = checked_population(self.name, population)
        self.cohort_size = checked_cohort_size(self.name, cohort_size)
        if self.cohort_size * population.total >= UNIT_LIMIT:
            raise DesignError(
                f"{self.name}: cohort_size * total must be less than 2^63; got "
                f"{self.cohort_size} * {population.total}. Lower the cohort size, or divide all "
                f"sizes by one number."
            )

    @property
    def name(self) -> str:
        """The class's name, for messages."""
        return type(self).__name__

    def __repr__(self) -> str:
        clients = self.population.n_clients
        return f"{self.name}(cohort_size={self.cohort_size}, n_clients={clients})"

    def expected_counts(self) -> NDArray[np.float64]:
        """Return the expected count of each client, E[c], shape (n_clients,)."""
        return self.cohort_size * self.population.sizes / self.population.total

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the weight of one draw of each client, shape (n_clients,); 0 if its size is 0."""
        return np.where(self.population.sizes > 0, 1 / self.cohort_size, 0.0)

    def draw(self, rng: Rng = None) -> Cohort:
        """Draw one cohort. The same seed or generator state gives the same cohort."""
        counts = self.draw_many(1, rng)
        return self.weigh(counts.indices.astype(np.int64), counts.data)

    def draw_many(self, rounds: int, rng: Rng = None) -> csr_array:
        """Draw ``rounds`` cohorts, the same as that many calls of ``draw`` with one generator.

        Returns
        -------
        The counts: integers, shape (rounds, n_clients), with sorted and distinct indices.
        """
        number, generator = checked_rounds(self.name, rounds), checked_rng(self.name, rng)
        drawn = self.sample(generator, number)
        return drawn if issparse(drawn) else count_matrix(drawn, self.population.n_clients)

    def draw_weights(self, rounds: int, rng: Rng = None) -> csr_array:
        """Draw ``rounds`` cohorts; return their weights, shape (rounds, n_clients)."""
        counts = self.draw_many(rounds, rng)
        return counts.multiply(self.weight_per_draw()[None]).tocsr()

    def aggregate_variance(self, updates: ArrayLike) -> float:
        r"""Return :math:`E\|\sum_i w_i\Delta_i - \sum_i p_i\Delta_i\|^2`, squared bias included.

        ``updates`` has shape (n_clients, dimension).
        """
        deltas = checked_updates(self.name, updates, self.population.n_clients)
        self._require_formula("aggregate_variance", "diagnostics.estimated_aggregate_variance")
        offset = self.bias() @ deltas
        return self.aggregate_spread(deltas) + float(offset @ offset)

    def bias(self) -> NDArray[np.float64]:
        """Return E[w] - p, shape (n_clients,); exactly 0 if the design is unbiased."""
        if self.unbiased:
            return np.zeros(self.population.n_clients)
        return self.weight_per_draw() * self.expected_counts() - self.population.importance

    def over_rounds(self) -> "Design":
        """Return the law of a round picked at random: the design itself, if its draws are random.

        Override it if building the design already chooses the clients, and rounds differ.
        """
        return self

    def standard_errors(self) -> tuple[float, float] | None:
        """Return the errors of ``sum(|bias|)`` and ``sum(weight_variance)``; None if unknown."""
        return (0.0, 0.0) if self.exact_weights else None

    def weight_covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], shape (n_clients, n_clients), if that fits into memory."""
        instead = "weight_variance, or diagnostics.estimated_aggregate_variance"
        self._require_formula("weight_covariance", instead)
        n = self.population.n_clients
        if n > LARGEST_EXACT:
            raise DesignError(
                f"{self.name}: the covariance is an n x n matrix, for at most {LARGEST_EXACT} "
                f"clients; got {n}, which take {8e-9 * n * n:.0f} GB. Use weight_variance or "
                f"aggregate_variance."
            )
        return self.covariance()

    def weight_variance(self) -> NDArray[np.float64]:
        """Return Var[w], shape (n_clients,)."""
        return self.weight_covariance().diagonal().copy()

    @abstractmethod
    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return the chance of each client to be in the cohort, shape (n_clients,)."""

    @abstractmethod
    def max_count(self) -> NDArray[np.int64]:
        """Return the largest possible count of each client, shape (n_clients,)."""

    def largest_weight(self) -> float:
        """Return the largest weight that a client can have in a round.

        That is the sensitivity of the aggregate, in units of the clipping norm of the updates.
        """
        if not self.exact_counts:
            raise DesignError(
                f"{self.name}: its largest weight is unknown, since only draws reveal its law. "
                f"Define largest_weight."
            )
        return float((self.max_count() * self.weight_per_draw()).max())

    def participations(self, rounds: int) -> int:
        """Return in how many of ``rounds`` rounds in a row a client can be drawn: in all."""
        return checked_rounds(self.name, rounds)

    def privacy_event(
        self,
        noise: float = 1.0,
        *,
        rounds: int = 1,
        relation: Relation = "zero-out",
        amplified: bool = True,
        participations: int | None = None,
    ) -> Any:
        """Return what ``rounds`` noisy aggregates reveal, as an event of dp-accounting.

        Give it to an accountant of that library, or to :func:`fedcohort.diagnostics.epsilon`.
        Sizes, groups and weights are public. Updates are clipped to a norm. A server other than
        this design's adds the noise. Needs the extra ``dp``.

        Parameters
        ----------
        noise
            The standard deviation of the Gaussian noise on the aggregate, divided by
            ``largest_weight()`` times the clipping norm.
        rounds
            The number of rounds; all clients are available in each of them.
        relation
            The federations to compare: ``"zero-out"`` (the accountants' ``REPLACE_SPECIAL``) or
            ``"replace-one"`` (``REPLACE_ONE``), where one client moves the aggregate by up to
            twice as much.
        amplified
            Count that the cohorts are random and stay secret, if theory covers it: independent
            coins under ``"zero-out"``, uniform draws of fixed size under ``"replace-one"``. False,
            and in all other cases: cohorts may be known.
        participations
            The most rounds in which the server draws a client, if it limits them; None: no limit.
            Who can be drawn then depends on past rounds: cohorts count as known.
        """
        owner = self.name
        if self.reads:
            raise DesignError(
                f"{owner}: chooses by {self.reads}, so the choice itself reveals them, and no "
                f"noise on the aggregate covers that. Use a design that needs only sizes."
            )
        noise = checked_number(owner, "noise", noise, above=0)
        checked_choice(owner, "relation", relation, get_args(Relation))
        rounds = checked_whole(owner, "rounds", rounds, least=1)
        accounting = import_extra("dp_accounting", extra="dp", owner=owner)
        gaussian = accounting.GaussianDpEvent(noise if relation == "zero-out" else noise / 2)
        law, times = self.over_rounds(), rounds
        law.largest_weight()
        event = None
        if checked_flag(owner, "amplified", amplified) and participations is None:
            event = law.amplified_event(accounting, gaussian, relation)
        if event is None:
            event, times = gaussian, self.participations(rounds)
        if participations is not None:
            most = checked_whole(owner, "participations", participations, least=1)
            times = min(rounds, most)
        return event if times == 1 else accounting.SelfComposedDpEvent(event, times)

    def amplified_event(self, accounting: Any, gaussian: Any, relation: Relation) -> Any:
        """Return the event of one round whose cohort is secret; None if theory has none.

        Called by ``privacy_event``; ``accounting`` is the module ``dp_accounting``.
        """
        return None

    def size_deviation(self) -> float:
        """Return the standard deviation of the number of draws: 0, since most designs fix it."""
        return 0.0

    @abstractmethod
    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.integer] | csr_array:
        """Draw ``rounds`` cohorts. Called by ``draw`` and ``draw_many``.

        Returns
        -------
        The drawn clients, shape (rounds, draws). If the number of draws varies, their counts:
        sparse integers of shape (rounds, n_clients) with sorted indices.
        """

    def covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], shape (n_clients, n_clients). Called by ``weight_covariance``.

        Every design defines it, except those whose ``exact_moments`` is False.
        """
        raise DesignError(
            f"{self.name}: has no covariance. Define it, or say exact_moments = False."
        )

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        """Return the expected squared distance of the aggregate from its own mean.

        The default computes it from the covariance. Override it where a shorter formula exists.
        """
        moves = self.weight_covariance() @ updates
        return float(np.einsum("ij,ij->", updates, moves, dtype=np.float64))

    def _require_formula(self, what: str, instead: str) -> None:
        if not self.exact_moments:
            raise DesignError(f"{self.name}: has no formula for {what}. Use {instead}.")

    def weigh(self, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        """Make the cohort of the drawn clients. By default each draw weighs 1/m."""
        return Cohort.of_shares(clients, counts, self.cohort_size)


def checked_population(owner: str, population: Population) -> Population:
    """Validate a population; sizes alone are not one."""
    way_out = "Pass Population(sizes)."
    return checked_kind(owner, "population", population, Population, way_out=way_out)


def drawable_clients(design: Design) -> NDArray[np.int64]:
    """Return the clients of positive size; raise if the cohort needs more clients than that."""
    checked_kind("drawable_clients", "design", design, Design, way_out="Build one.")  # type: ignore[type-abstract]
    clients = np.flatnonzero(design.population.sizes)
    if design.cohort_size > len(clients):
        raise DesignError(
            f"{design.name}: draws without replacement, so cohort_size must be at most the "
            f"{len(clients)} clients of positive size; got {design.cohort_size}. "
            f"Lower it, or use MultinomialDesign or SizeClusteredDesign."
        )
    return clients


def count_matrix(clients: NDArray[np.integer], n_clients: int) -> csr_array:
    """Count the drawn clients of every round; ``clients`` has shape (rounds, draws).

    Examples
    --------
    >>> count_matrix(np.array([[2, 0, 2], [1, 1, 1]]), n_clients=3).toarray().tolist()
    [[1, 0, 2], [0, 3, 0]]
    """
    clients = checked_numbers("count_matrix", "clients", clients, "rounds", "draws", whole=True)
    n_clients = checked_whole("count_matrix", "n_clients", n_clients, least=1)
    rounds, draws = clients.shape
    line = np.sort(clients, axis=1)
    first = np.ones(line.shape, dtype=bool)
    first[:, 1:] = line[:, 1:] != line[:, :-1]
    starts = np.flatnonzero(first)
    counts = np.diff(starts, append=rounds * draws)
    indptr = np.concatenate([[0], np.cumsum(first.sum(axis=1))])
    return csr_array((counts, line.ravel()[starts], indptr), shape=(rounds, n_clients))


class DistinctDesign(Design):
    """The base of designs that draw each client at most once."""

    def inclusion_probability(self) -> NDArray[np.float64]:
        return self.expected_counts()

    def max_count(self) -> NDArray[np.int64]:
        return (self.expected_counts() > 0).astype(np.int64)


class RowDesign(Design):
    r"""Draw one client from each of the m distributions of a ``plan``; each draw weighs 1/m.

    With :math:`r_{k,i}` the chance of client :math:`i` in row :math:`k` (Fraboni et al. 2021,
    Section 3.2 and appendix A):

    .. math::

        \operatorname{Var}[w_i] &= \tfrac1{m^2} \sum_k r_{k,i} (1 - r_{k,i}) \le p_i (1-p_i) / m \\
        P(i \in S) &= 1 - \prod_k (1 - r_{k,i}) \ge 1 - (1 - p_i)^m \\
        B &= \tfrac1{m^2} \sum_k \sum_i r_{k,i} \|\Delta_i - \bar\Delta_k\|^2 \le B_{MD},
            \quad \bar\Delta_k = \sum_i r_{k,i} \Delta_i .

    A plan satisfies Proposition 1. Every row design is therefore unbiased, and never worse than
    multinomial sampling in these three quantities. A subclass sets ``plan`` in its ``__init__``.
    """

    unbiased = True

    #: The m distributions.
    plan: Plan

    def weight_variance(self) -> NDArray[np.float64]:
        units, total = self.plan.units.data, self.plan.total
        return self._by_client((units / total) * ((total - units) / total)) / self.cohort_size**2

    def covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], shape (n_clients, n_clients); negative for clients that share a row."""
        shares = self.plan.probabilities
        covariance: NDArray[np.float64] = -(shares.T @ shares).toarray() / self.cohort_size**2
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def inclusion_probability(self) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):  # log 0: a client that fills a row is always drawn
            misses = np.log1p(-self.plan.units.data / self.plan.total)
        return 0.0 - np.expm1(self._by_client(misses))

    def max_count(self) -> NDArray[np.int64]:
        """Return the largest possible count of each client: the number of its rows."""
        return np.bincount(self.plan.units.indices, minlength=self.population.n_clients)

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        return self.plan.draw_clients(rounds, rng)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        units, total = self.plan.units, self.plan.total
        # A row with one client has no variance.
        shared = np.flatnonzero(np.diff(units.indptr) > 1)
        rows = zip(units.indptr[shared], units.indptr[shared + 1], strict=True)
        spreads = (
            spread(units.data[start:end] / total, updates[units.indices[start:end]])
            for start, end in rows
        )
        return math.fsum(spreads) / self.cohort_size**2

    def _by_client(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum the values of the plan's entries by client, shape (n_clients,)."""
        n = self.population.n_clients
        return np.asarray(np.bincount(self.plan.units.indices, values, n), dtype=np.float64)


class RoundedDesign(Design):
    r"""Draw every client as often as the floor or the ceiling of its expected count.

    A client with :math:`m n_i \ge M` is always drawn :math:`\lfloor m n_i / M \rfloor` times. Its
    remaining :math:`u_i = m n_i \bmod M` units are the chance, times M, of one more draw:
    :math:`\operatorname{Var}[w_i] = f_i (1 - f_i) / m^2` with :math:`f_i = u_i / M`, the smallest
    possible for integer counts. A subclass selects the clients that are drawn once more.
    """

    unbiased = True

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        self._certain, self._units = np.divmod(
            self.cohort_size * population.sizes, population.total
        )

    def weight_variance(self) -> NDArray[np.float64]:
        total = self.population.total
        return self._units / total * ((total - self._units) / total) / self.cohort_size**2

    def inclusion_probability(self) -> NDArray[np.float64]:
        return np.where(self._certain > 0, 1.0, self._units / self.population.total)

    def max_count(self) -> NDArray[np.int64]:
        """Return the largest possible count of each client: its expectation, rounded up."""
        return self._certain + (self._units > 0)

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        certain = np.repeat(np.arange(self.population.n_clients), self._certain)
        always = np.broadcast_to(certain, (rounds, len(certain)))
        return np.concatenate([always, self._selected(rng, rounds)], axis=1)

    @abstractmethod
    def _selected(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        """Select the clients that are drawn once more, shape (rounds, sum of the units / M)."""
