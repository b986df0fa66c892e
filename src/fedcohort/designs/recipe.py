"""Recipes: a design's name and hyper-parameters, built into a design when something changed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcohort.cohort import Cohort
from fedcohort.designs.base import Design
from fedcohort.designs.signals import ASKED, Request, SignalName, Signals
from fedcohort.difference import Difference, EstimatorName, estimator_of
from fedcohort.errors import DesignError
from fedcohort.population import Population


class Memory(Protocol):
    """What a recipe reads of the server's memory.

    A memory that also has ``products()``, all inner products of its updates, saves designs the
    work of computing them.
    """

    @property
    def updates(self) -> NDArray[np.floating]:
        """The last update of every client, zero before the first; shape (n_clients, dimension)."""


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What the server knows when it builds a round's design.

    Attributes
    ----------
    memory
        The clients' last updates; None where there are none yet.
    signals
        What else is known of the clients, by name; None where nothing is.
    round_
        The round, from 0.
    rng
        Breaks ties; not the generator that cohorts are drawn with.
    """

    memory: Memory | None
    signals: Signals | None
    round_: int
    rng: np.random.Generator


@dataclass(frozen=True)
class Recipe(ABC):
    """What experiment files, the command line and server loops name.

    A recipe is a frozen dataclass of hyper-parameters; what changes between rounds is an argument
    of ``build``. A new recipe gives its ``name`` and turns knowledge into a design (``_design``).
    """

    #: The name in files and on the command line.
    name: ClassVar[str]
    #: Whether the design depends on the memory: it is then built anew in every round.
    learns: ClassVar[bool] = False
    #: What the design needs to know of the clients, beyond the memory; it is then built anew in
    #: every round.
    signals: ClassVar[tuple[SignalName, ...]] = ()
    #: Whether the design differs from round to round without knowing anything.
    cycles: ClassVar[bool] = False
    #: Whether every asked client gets the model and trains, and the answers of those that are not
    #: drawn come too late to be used (over-selection).
    overselects: ClassVar[bool] = False
    #: Whether it is unbiased for the plain aggregate only, not for the difference estimator's.
    plain_only: ClassVar[bool] = False

    cohort_size: int

    @property
    def changes(self) -> bool:
        """Whether the design is built anew in every round."""
        return self.learns or self.cycles or bool(self.signals)

    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request | None:
        """Say who is asked for what before the round's design is built; None asks nobody.

        By default all clients with samples are asked for the signal that the recipe declares.
        """
        asked = [name for name in self.signals if name in ASKED]
        if not asked:
            return None
        return Request(asked[0], np.flatnonzero(population.sizes))

    def build(
        self,
        population: Population,
        memory: Memory | None,
        signals: Signals | None,
        round_: int,
        rng: np.random.Generator,
    ) -> Design:
        """Build the design of this round over ``population``; see :class:`Knowledge`."""
        design = self._design(population, Knowledge(memory, signals, round_, rng))
        if not isinstance(design, Design) or design.population.n_clients != population.n_clients:
            found = type(design).__name__
            if isinstance(design, Design):
                found += f" over {design.population.n_clients} clients"
            raise DesignError(
                f"{type(self).__name__}: _design must return a Design over the "
                f"{population.n_clients} clients of its population; got {found}."
            )
        return design

    def waits(self, durations: NDArray[np.float64], cohort: Cohort) -> float:
        """Say how many seconds the server waits for answers after the draw.

        ``durations`` are the seconds after which each client would have answered, shape
        (n_clients,). By default the server waits for the slowest drawn client; where the drawn
        ones are those that answer first, that is the last of these.
        """
        return float(durations[cohort.clients].max(initial=0.0))

    @abstractmethod
    def _design(self, population: Population, known: Knowledge) -> Design:
        """Build the design from what is known."""


def estimator_for(
    owner: str, recipe: Recipe, estimator: EstimatorName | Difference
) -> Difference | None:
    """Return the estimator's settings, None for the plain one; refuse what would be biased."""
    settings = estimator_of(owner, estimator)
    if settings is not None and recipe.plain_only:
        raise DesignError(
            f"{owner}: {recipe.name} needs estimator 'plain', since it leaves out clients whose "
            f"update is zero, but not what is remembered of them; got {estimator!r}. Use another "
            f"design with it."
        )
    return settings


def known_updates(population: Population, known: Knowledge) -> NDArray[np.floating]:
    """Return the clients' last updates; without a memory every update is zero."""
    if known.memory is None:
        return np.zeros((population.n_clients, 1))
    return known.memory.updates


def known_products(known: Knowledge) -> Callable[[], NDArray[np.float64]] | None:
    """Return what gives the updates' inner products, where the memory keeps them."""
    return getattr(known.memory, "products", None)
