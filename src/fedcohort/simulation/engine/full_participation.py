"""Letting all clients train from the round's models, for the yardstick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedcohort._updates import as_numpy
from fedcohort.designs import Design
from fedcohort.memory import Memory
from fedcohort.simulation.engine.evaluation import FullGradients, Yardstick, yardstick
from fedcohort.simulation.engine.local_trainer import LocalTrainer
from fedcohort.simulation.engine.local_training import Lane
from fedcohort.simulation.runs import Run

#: Clients whose models fill so many bytes train together.
YARDSTICK_BYTES = 2**30


@dataclass(frozen=True, slots=True, eq=False)
class Aggregated:
    """What a run's server did: its design, its aggregate, and what it remembered."""

    design: Design
    step: Tensor
    variates: Memory | None


@final
class FullParticipation:
    """Compares rounds with those in which all clients take part.

    Where some are away, with those in which all who are there do: the others have no importance.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        trainer: LocalTrainer,
        gradients: Sequence[FullGradients],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._runs, self._trainer, self._gradients, self._pool = runs, trainer, gradients, pool

    def yardsticks(
        self, models: Tensor, done: Sequence[Aggregated | None], round_: int
    ) -> list[Yardstick | None]:
        """Return every run's yardstick; None where nothing was drawn."""
        found: dict[int, Future[Yardstick]] = {}
        for some in self._fitting(models, [k for k, each in enumerate(done) if each is not None]):
            trained = self._everyones_updates(models, some, round_)
            for k, updates in zip(some, trained, strict=True):
                own = done[k]
                assert own is not None  # for mypy: they were left out
                everyone = np.arange(self._runs[k].data.n_clients)
                known = None if own.variates is None else as_numpy(own.variates.of(everyone))
                gradients = self._gradients[k](models[k]).cpu().numpy()
                facts = (own.design, own.step.cpu().numpy(), updates, gradients, known)
                found[k] = self._pool.submit(yardstick, *facts)
        return [found[k].result() if k in found else None for k in range(len(done))]

    def _fitting(self, models: Tensor, which: list[int]) -> Iterator[list[int]]:
        """Divide runs, in order, into groups whose clients' models fit ``YARDSTICK_BYTES``."""
        some: list[int] = []
        for k in which:
            held = sum(self._runs[each].data.n_clients for each in [*some, k])
            if some and 4 * held * models.shape[1] > YARDSTICK_BYTES:
                yield some
                some = []
            some.append(k)
        if some:
            yield some

    def _everyones_updates(
        self, models: Tensor, some: list[int], round_: int
    ) -> list[NDArray[np.float32]]:
        """Let all clients train from these runs' models; shape (n_clients, size) each."""
        lanes = [
            [
                Lane(k, self._runs[k].seed, client, samples)
                for client, samples in enumerate(self._runs[k].data.train)
                if len(samples)
            ]
            for k in some
        ]
        together = [lane for own in lanes for lane in own]
        trained = self._trainer.updates(models, together, round_).cpu().numpy()
        found, start = [], 0
        for k, own in zip(some, lanes, strict=True):
            updates = np.zeros((self._runs[k].data.n_clients, models.shape[1]), dtype=np.float32)
            updates[[lane.client for lane in own]] = trained[start : start + len(own)]
            start += len(own)
            found.append(updates)
        return found
