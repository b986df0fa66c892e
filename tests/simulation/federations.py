"""Federations, a model and simulations that tests of the simulator share; nothing changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedcohort.selector.settings import KEYWORDS
from fedcohort.simulation import (
    FederatedData,
    LocalTraining,
    Options,
    Run,
    Simulation,
    load_dataset,
    mlp,
    one_class_shards,
)
from populations import rng

TRAINING = LocalTraining(steps=3, batch_size=6, lr=0.1)


def shards(clients_per_class: int, train_size: Any, test_size: int) -> FederatedData:
    """Divide the digits among clients with one class each."""
    return one_class_shards(
        load_dataset("digits"),
        seed=0,
        clients_per_class=clients_per_class,
        train_size=train_size,
        test_size=test_size,
    )


def spans(*ends: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Give every client the samples between its ends."""
    return tuple(np.arange(*each) for each in ends)


def frozen(data: FederatedData) -> FederatedData:
    """Let no test write to what all of them read."""
    samples = data.dataset
    for array in (*data.train, *data.test, samples.x, samples.y, samples.test_x, samples.test_y):
        array.flags.writeable = False
    return data


#: Three clients with 30 samples of each of ten classes.
DIGITS = frozen(shards(3, 30, 8).renumbered(rng()))
#: Unequal sizes, a client without samples, a client without test samples.
UNEQUAL = frozen(
    FederatedData(
        DIGITS.dataset,
        spans((0, 40), (40, 50), (50, 53), (60, 60), (60, 160)),
        spans((0, 9), (9, 11), (11, 11), (12, 12), (20, 40)),
    )
)


def small_mlp() -> nn.Module:
    """Make a model of 64 * 8 + 8 + 8 * 10 + 10 = 610 parameters."""
    return mlp(64, 8)


def made(
    *runs: Run,
    model: Callable[[], nn.Module] = small_mlp,
    training: LocalTraining = TRAINING,
    **settings: Any,
) -> Simulation:
    """Make a simulation on the CPU; settings of the selectors are those of all runs."""
    own = {name: settings.pop(name) for name in KEYWORDS if name in settings}
    options = Options(device="cpu", **settings)
    return Simulation([replace(run, **own) for run in runs], model, training, options)


def assert_same(one: Simulation, other: Simulation) -> None:
    """The same models and histories bit for bit, times aside."""
    assert (one.models == other.models).all()
    for history, twin in zip(one.histories, other.histories, strict=True):
        np.testing.assert_equal(history.as_dicts(times=False), twin.as_dicts(times=False))


def resumed(fresh: Callable[[], Simulation], path: Path, *, stop: int, rounds: int) -> Simulation:
    """Stop a simulation after some rounds, and let another one go on from its checkpoint."""
    fresh().run(stop, checkpoint=path)
    again = fresh()
    assert again.resume(path) == stop
    again.run(rounds - stop)
    return again


def interrupt(simulation: Simulation, *, run: int, rounds: int = 1) -> None:
    """Interrupt the next round when it measures the model of a run."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation._live[run].evaluator, "quality", interrupted)
        with pytest.raises(KeyboardInterrupt):
            simulation.run(rounds)
