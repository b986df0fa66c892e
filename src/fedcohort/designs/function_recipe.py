"""Recipes made from a function: the short way to write your own design."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, make_dataclass
from functools import cached_property, partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar, final, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import (
    Rng,
    TextNeed,
    as_array,
    brief,
    checked_flag,
    checked_rng,
    checked_rounds,
)
from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design
from fedcohort.designs.recipe import Knowledge, Recipe, check_signals
from fedcohort.errors import DesignError
from fedcohort.population import Population

#: A function that chooses clients, or clients and their weights.
Choice = Callable[..., Any]
#: The number of cohorts that moments are estimated from.
ESTIMATE_ROUNDS = 1000
NAME = TextNeed(least=1, most=500, way_out="Name the function, or leave it out.")


@final
class FunctionDesign(Design):
    """Let a function choose the clients of every cohort.

    Only draws reveal the law. All moments are estimated from 1,000 cohorts, drawn with a fixed
    seed when a moment is first read. ``exact_counts``, ``exact_weights`` and
    ``exact_moments`` are False.

    Parameters
    ----------
    name
        For messages.
    choose
        Returns the clients of one cohort, or clients and weights, given a generator.
    unbiased
        Whether the function's author claims E[w] = p.
    """

    exact_moments = False
    exact_counts = False
    exact_weights = False
    estimate_cohorts = ESTIMATE_ROUNDS
    lasts = False

    def __init__(
        self,
        name: str,
        choose: Callable[[np.random.Generator], Any],
        population: Population,
        cohort_size: int,
        *,
        unbiased: bool = False,
    ) -> None:
        # Messages begin with it, and are one line.
        self._name = " ".join(NAME.checked("FunctionDesign", "name", name).split())
        self._function, self.unbiased = choose, unbiased
        super().__init__(population, cohort_size)

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return self._name

    def draw(self, rng: Rng = None) -> Cohort:
        """Draw one cohort: call the function once."""
        return self._chosen(checked_rng(self.name, rng))

    def draw_weights(self, rounds: int, rng: Rng = None) -> csr_array:
        number, generator = checked_rounds(self.name, rounds), checked_rng(self.name, rng)
        return self._rows([self._chosen(generator) for _ in range(number)], "weights")

    def sample(self, rng: np.random.Generator, rounds: int) -> csr_array:
        """Return the counts of ``rounds`` cohorts."""
        return self._rows([self._chosen(rng) for _ in range(rounds)], "counts")

    def expected_counts(self) -> NDArray[np.float64]:
        """Return the estimated expected count of each client, shape (n_clients,)."""
        return np.asarray(self._observed[0].mean(axis=0))

    def weight_per_draw(self) -> NDArray[np.float64]:
        """Return the estimated weight of one draw of each client, shape (n_clients,)."""
        drawn, weights = self.expected_counts(), np.asarray(self._observed[1].mean(axis=0))
        return np.divide(weights, drawn, out=np.zeros_like(weights), where=drawn > 0)

    def weight_variance(self) -> NDArray[np.float64]:
        """Return the estimate of Var[w], shape (n_clients,)."""
        weights = self._observed[1]
        square = np.asarray(weights.multiply(weights).mean(axis=0))
        off = np.maximum(square - np.asarray(weights.mean(axis=0)) ** 2, 0.0)
        return ESTIMATE_ROUNDS / (ESTIMATE_ROUNDS - 1) * off

    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return the estimated chance of each client to be in the cohort, shape (n_clients,)."""
        counts = self._observed[0]
        return np.bincount(counts.indices, minlength=counts.shape[1]) / ESTIMATE_ROUNDS

    def max_count(self) -> NDArray[np.int64]:
        """Return the largest observed count of each client, shape (n_clients,)."""
        return self._observed[0].max(axis=0).toarray().ravel().astype(np.int64)

    def size_deviation(self) -> float:
        """Return the observed standard deviation of the number of draws."""
        return float(self._observed[0].sum(axis=1).std(ddof=1))

    @cached_property
    def _observed(self) -> tuple[csr_array, csr_array]:
        """The counts and weights of the cohorts that moments are estimated from."""
        rng = np.random.default_rng(0)
        cohorts = [self._chosen(rng) for _ in range(ESTIMATE_ROUNDS)]
        return self._rows(cohorts, "counts"), self._rows(cohorts, "weights")

    def _rows(self, cohorts: list[Cohort], what: str) -> csr_array:
        """Collect one number per drawn client into a matrix with a row per cohort."""
        n, dtype = self.population.n_clients, np.int64 if what == "counts" else np.float64
        values = np.concatenate([np.zeros(0), *(getattr(cohort, what) for cohort in cohorts)])
        clients = np.concatenate([np.zeros(0, int), *(cohort.clients for cohort in cohorts)])
        ends = np.cumsum([0, *(len(cohort) for cohort in cohorts)])
        return csr_array((values.astype(dtype), clients, ends), shape=(len(cohorts), n))

    def _chosen(self, rng: np.random.Generator) -> Cohort:
        """Call the function, and check what it returns."""
        found = self._function(rng)
        given, weights = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        clients = self._positions(given)
        if weights is None:
            drawn, counts = np.unique(clients, return_counts=True)
            return Cohort.of_shares(drawn, counts, len(clients)) if len(clients) else Cohort.empty()
        order = np.argsort(clients)
        own = self._weights(weights, clients)[order]
        return Cohort.of_weights(clients[order], np.ones(len(clients), dtype=np.int64), own)

    def _positions(self, given: object) -> NDArray[np.int64]:
        """Validate positions of clients with samples."""
        n, clients = self.population.n_clients, as_array(given)
        is_whole = clients.ndim == 1 and (clients.dtype.kind in "iu" or clients.size == 0)
        if not is_whole or (clients.size and not 0 <= clients.min() <= clients.max() < n):
            raise DesignError(
                f"{self.name}: must return positions of clients, from 0 to {n - 1}; got "
                f"{brief(given)}. Return a list or an array of integers."
            )
        positions = clients.astype(np.int64)
        empty = positions[self.population.sizes[positions] == 0]
        if len(empty):
            raise DesignError(
                f"{self.name}: must return clients with samples; client {empty[0]} has none, or is "
                f"away. Choose among np.flatnonzero(population.sizes)."
            )
        return positions

    def _weights(self, given: object, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Validate weights: one finite number per client, and no client twice."""
        try:
            weights = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            weights = np.empty((0, 0))
        fits = weights.shape == clients.shape == np.unique(clients).shape
        if not fits or not np.isfinite(weights).all():
            raise DesignError(
                f"{self.name}: must return a finite weight for each of the chosen clients, each "
                f"client once; got clients {brief(clients.tolist())} and weights {brief(given)}. "
                f"Return clients alone to average them."
            )
        return weights


class FunctionRecipe(Recipe):
    """A recipe that :func:`recipe` made from a function."""

    #: The function.
    function: ClassVar[Choice]
    #: Whether the function's author claims E[w] = p.
    unbiased: ClassVar[bool] = False

    if TYPE_CHECKING:  # the function's own parameters

        def __init__(self, cohort_size: int, **settings: Any) -> None: ...

    def design(self, population: Population, known: Knowledge) -> FunctionDesign:
        """Make the design whose cohorts the function chooses."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        own.pop("cohort_size")
        function = type(self).function
        return FunctionDesign(
            type(self).__name__,
            lambda rng: function(population, known, rng, **own),
            population,
            self.cohort_size,
            unbiased=type(self).unbiased,
        )


@overload
def recipe(function: Choice, /) -> type[FunctionRecipe]: ...
@overload
def recipe(
    *,
    name: str | None = ...,
    unbiased: bool = ...,
    learns: bool = ...,
    signals: tuple[str, ...] = ...,
    grouped: bool = ...,
) -> Callable[[Choice], type[FunctionRecipe]]: ...
def recipe(
    function: Choice | None = None,
    /,
    *,
    name: str | None = None,
    unbiased: bool = False,
    learns: bool = False,
    signals: tuple[str, ...] = (),
    grouped: bool = False,
) -> type[FunctionRecipe] | Callable[[Choice], type[FunctionRecipe]]:
    """Make a recipe from a function that chooses the clients of one cohort.

    The function takes ``(population, known, rng)``: the :class:`~fedcohort.Population`, what the
    server knows (:class:`~fedcohort.designs.Knowledge`: ``known.cohort_size``, ``known.round_``,
    and the memory and signals that are declared here), and a numpy Generator. It returns the
    positions of clients, or a pair of clients and aggregation weights. Without weights the clients
    are averaged; a client that appears twice has twice the weight. Further parameters with defaults
    become the recipe's settings.

    The design's moments are estimated from draws. Write a :class:`~fedcohort.Design` for exact
    moments.

    Parameters
    ----------
    function
        Chooses clients.
    name
        The name in tables and files; the function's by default.
    unbiased
        Whether E[w] = p. :func:`fedcohort.testing.check_design` tests the claim.
    learns
        Whether the function reads ``known.memory``.
    signals
        Which of ``known.signals`` it reads.
    grouped
        Whether it needs the population's groups.

    Returns
    -------
    A recipe class: ``largest(10)`` is a recipe of ten draws.

    Examples
    --------
    >>> from fedcohort import Selector
    >>> @recipe
    ... def largest(population, known, rng):
    ...     return np.argsort(population.sizes)[-known.cohort_size :]
    >>> Selector(largest(2), {"Nice": 5, "Lyon": 3, "Brest": 2}).draw().ids
    ['Lyon', 'Nice']
    """
    flags = {"unbiased": unbiased, "learns": learns, "grouped": grouped}
    for key, value in flags.items():
        checked_flag("recipe", key, value)
    if not isinstance(signals, (tuple, list)) or not all(isinstance(s, str) for s in signals):
        raise DesignError(
            f"recipe: signals must be a tuple of names; got {brief(signals)}. Pass for example "
            f"('loss',)."
        )
    if name is not None:
        NAME.checked("recipe", "name", name)
    declared = {"name": name, "signals": tuple(signals), **flags}
    return partial(_made, declared) if function is None else _made(declared, function)


def _made(declared: Mapping[str, Any], function: Choice) -> type[FunctionRecipe]:
    """Make the recipe's class; ``declared`` are its class variables, a name of None included."""
    title = getattr(function, "__name__", "")
    check_signals(title, declared["signals"])
    settings = _settings(title, function)
    made = make_dataclass(
        title,
        [(each.name, Any, field(default=each.default)) for each in settings],
        bases=(FunctionRecipe,),
        namespace={
            **declared,
            "name": declared["name"] or title.replace("_", "-"),
            "function": staticmethod(function),
            "__doc__": function.__doc__,
            "__qualname__": function.__qualname__,
        },
        frozen=True,
        repr=False,
    )
    made.__module__ = function.__module__
    return made


def _settings(title: str, function: Choice) -> list[Parameter]:
    """Return the parameters that become settings; raise if the signature does not fit."""
    try:
        parameters = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    first, rest = parameters[:3], parameters[3:]
    fits = title.isidentifier() and len(first) == 3 and all(p.kind in positional for p in first)
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    if not fits or any(p.kind not in named or p.default is Parameter.empty for p in rest):
        raise DesignError(
            f"recipe: needs a function (population, known, rng), whose further parameters have "
            f"defaults; got {brief(function)}. Define it with def."
        )
    for each in rest:
        if each.name in ("name", "cohort_size") or hasattr(FunctionRecipe, each.name):
            raise DesignError(
                f"recipe: {title} must not call a setting {each.name!r}, which every recipe has. "
                f"Read known.cohort_size for the number of draws; rename any other."
            )
        if type(each.default).__hash__ is None:
            raise DesignError(
                f"recipe: {title}'s setting {each.name!r} must have a default that cannot change; "
                f"got {brief(each.default)}. Use a tuple instead of a list."
            )
    return rest
