"""Recipes: a recipe holds a design's settings and rebuilds the design when something changes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import (
    COHORT_SIZE,
    FlagNeed,
    KindNeed,
    Need,
    NumberNeed,
    Rng,
    TextNeed,
    WholeNeed,
    brief,
    checked_kind,
    checked_rng,
    checked_whole,
    did_you_mean,
    listed,
)
from fedcohort._fields import Record
from fedcohort._updates import Layout
from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design, checked_population
from fedcohort.designs.signals import ASKED, PAST, Request, SignalName, Signals, collected
from fedcohort.errors import AggregationError, DesignError, FedcohortError
from fedcohort.memory import EstimatorName, EstimatorSettings, UpdateMemory, estimator_of
from fedcohort.population import Population


@final
class Knowledge:
    """The server's knowledge when it builds a round's design.

    A recipe may read only what it declares: the memory with ``learns``, a signal by its name in
    ``signals``, an array of its own by its name in ``keeps``. Reading anything else is an error.
    ``round_`` needs no declaration; a design built from it is valid for that round only, and is
    rebuilt in the next.

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
        memory: UpdateMemory | None,
        signals: Signals | None,
        round_: int,
        rng: np.random.Generator,
        kept: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        self._recipe, self._memory, self._round, self._kept = recipe, memory, round_, kept or {}
        self._signals = None if signals is None else _DeclaredSignals(recipe, signals)
        self.rng, self.round_was_read = rng, False

    @property
    def cohort_size(self) -> int:
        """The number of draws that the recipe asks for."""
        return self._recipe.cohort_size

    @property
    def memory(self) -> UpdateMemory | None:
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

    def kept(self, name: str) -> NDArray[np.float64]:
        """Return an array that the recipe keeps itself: a row per client.

        Before the first round that the recipe observes it is NaN, shape (n_clients,). So is the row
        of a client that has joined since.
        """
        if not isinstance(name, str) or name not in self._recipe.keeps:
            raise DesignError(
                f"{type(self._recipe).__name__}: reads its own array {brief(name)}, which it does "
                f"not declare. Add it to keeps: ClassVar[tuple[str, ...]]."
                f"{did_you_mean(name, self._recipe.keeps)}"
            )
        return self._kept[name]

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
        if not isinstance(name, str) or name not in self._recipe.signals:
            shown = brief(name)
            raise DesignError(
                f"{type(self._recipe).__name__}: reads the signal {shown}, which it does not "
                f"declare. Add it to signals: ClassVar[tuple[str, ...]], or "
                f"@recipe(signals=({shown},))."
            )
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@final
@dataclass(frozen=True, slots=True, eq=False)
class ObservedRound:
    """A round that has ended, as :meth:`Recipe.observe` sees it.

    Attributes
    ----------
    round_
        Its number, from 0.
    design, population
        The law that the cohort was drawn from, and the clients that were available: the others
        have size 0.
    drawn
        The cohort as drawn.
    cohort
        The clients that answered, with their final weights.
    norms
        The norm of what each of these adds to the aggregate, in the order of ``cohort.clients``: of
        its update; with an estimator, of the update minus h, what the estimator predicted.
    outputs
        The output layer's part of each of these updates, a row each, if the recipe
        ``learns_output``; otherwise None.
    """

    round_: int
    design: Design
    population: Population
    drawn: Cohort
    cohort: Cohort
    norms: NDArray[np.float64]
    outputs: NDArray[np.float64] | None = None

    def __repr__(self) -> str:
        answered, drawn = len(self.cohort), len(self.drawn)
        return f"ObservedRound({self.round_}, {answered} of {drawn} clients answered)"


@dataclass(frozen=True, repr=False)
class Recipe(Record, ABC):
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
    #: What clients report and the design needs: see :mod:`fedcohort.designs.signals`. If not
    #: empty, the design is rebuilt in every round.
    signals: ClassVar[tuple[str, ...]] = ()
    #: Names of arrays that the recipe keeps itself, a row per client: :meth:`observe` fills them.
    #: If not empty, the design is rebuilt in every round.
    keeps: ClassVar[tuple[str, ...]] = ()
    #: Whether :meth:`observe` gets the output layer's part of the updates.
    learns_output: ClassVar[bool] = False
    #: Whether the design draws by the population's groups. A population without groups is refused.
    grouped: ClassVar[bool] = False
    #: Over-selection: whether every asked client gets the model and trains, and the answers of
    #: clients that are not drawn are discarded.
    overselects: ClassVar[bool] = False
    #: Whether it is unbiased only with the plain aggregate, not with the other estimators.
    plain_only: ClassVar[bool] = False

    cohort_size: int

    @property
    def reads(self) -> str:
        """What the choice depends on besides sizes, groups and the round; empty if nothing."""
        signals = [name.replace("_", " ") for name in self.signals]
        read = ["updates"] * self.learns + signals + ["past rounds"] * bool(self.keeps)
        return f"clients' {listed(read)}" if read else ""

    @property
    def output_name(self) -> str:
        """The name of the output layer's bias; empty for the last one-dimensional array."""
        return ""

    def _check(self) -> None:
        asks_itself = type(self).ask is not Recipe.ask
        check_signals(type(self).__name__, self.signals, asks_itself=asks_itself)
        self.check()

    @classmethod
    def _need_of(cls, own: Field[Any]) -> Need | None:
        """Return what a setting must be: what it declares, or else of the type of its default."""
        if own.name == "cohort_size":
            return COHORT_SIZE
        way_out = f"Pass for example {own.default!r}."
        needs: dict[type, Need] = {
            bool: FlagNeed(),
            int: WholeNeed(least=None),
            float: NumberNeed(finite=False, way_out=way_out),
            str: TextNeed(way_out=way_out),
        }
        return super()._need_of(own) or needs.get(type(own.default))

    def __repr__(self) -> str:
        """Return ``Name(cohort_size=10)`` with the settings that differ from their defaults."""
        own = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        shown = ", ".join(f"{name}={value!r}" for name, value, default in own if value != default)
        return f"{type(self).__name__}({shown})"

    def check(self) -> None:
        """Raise :class:`~fedcohort.errors.DesignError` if a setting is invalid.

        Single settings are checked before this: each has the type of its default.
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
        memory: UpdateMemory | None = None,
        signals: Signals | None = None,
        kept: Mapping[str, NDArray[np.float64]] | None = None,
        round_: int = 0,
        rng: Rng = None,
    ) -> Design:
        """Build the design of a round over ``population``; raise :class:`DesignError` if it cannot.

        Parameters
        ----------
        memory
            The clients' last updates, for recipes that learn. None means that all are zero.
        signals
            What clients reported, by name: one number per client each.
        kept
            The recipe's own arrays, by name: a row per client each. None means all are NaN.
        round_
            The round, from 0.
        rng
            Breaks ties: an integer, a generator, or None for a random one.
        """
        owner = type(self).__name__
        checked_population(owner, population)
        checked_whole(owner, "round_", round_, way_out="Count rounds from 0.")
        generator = checked_rng(owner, rng)
        check_memory(owner, memory)
        for name, given in (("signals", signals), ("kept", kept)):
            if not isinstance(given, Mapping | None):
                raise DesignError(
                    f"{owner}: {name} must be one number per client, by name; got "
                    f"{brief(given)}. Pass for example {{'loss': losses}}."
                )
        nothing = {name: np.full(population.n_clients, np.nan) for name in self.keeps}
        known = Knowledge(
            self,
            memory=memory,
            signals=signals,
            kept={**nothing, **(kept or {})},
            round_=round_,
            rng=generator,
        )
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

    def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
        """Update the recipe's own arrays after a round with answers. The default does nothing.

        Parameters
        ----------
        kept
            The arrays that the recipe names in ``keeps``, shape (n_clients,) each, NaN at first.
            Change them in place, or replace them by others with a row per client;
            :meth:`design` reads them by ``known.kept(name)``. The selector saves them, and
            rearranges their rows when clients join or leave.
        observed
            The round: its law, who was drawn, who answered with what weight and norm.
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


def check_memory(owner: str, memory: object, *, error: type[FedcohortError] = DesignError) -> None:
    """Validate a memory of updates, or None."""
    way_out = "Pass one with the clients' last updates, or None."
    need = KindNeed(kind=UpdateMemory, optional=True, way_out=way_out)
    need.checked(owner, "memory", memory, error=error)


def check_signals(owner: str, signals: Sequence[str], *, asks_itself: bool = False) -> None:
    """Refuse unknown signals, and more than one to ask clients for: a request has one."""
    known = [*ASKED, *PAST]
    for name in signals:
        if name not in known:
            raise DesignError(
                f"{owner}: signals must be among {', '.join(known)}; got {name!r}. Name arrays "
                f"that the recipe fills itself in keeps.{did_you_mean(name, known)}"
            )
    asked = [name for name in ASKED if name in signals]
    if len(asked) > 1 and not asks_itself:
        raise DesignError(
            f"{owner}: a recipe may ask clients for one signal; got {' and '.join(asked)}. "
            f"Declare one, or use past_{asked[-1]}."
        )


def estimator_for(
    owner: str,
    recipe: Recipe,
    estimator: EstimatorName | EstimatorSettings,
    *,
    error: type[FedcohortError] = DesignError,
) -> EstimatorSettings | None:
    """Return the estimator's settings, None for the plain one; raise if it would be biased."""
    settings = estimator_of(owner, estimator, error=error)
    if settings is not None and recipe.plain_only:
        raise error(
            f"{owner}: {recipe.name} is biased with every estimator but the plain one, because "
            f"it never draws clients with a zero update; got {estimator!r}. Pass "
            f"estimator='plain', or choose another design."
        )
    return settings


def known_updates(population: Population, known: Knowledge) -> NDArray[np.floating]:
    """Return the clients' last updates; zeros without a memory."""
    checked_population("known_updates", population)
    way_out = "Call it from a recipe's design."
    memory = checked_kind("known_updates", "known", known, Knowledge, way_out=way_out).memory
    return np.zeros((population.n_clients, 1)) if memory is None else memory.updates


def output_place(recipe: Recipe, layout: Layout) -> slice:
    """Return the place of the output layer's bias in updates of this layout.

    Raises
    ------
    AggregationError
        If updates have no such array.
    """
    name = recipe.output_name
    place = layout.output(name or None)
    if place is None:
        raise AggregationError(
            f"{type(recipe).__name__}: needs the output layer's bias, "
            f"{f'the array {name!r}' if name else 'one-dimensional'}, in the updates; they have "
            f"{layout.shapes}. Send a model's arrays one by one, or name another array."
        )
    return place
