"""A federation whose clients move differently in every round, and the estimator in plain loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from fedcohort.flower import CohortStrategy
from flower.federation import (
    DIMENSION,
    SIZES,
    client_app,
    counts_of,
    grid_of,
    in_its_own_loop,
    weights_of,
)
from flower.in_process import InProcessGrid

#: A reply is theta + W (Delta - h) + H: with theta = 0.25, |Delta| <= 0.3 and W <= 2 it is below 2,
#: where float32 rounds by 2^-24. So much comes from the reply itself, once more from the products
#: with weights that sum to 1, four times from the sum of at most 5 clients; Delta, h and H are of
#: numbers below 1 and add 2^-25 times W, W and 2. Together 9 x 2^-24 < 5.5e-7.
TOLERANCE = 1e-6
THETA = 0.25


def update_in(number: int, client: int) -> NDArray[np.float32]:
    """What a client adds to the model in a round."""
    steps = np.random.default_rng([number, client]).normal(size=DIMENSION)
    return (0.15 * steps.clip(-2.0, 2.0)).astype(np.float32)


@dataclass(frozen=True)
class Played:
    """A round: the drawn clients' weights and counts, and why clients failed."""

    weights: dict[str, float]
    counts: dict[str, int]
    failed: dict[str, str]


class Federation:
    """Clients that know which round it is; ``number`` is the round that is played."""

    def __init__(self, n: int = len(SIZES), sizes: list[int] = SIZES, **more: Any) -> None:
        self.number = 0
        app = client_app(sizes, update=lambda client: update_in(self.number, client), **more)
        self.grid: InProcessGrid = grid_of(n, app=app)
        self.sizes = sizes

    def node_of(self, client: int) -> int:
        return next(node for node, each in self.grid.partitions.items() if each == client)

    def importance(self) -> dict[str, float]:
        there = {str(k): self.sizes[k] for k in self.grid.partitions.values()}
        return {key: size / sum(there.values()) for key, size in there.items()}

    def play(
        self, strategy: CohortStrategy, number: int, start: ArrayRecord
    ) -> tuple[Played, ArrayRecord | None]:
        """Play a round; return it with the model, None: it stays."""
        self.number = number
        in_its_own_loop(strategy)
        messages = list(strategy.configure_train(number, start, ConfigRecord(), self.grid))
        now = strategy._round
        assert now is not None
        played = Played(weights_of(strategy), counts_of(strategy), now.answers.failed)
        replies = self.grid.send_and_receive(messages)
        return played, strategy.aggregate_train(number, replies)[0]


class Twin:
    """The difference estimator by its definition."""

    def __init__(self, shrink: float = 1.0) -> None:
        self.last: dict[str, NDArray[np.float64]] = {}
        self.shrink = shrink

    def aggregate(
        self,
        importance: Mapping[str, float],
        weights: Mapping[str, float],
        updates: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float64]:
        """Return v, and remember the updates of those that have a weight."""
        v = np.zeros(DIMENSION)
        for key, p in importance.items():
            v += p * self._h(key)
        for key, w in weights.items():
            v += w * (updates[key] - self._h(key))
        self.last |= {key: updates[key].astype(np.float64) for key in weights}
        return v

    def _h(self, key: str) -> NDArray[np.float64]:
        return self.shrink * self.last.get(key, np.zeros(DIMENSION))


def updates_in(number: int, keys: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    return {key: update_in(number, int(key)) for key in keys}
