"""Recipes: a recipe holds a design's settings and rebuilds the design when something changes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import (
    Rng,
    brief,
    checked_cohort_size,
    checked_flag,
    checked_rng,
    checked_whole,
)
from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design, checked_population
from fedcohort.designs.signals import (
    ASKED,
    Request,
    SignalName,
    Signals,
    collected,
)
from fedcohort.errors import DesignError, FedcohortError
from fedcohort.memory import Difference, EstimatorName, estimator_of
from fedcohort.population import Population


class HasUpdates(Protocol):
    """The part of the server's memory that a recipe reads.

    A memory may also have ``products()``, all inner products of its updates. Designs then do not
    compute them again.
    """

    @property
    def updates(self) -> NDArray[np.floating]:
        """The last update of every client, zero before the first; shape (n_clients, dimension)."""


@dataclass(frozen=True, slots=True, eq=False)
class GivenUpdates:
    """A memory that holds these updates, shape (n_clients, dimension)."""

    updates: NDArray[np.floating]


@final
class Knowledge:
    """The server's knowledge when it builds a round's design.

    A recipe may read only what it declares: the memory with ``learns``, a signal by its name in
    ``signals``. Reading anything else is an error. ``round_`` needs no declaration; a design
    built from it is valid for that round only, and is rebuilt in the next.

    Attributes
    ----------
    rng
        Breaks ties. Cohorts are drawn with another generator.
    round_was_read
        Whether the recipe has read ``round_``.
    """

    def __init__(
        self,
        recipe: "Recipe",
        *,
        memory: HasUpdates | None,
        signals: Signals | None,
        round_: int,
        rng: np.random.Generator,
    ) -> None:
        self._recipe, self._memory, self._round = recipe, memory, round_
        self._signals = None if signals is None else _DeclaredSignals(recipe, signals)
        self.rng, self.round_was_read = rng, False

    @property
    def cohort_size(self) -> int:
        """The number of draws that the recipe asks for."""
        return self._recipe.cohort_size

    @property
    def memory(self) -> HasUpdates | None:
        """The clients' last updates; None if there are none yet."""
        if not self._recipe.learns:
            raise DesignError(
                f"{type(self._recipe).__name__}: reads the memory, which it does not declare. "
                f"Say learns: ClassVar[bool] = True, or @recipe(learns=True)."
            )
        return self._memory

    @property
    def signals(self) -> Signals | None:
        """The other known facts about the clients, by name; None if there are none."""
        return self._signals

    def signal(self, name: SignalName) -> NDArray[np.floating]:
        """Return a signal; raise if it was not collected."""
        return collected(type(self._recipe).__name__, self._signals, name)

    @property
    def round_(self) -> int:
        """The round, from 0."""
        self.round_was_read = True
        return self._round


class _DeclaredSignals(Mapping[str, NDArray[np.floating]]):
    """The signals that a recipe declares; reading another one is an error."""

    def __init__(self, recipe: "Recipe", signals: Signals) -> None:
        self._recipe = recipe
        self._known = {name: signals[name] for name in recipe.signals if name in signals}

    def __getitem__(self, name: str) -> NDArray[np.floating]:
        if name not in self._recipe.signals:
            raise DesignError(
                f"{type(self._recipe).__name__}: reads the signal {name!r}, which it does not "
                f"declare. Add it to signals: ClassVar[tuple[str, ...]], or "
                f"@recipe(signals=({name!r},))."
            )
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(frozen=True, repr=False)
class Recipe(ABC):
    """The settings of a design, for experiment files, the command line and server loops.

    A recipe is a frozen dataclass. Every setting has a default and is checked when the recipe is
    made. Whatever changes between rounds is an argument of ``build``. A new recipe defines
    ``name`` and :meth:`design`, and may add checks of its settings in :meth:`check`.
    :func:`fedcohort.recipe` makes a recipe from a function.
    """

    #: The name in files and on the command line.
    name: ClassVar[str]
    #: Whether the design depends on the memory. If so, it is rebuilt in every round.
    learns: ClassVar[bool] = False
    #: The facts about clients that the design needs besides the memory. If not empty, the design
    #: is rebuilt in every round. :mod:`fedcohort.designs.signals` lists the signals that clients
    #: send. Any other name is the recipe's own array, which :meth:`observe` fills.
    signals: ClassVar[tuple[str, ...]] = ()
    #: Whether the design draws by the population's groups. A population without groups is refused.
    grouped: ClassVar[bool] = False
    #: Over-selection: whether every asked client gets the model and trains, and the answers of
    #: clients that are not drawn are discarded.
    overselects: ClassVar[bool] = False
    #: Whether it is unbiased only with the plain aggregate, not with the difference estimator.
    plain_only: ClassVar[bool] = False

    cohort_size: int

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if type(self).ask is Recipe.ask:
            check_one_asked(owner, self.signals)
        size = checked_cohort_size(owner, self.cohort_size)
        object.__setattr__(self, "cohort_size", size)
        for field in fields(self):
            value = _as_default(owner, field.name, getattr(self, field.name), field.default)
            object.__setattr__(self, field.name, value)
        self.check()

    def __repr__(self) -> str:
        """Return ``Name(cohort_size=10)`` with the settings that differ from their defaults."""
        own = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        shown = ", ".join(f"{name}={value!r}" for name, value, default in own if value != default)
        return f"{type(self).__name__}({shown})"

    def check(self) -> None:  # noqa: B027 - most recipes have nothing further to check
        """Raise :class:`~fedcohort.errors.DesignError` if a setting is invalid.

        Types are checked before this: a setting has the type of its default.
        """

    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request | None:
        """Return which clients to ask for which signal before the design is built; None for none.

        The default asks all clients with samples for the signal that the recipe declares.
        """
        asked = [name for name in ASKED if name in self.signals]
        if not asked:
            return None
        return Request(asked[0], np.flatnonzero(population.sizes))

    def build(
        self,
        population: Population,
        *,
        memory: HasUpdates | None = None,
        signals: Signals | None = None,
        round_: int = 0,
        rng: Rng = None,
    ) -> Design:
        """Build the design of a round over ``population``; raise :class:`DesignError` if it cannot.

        Parameters
        ----------
        memory
            The clients' last updates, for recipes that learn. None means that all are zero.
        signals
            Other facts about the clients, by name: one number per client each.
        round_
            The round, from 0.
        rng
            Breaks ties: an integer, a generator, or None for a random one.
        """
        owner = type(self).__name__
        checked_population(owner, population)
        checked_whole(owner, "round_", round_, way_out="Count rounds from 0.")
        generator = checked_rng(owner, rng)
        if memory is not None and not hasattr(memory, "updates"):
            raise DesignError(
                f"{owner}: memory must be an UpdateMemory or None; got {brief(memory)}. Pass one "
                f"with the clients' last updates."
            )
        if signals is not None and not isinstance(signals, Mapping):
            raise DesignError(
                f"{owner}: signals must be one number per client by the signal's name; got "
                f"{brief(signals)}. Pass for example {{'loss': losses}}."
            )
        known = Knowledge(self, memory=memory, signals=signals, round_=round_, rng=generator)
        return self.build_from(population, known)

    def build_from(self, population: Population, known: Knowledge) -> Design:
        """Build the design, and check that it covers the clients of ``population``."""
        if self.grouped and population.groups is None:
            raise DesignError(
                f"{type(self).__name__}: needs the group of every client; this population has "
                f"none. Pass groups= to Population or Selector, or add a column group to the file."
            )
        design = self.design(population, known)
        if not isinstance(design, Design) or design.population.n_clients != population.n_clients:
            found = type(design).__name__
            if isinstance(design, Design):
                found += f" over {design.population.n_clients} clients"
            raise DesignError(
                f"{type(self).__name__}: design must return a Design over the "
                f"{population.n_clients} clients of its population; got {found}."
            )
        return design

    def observe(  # noqa: B027 - most recipes take no notes
        self,
        state: Mapping[str, NDArray[np.float64]],
        cohort: Cohort,
        norms: NDArray[np.float64],
    ) -> None:
        """Update the recipe's own arrays at the end of a round. The default does nothing.

        Parameters
        ----------
        state
            The recipe's own arrays by their names in ``signals``, shape (n_clients,) each, NaN at
            first. Change them in place: ``build`` reads them as signals. The selector saves them
            and rearranges them when clients join or leave.
        cohort
            The clients that answered, with their final weights.
        norms
            The norm of the update of each of these clients.
        """

    def waits(self, durations: NDArray[np.float64], cohort: Cohort) -> float:
        """Return how many seconds the server waits for answers after the draw.

        ``durations`` has the seconds that each client takes to answer, shape (n_clients,). By
        default the server waits for the slowest drawn client.
        """
        return float(durations[cohort.clients].max(initial=0.0))

    @abstractmethod
    def design(self, population: Population, known: Knowledge) -> Design:
        """Make the design from what is known. Called by ``build``."""


def check_one_asked(owner: str, signals: Sequence[str]) -> None:
    """Refuse more than one signal to ask clients for: a :class:`Request` has one."""
    asked = [name for name in ASKED if name in signals]
    if len(asked) > 1:
        raise DesignError(
            f"{owner}: a recipe may ask clients for one signal; got {' and '.join(asked)}. "
            f"Declare one, or use past_{asked[-1]}."
        )


def _as_default(owner: str, name: str, value: object, default: object) -> object:
    """Validate that a setting has the type of its default; any number may replace a float."""
    kind = type(default)
    if kind is bool:
        return checked_flag(owner, name, value)
    if kind is int:
        return checked_whole(owner, name, value, least=None)
    if kind not in (str, float):
        return value
    word, needed = ("string", str) if kind is str else ("number", Real)
    if not isinstance(value, needed) or isinstance(value, bool) or value != value:
        raise DesignError(
            f"{owner}: {name} must be a {word}, such as {default!r}; got {brief(value)}."
        )
    try:
        return kind(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def estimator_for(
    owner: str,
    recipe: Recipe,
    estimator: EstimatorName | Difference,
    *,
    error: type[FedcohortError] = DesignError,
) -> Difference | None:
    """Return the estimator's settings, None for the plain one; raise if it would be biased."""
    settings = estimator_of(owner, estimator, error=error)
    if settings is not None and recipe.plain_only:
        raise error(
            f"{owner}: {recipe.name} is biased with the difference estimator, because it never "
            f"draws clients with a zero update; got {estimator!r}. Pass estimator='plain', or "
            f"choose another design."
        )
    return settings


def known_updates(population: Population, known: Knowledge) -> NDArray[np.floating]:
    """Return the clients' last updates; zeros without a memory."""
    memory = known.memory
    return np.zeros((population.n_clients, 1)) if memory is None else memory.updates
