"""fedcohort: ten clients drawn without replacement, trained as one batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcohort import Uniform
from fedcohort.simulation import (
    FederatedData,
    LocalTraining,
    Options,
    Run,
    Simulation,
    mlp,
)
from fedcohort.simulation.engine import local_training
from peers.contract import Laps, Task, Trained, main
from peers.torch_model import with_parameters
from peers.workload import BATCH, COHORT, INPUTS, LR, SHAPES, STEPS, Federation


class StepCounter:
    """Counts the steps that the engine lays out for its clients."""

    def __init__(self) -> None:
        self.taken, self._make_schedule = 0, local_training.make_schedule
        local_training.make_schedule = self._count

    def _count(self, *arguments: Any, **options: Any) -> Any:
        schedule = self._make_schedule(*arguments, **options)
        self.taken += int(schedule.active.sum())
        return schedule


def train(federation: Federation, task: Task, laps: Laps) -> Trained:
    """Run the simulation; the last round is always measured."""
    n_clients, n_test = len(federation.y), federation.test_y.shape[1]
    data = FederatedData.from_arrays(
        federation.x.reshape(-1, INPUTS),
        federation.y.reshape(-1),
        np.repeat(np.arange(n_clients), federation.y.shape[1]),
        test=(
            federation.test_x.reshape(-1, INPUTS),
            federation.test_y.reshape(-1),
            np.repeat(np.arange(n_clients), n_test),
        ),
        scale=1 / 255,
    )
    simulation = Simulation(
        [Run(Uniform(COHORT, unbiased=True), data, seed=task.seed)],
        with_parameters(mlp(), federation.start),
        LocalTraining(steps=STEPS, batch_size=BATCH, lr=LR),
        Options(device="cpu", measure_every=1 if task.evaluate else task.rounds),
    )
    counter = StepCounter()
    laps.begin()
    (history,) = simulation.run(task.rounds, progress=lambda done, histories: laps.lap())
    quality = history.rounds[-1].quality
    assert quality is not None
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    parts = np.split(simulation.models[0], ends[:-1])
    parameters = tuple(part.reshape(s) for part, s in zip(parts, SHAPES, strict=True))
    return Trained(parameters, counter.taken, quality.loss, quality.accuracy)


if __name__ == "__main__":
    main(train, "fedcohort", "torch", "numpy")
