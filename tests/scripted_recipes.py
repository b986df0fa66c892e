"""Recipes that draw and ask by a script, and note what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort import Cohort, Design, Population, Recipe
from fedcohort.designs import Knowledge
from fedcohort.designs.base import count_matrix
from fedcohort.designs.signals import AskedSignal, Request, SignalName


class ScriptedDesign(Design):
    """Always draws the same clients, once each, with equal weights."""

    unbiased = False

    def __init__(self, population: Population, clients: list[int]) -> None:
        super().__init__(population, len(clients))
        self._clients = clients

    def sample(self, rng: np.random.Generator, rounds: int) -> csr_array:
        return count_matrix(np.array([self._clients] * rounds), self.population.n_clients)

    def _chosen(self) -> NDArray[np.float64]:
        return np.isin(np.arange(self.population.n_clients), self._clients).astype(float)

    def weight_variance(self) -> NDArray[np.float64]:
        return 0 * self._chosen()

    def covariance(self) -> NDArray[np.float64]:
        return np.diag(0 * self._chosen())

    def inclusion_probability(self) -> NDArray[np.float64]:
        return self._chosen()

    def max_count(self) -> NDArray[np.int64]:
        return self._chosen().astype(np.int64)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        return 0.0


@dataclass(frozen=True)
class Scripted(Recipe):
    """Draws and asks by a script, one entry a round, over and over; ``told`` is what it hears."""

    name: ClassVar[str] = "scripted"

    draws: tuple[tuple[int, ...], ...] = ((0,),)
    asks: tuple[tuple[AskedSignal, tuple[int, ...]] | None, ...] = (None,)
    told: list[dict[str, Any] | None] = field(default_factory=list, compare=False, repr=False)

    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request | None:
        asked = self.asks[round_ % len(self.asks)]
        return None if asked is None else Request(asked[0], np.array(asked[1], dtype=np.int64))

    def design(self, population: Population, known: Knowledge) -> Design:
        self.told.append(None if known.signals is None else dict(known.signals))
        return ScriptedDesign(population, list(self.draws[known.round_ % len(self.draws)]))


@dataclass(frozen=True)
class Asking(Scripted):
    """Needs all that can be asked or is known from earlier rounds."""

    signals: ClassVar[tuple[SignalName, ...]] = (
        *("update_norm", "loss", "duration"),
        *("past_loss", "past_duration", "past_round"),
    )


@dataclass(frozen=True)
class FirstTwo(Scripted):
    """Asks everybody to train, and takes the two that answer first."""

    signals: ClassVar[tuple[SignalName, ...]] = ("duration",)
    overselects: ClassVar[bool] = True

    def design(self, population: Population, known: Knowledge) -> Design:
        assert known.signals is not None
        first = np.argsort(known.signals["duration"])[:2]
        return ScriptedDesign(population, sorted(first.tolist()))


@dataclass(frozen=True)
class Patient(Scripted):
    """Waits for ten times the slowest."""

    def waits(self, durations: NDArray[np.float64], cohort: Cohort) -> float:
        return 10 * super().waits(durations, cohort)
