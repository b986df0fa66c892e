"""Diagnostics of a design.

Functions named ``estimated_*`` draw cohorts; all others are exact, unless the design itself has no
formula (``exact_weights`` and ``exact_moments`` say so).
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import (
    Rng,
    brief,
    checked_choice,
    checked_kind,
    checked_number,
    checked_numbers,
    checked_rng,
    checked_rounds,
    checked_whole,
    suggest_names,
)
from fedcohort._display import short_repr
from fedcohort._lazy import import_extra
from fedcohort.designs.base import Design, Relation, checked_population
from fedcohort.designs.recipe import Recipe
from fedcohort.designs.signals import Signals
from fedcohort.errors import DesignError
from fedcohort.memory import UpdateMemory
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.selector.long_run import exact_mean_weights
from fedcohort.similarity.measures import BLOCK_ENTRIES, checked_updates

__all__ = [
    "Estimate",
    "Estimates",
    "Summary",
    "aggregate_variance",
    "bias",
    "epsilon",
    "estimated_aggregate_variance",
    "estimated_bias",
    "expected_distinct",
    "inclusion_probability",
    "max_count",
    "participation_bias",
    "summary",
    "weight_covariance",
    "weight_variance",
]


def __dir__() -> list[str]:
    return __all__


def _checked(design: object) -> Design:
    """Validate a built design; a recipe is not one."""
    way_out = "Pass what recipe.build(population) gave."
    return checked_kind("diagnostics", "design", design, Design, way_out=way_out)  # type: ignore[type-abstract]


def bias(design: Design) -> NDArray[np.float64]:
    """Return E[w] - p, shape (n_clients,); exactly 0 for a design that claims to be unbiased.

    Examples
    --------
    >>> from fedcohort import Population, Uniform
    >>> bias(Uniform(1).build(Population([6, 2]))).tolist()
    [-0.375, -0.125]
    """
    return _checked(design).bias()


def weight_variance(design: Design) -> NDArray[np.float64]:
    """Return Var[w], shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> weight_variance(Multinomial(3).build(Population([6, 2]))).tolist()
    [0.0625, 0.0625]
    """
    return _checked(design).weight_variance()


def weight_covariance(design: Design) -> NDArray[np.float64]:
    """Return Cov[w], shape (n_clients, n_clients); for small populations.

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> weight_covariance(Multinomial(3).build(Population([6, 2]))).tolist()
    [[0.0625, -0.0625], [-0.0625, 0.0625]]
    """
    return _checked(design).weight_covariance()


def epsilon(event: Any, delta: float, relation: Relation = "zero-out") -> float:
    """Return the smallest epsilon that dp-accounting certifies for an event, at ``delta``.

    Parameters
    ----------
    event
        What :meth:`fedcohort.Design.privacy_event` gave.
    delta
        The probability that the guarantee leaves out.
    relation
        The neighbouring federations, as for ``privacy_event``. An epsilon holds for its own
        relation only. Repeated Gaussian noise is computed exactly, coins by the distribution of
        the privacy loss (PLD), and draws of fixed size by Renyi divergences (RDP).

    Examples
    --------
    >>> from fedcohort import Poisson, Population
    >>> design = Poisson(10).build(Population([5] * 1000))
    >>> known = design.privacy_event(noise=1.0, rounds=600, amplified=False)
    >>> secret = design.privacy_event(noise=1.0, rounds=600)
    >>> round(epsilon(known, delta=5e-4), 1), round(epsilon(secret, delta=5e-4), 2)
    (379.7, 0.97)
    """
    dp = import_extra("dp_accounting", extra="dp", owner="epsilon")
    delta = checked_number("epsilon", "delta", delta, above=0, below=1)
    checked_choice("epsilon", "relation", relation, get_args(Relation))
    checked_kind("epsilon", "event", event, dp.DpEvent, way_out="Pass what privacy_event gave.")
    times, once = 1, event
    while isinstance(once, dp.SelfComposedDpEvent):
        times, once = times * once.count, once.event
    if isinstance(once, dp.GaussianDpEvent):
        return float(dp.get_epsilon_gaussian(once.noise_multiplier / math.sqrt(times), delta))
    neighbours = dp.NeighboringRelation
    if relation == "zero-out":
        accountant = dp.pld.PLDAccountant(neighbours.REPLACE_SPECIAL)
    else:
        accountant = dp.rdp.RdpAccountant(neighboring_relation=neighbours.REPLACE_ONE)
    if not accountant.supports(event):
        raise DesignError(
            f"epsilon: relation {relation!r} does not fit {brief(event)}. Pass the relation that "
            f"privacy_event was called with."
        )
    return float(accountant.compose(event).get_epsilon(delta))


def inclusion_probability(design: Design) -> NDArray[np.float64]:
    """Return the chance of each client to be in the cohort, shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> inclusion_probability(Multinomial(2).build(Population([6, 2]))).round(6).tolist()
    [0.9375, 0.4375]
    """
    return _checked(design).inclusion_probability()


def max_count(design: Design) -> NDArray[np.int64]:
    """Return how often each client can be drawn at most in one round, shape (n_clients,).

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> max_count(Multinomial(2).build(Population([6, 0]))).tolist()
    [2, 0]
    """
    return _checked(design).max_count()


def expected_distinct(design: Design) -> float:
    """Return how many different clients a cohort has on average.

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> expected_distinct(Multinomial(2).build(Population([6, 2])))
    1.375
    """
    return float(_checked(design).inclusion_probability().sum())


@dataclass(frozen=True, slots=True)
class Summary:
    """The effects of a design on its clients; estimated if its ``exact_weights`` is False.

    Attributes
    ----------
    unbiased
        What the design claims.
    bias
        The sum over the clients of ``|E[w] - p|``: the share of the weight that is misplaced.
    weight_variance
        The sum over the clients of Var[w].
    smallest_inclusion
        The smallest chance of a client of positive size to be in the cohort.
    mean_inclusion
        The importance-weighted mean chance to be in the cohort.
    expected_distinct
        How many different clients a cohort has on average.
    size_deviation
        The standard deviation of the number of draws; 0 if it is fixed.
    max_count
        How often one client can be drawn at most.
    """

    unbiased: bool
    bias: float
    weight_variance: float
    smallest_inclusion: float
    mean_inclusion: float
    expected_distinct: float
    size_deviation: float
    max_count: int

    def __repr__(self) -> str:
        parts = asdict(self)
        if not self.size_deviation:
            parts.pop("size_deviation")
        return short_repr(self, **parts)


def summary(design: Design) -> Summary:
    """Put a design's diagnostics together.

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> summary(Multinomial(2).build(Population([6, 2]))).expected_distinct
    1.375
    """
    inclusion = _checked(design).inclusion_probability()
    return Summary(
        unbiased=design.unbiased,
        bias=float(np.abs(design.bias()).sum()),
        weight_variance=float(design.weight_variance().sum()),
        smallest_inclusion=float(inclusion[design.population.sizes > 0].min()),
        mean_inclusion=float(design.population.importance @ inclusion),
        expected_distinct=float(inclusion.sum()),
        size_deviation=design.size_deviation(),
        max_count=int(design.max_count().max()),
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over draws, and its standard error."""

    value: float
    standard_error: float

    def __repr__(self) -> str:
        return short_repr(self, value=self.value, standard_error=self.standard_error)


def aggregate_variance(design: Design, updates: ArrayLike) -> float:
    r"""Return :math:`E\|\sum_i w_i \Delta_i - \sum_i p_i \Delta_i\|^2`, squared bias included.

    For row designs this is B of Fraboni et al. (2021), appendix A. ``updates`` has shape
    (n_clients, dimension). A design without ``exact_moments`` raises
    :class:`~fedcohort.errors.DesignError`: use :func:`estimated_aggregate_variance`.

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> aggregate_variance(Multinomial(3).build(Population([6, 2])), [[1.0], [5.0]])
    1.0
    """
    return _checked(design).aggregate_variance(updates)


def estimated_aggregate_variance(
    design: Design, updates: ArrayLike, *, rng: Rng = None, rounds: int
) -> Estimate:
    r"""Measure :math:`E\|\sum_i w_i \Delta_i - \sum_i p_i \Delta_i\|^2` on drawn cohorts.

    For every design, with or without a formula; squared bias included. ``updates`` has shape
    (n_clients, dimension), ``rounds`` cohorts are drawn, at least 2.

    Examples
    --------
    >>> from fedcohort import Multinomial, Population
    >>> design = Multinomial(3).build(Population([6, 2]))
    >>> estimate = estimated_aggregate_variance(design, [[1.0], [5.0]], rng=0, rounds=10_000)
    >>> abs(estimate.value - 1.0) < 4 * estimate.standard_error < 0.1
    True
    """
    owner = "estimated_aggregate_variance"
    n_clients = _checked(design).population.n_clients
    deltas = checked_updates(owner, updates, n_clients).astype(np.float64)
    rng, rounds = checked_rng(owner, rng), _checked_rounds(owner, rounds)
    mean = design.population.importance @ deltas
    squares = np.empty(rounds)
    step = max(1, BLOCK_ENTRIES // deltas.shape[1])
    for start in range(0, rounds, step):
        off = design.draw_weights(min(step, rounds - start), rng) @ deltas - mean
        squares[start : start + step] = np.einsum("ij,ij->i", off, off)
    # In this unit the squares of squares neither overflow nor vanish.
    unit = float(squares.max()) or 1.0
    scaled = squares / unit
    error = float(scaled.std(ddof=1)) / math.sqrt(rounds)
    return Estimate(unit * float(scaled.mean()), unit * error)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """An :class:`Estimate` for every client: arrays of shape (n_clients,)."""

    values: NDArray[np.float64]
    standard_errors: NDArray[np.float64]

    def __repr__(self) -> str:
        k = int(np.abs(self.values).argmax())
        largest = Estimate(float(self.values[k]), float(self.standard_errors[k]))
        return short_repr(self, n_clients=len(self.values), largest=largest)


def estimated_bias(
    recipe: Recipe,
    population: Population,
    *,
    signals: Signals | None = None,
    memory: UpdateMemory | None = None,
    rng: Rng = None,
    rounds: int,
) -> Estimates:
    """Measure E[w] - p of a recipe: its candidates, its ties and its draws.

    A built design knows its own bias (:func:`bias`). But many recipes choose at random *before*
    they build a design: that of power-of-choice, for example, has one possible cohort. Here a
    selector asks, builds and draws in rounds 0, 1, ... while signals and memory stay the same. The
    standard errors assume independent rounds.

    Parameters
    ----------
    signals
        What every client would answer, by name, shape (n_clients,) each; and the past signals.
    memory
        The clients' last updates, for recipes that learn.
    rounds
        How many cohorts to draw, at least 2.

    Examples
    --------
    >>> from fedcohort import Population, PowerOfChoice
    >>> losses = np.array([1.0, 3.0, 2.0])
    >>> population, recipe = Population([1, 1, 1]), PowerOfChoice(1, candidates=2)
    >>> found = estimated_bias(recipe, population, signals={"loss": losses}, rng=0, rounds=1000)
    >>> exact = np.array([0, 2 / 3, 1 / 3]) - 1 / 3
    >>> bool((abs(found.values - exact) <= 4 * found.standard_errors).all())
    True
    """
    owner = "estimated_bias"
    rng, rounds = checked_rng(owner, rng), _checked_rounds(owner, rounds)
    n, importance = checked_population(owner, population).n_clients, population.importance
    # By position: a selector orders clients by id, and signals have the population's order.
    numbered = Population.of_checked(population.sizes, range(n), population.groups)
    selector = Selector(recipe, numbered, seed=rng)
    if memory is not None:
        selector.memory = memory
    mean, squares = np.zeros(n), np.zeros(n)
    for round_ in range(rounds):
        cohort = selector.draw(signals=signals)
        selector.skip()
        off = -importance
        off[cohort.clients] += cohort.weights
        # Welford's running moments: no difference of large sums.
        step = off - mean
        mean += step / (round_ + 1)
        squares += step * (off - mean)
    return Estimates(mean, np.sqrt(squares / (rounds - 1)) / math.sqrt(rounds))


def participation_bias(
    selector: Selector,
    *,
    rounds: int,
    chances: ArrayLike | None = None,
    rng: Rng = None,
    runs: int = 200,
) -> Estimates:
    """Return E[w] - p of every member, averaged over the first rounds of a federation.

    That is what the rules of a selector (``max_participations``, ``min_separation``) and absent
    clients cost, with its ``presence`` and bounds. Every client answers when it is asked, but sends
    no update: a recipe that learns is as it is before the first. With few
    clients and rounds, and multinomial, Poisson, uniform or row designs, it is exact: all
    histories are enumerated. The standard errors are then 0. Otherwise runs are simulated.

    Parameters
    ----------
    selector
        Says how clients are drawn; it is not changed.
    rounds
        The rounds, from the first.
    chances
        The chance of each client of ``selector.population`` to be there, independently in every
        round; by default the selector's own, or 1. With ``presence="known"`` weights still follow
        the selector's own: so it shows what wrong ones cost.
    rng, runs
        Draws the runs; how many there are, at least 2.

    Examples
    --------
    >>> from fedcohort import Multinomial, Selector
    >>> rested = Selector(Multinomial(1), [6, 2], seed=0, min_separation=2)
    >>> found = participation_bias(rested, rounds=3)  # in turns: the large one first, most often
    >>> found.values.round(4).tolist()
    [-0.1667, 0.1667]
    """
    owner = "participation_bias"
    way_out = "Pass for example Selector(SizeClustered(2), [5, 3, 2])."
    checked_kind(owner, "selector", selector, Selector, way_out=way_out)
    rounds, runs = checked_whole(owner, "rounds", rounds, least=1), _checked_rounds(owner, runs)
    rng, population, settings = checked_rng(owner, rng), selector.population, selector.settings
    if not population.total:
        raise DesignError(f"{owner}: needs a client with samples; got none. Add one to clients.")
    if settings.has_own_weights:
        raise DesignError(
            f"{owner}: needs the weights of the design; those of {settings.estimator!r} are "
            f"others. Pass a selector with another estimator."
        )
    own_chances: dict[Any, float] = selector.chances
    known = np.array([own_chances.get(each, np.nan) for each in population.ids])
    given = np.where(np.isnan(known), 1.0, known) if chances is None else chances
    numbers = checked_numbers(owner, "chances", given, population.n_clients).astype(np.float64)
    if not ((numbers > 0) & (numbers <= 1)).all():
        raise DesignError(
            f"{owner}: chances must be above 0 and at most 1; got {brief(chances)}. Leave clients "
            f"out that never come."
        )
    exact = exact_mean_weights(settings, population, numbers, known, rounds, selector.seed)
    if exact is not None:
        return Estimates(exact - population.importance, np.zeros(population.n_clients))
    means = np.zeros((runs, population.n_clients))
    is_known = settings.presence == "known"
    for run in range(runs):
        own = Selector(
            *(selector.recipe, population),
            seed=rng,
            chances=own_chances if is_known else None,
            **settings.keywords(),
        )
        for _ in range(rounds):
            own.draw(rng.random(population.n_clients) < numbers)
            means[run] += own.expected_weights / rounds
            own.skip(answered=own.asked)
    errors = means.std(axis=0, ddof=1) / math.sqrt(runs)
    return Estimates(means.mean(axis=0) - population.importance, errors)


def _checked_rounds(owner: str, rounds: int) -> int:
    """Validate a number of rounds, at least 2."""
    number = checked_rounds(owner, rounds)
    if number < 2:
        raise DesignError(
            f"{owner}: rounds must be at least 2, for a standard error; got {rounds}. Draw more."
        )
    return number


suggest_names(__name__, __all__)
