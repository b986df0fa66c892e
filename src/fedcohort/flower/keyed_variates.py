"""The difference estimator's memory by client name: nodes leave and come back, it stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.difference import ControlVariates, Difference
from fedcohort.errors import FlowerError
from fedcohort.flower.sent_model import Around
from fedcohort.population import Population

log = getLogger("flwr.fedcohort")

#: Among the arrays of the state: p, and the two that have a model's width.
IMPORTANCE, WIDE = "importance", ("kept", "means")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Recalled:
    """What is remembered in a round.

    Attributes
    ----------
    remembered
        h by client, flat.
    mean
        H, the sum of p h over the clients that are there.
    """

    remembered: Mapping[str, NDArray[np.floating]]
    mean: NDArray[np.floating]

    def around(self, key: str) -> Around:
        """Return what goes around a client's update."""
        return Around(self.remembered[key], self.mean)


@final
class KeyedVariates:
    """Control variates of every client that was ever there; who is away has p = 0."""

    def __init__(self, difference: Difference) -> None:
        self._difference = difference
        self._place_of: dict[str, int] = {}
        self._importance: NDArray[np.float64] = np.zeros(0)
        self._population: Population | None = None
        self._variates: ControlVariates | None = None
        self._dimension = 0
        # Few means are kept, and squares and sums of float32 can leave its range.
        self._kind = np.dtype(np.float32 if difference.clusters is None else np.float64)

    def recall(self, population: Population, keys: Sequence[str], dimension: int) -> Recalled:
        """Return what is remembered of these clients, and the mean over the population."""
        variates = self._over(population, dimension)
        rows = variates.of(self._places(keys))
        return Recalled(dict(zip(keys, rows, strict=True)), variates.expected())

    def record(self, updates: Mapping[str, NDArray[np.float32]]) -> None:
        """Remember whole updates of clients that were recalled, or could have been."""
        if updates and self._variates is not None:
            # By place: neither node ids nor arrival change a sum of floats.
            keys = sorted(updates, key=self._place_of.__getitem__)
            rows = np.stack([updates[key] for key in keys]).astype(self._kind, copy=False)
            self._variates.record(self._places(keys), rows)

    def state(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """Return the clients, and what is to be kept of them."""
        if self._variates is None:
            return [], {}
        return list(self._place_of), {IMPORTANCE: self._importance, **self._variates.state()}

    def restore(self, clients: Sequence[str], state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave."""
        self._place_of = {key: place for place, key in enumerate(clients)}
        self._population, self._variates = None, None
        if state:
            self._importance = state[IMPORTANCE]
            self._make(next(state[name].shape[1] for name in WIDE if name in state)).restore(state)

    def _over(self, population: Population, dimension: int) -> ControlVariates:
        """Let p be the population's."""
        if self._variates is not None and dimension != self._dimension:
            raise FlowerError(
                f"CohortStrategy: the difference estimator remembers updates of {self._dimension} "
                f"numbers; got a model of {dimension}. Use a new strategy for another model."
            )
        if population is not self._population:
            keys = [str(key) for key in population.ids]
            for key in keys:
                self._place_of.setdefault(key, len(self._place_of))
            before, self._importance = self._importance, np.zeros(len(self._place_of))
            self._importance[self._places(keys)] = population.importance
            # Not after a restart: summed again, H would differ in its last digits.
            if self._variates is not None and not np.array_equal(before, self._importance):
                self._variates.reweigh(self._importance)
            self._population = population
        return self._variates or self._make(dimension)

    def _make(self, dimension: int) -> ControlVariates:
        clusters = self._difference.clusters
        n = len(self._importance) if clusters is None else clusters + 1
        log.info(
            "the difference estimator remembers up to %d updates of %d numbers: %.2f MB",
            n,
            dimension,
            n * dimension * self._kind.itemsize / 1e6,
        )
        zeros = np.zeros(dimension, dtype=self._kind)
        self._variates = self._difference.memory(self._importance, zeros)
        self._dimension = dimension
        return self._variates

    def _places(self, keys: Sequence[str]) -> NDArray[np.int64]:
        return np.array([self._place_of[key] for key in keys], dtype=np.int64)
