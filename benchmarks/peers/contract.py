"""What a peer's script gets on its command line, and the one line of JSON that it prints."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from peers.workload import SHAPES, Federation, Parameters, distance, judge


@dataclass
class Laps:
    """When the first round began, and when each round ended, on the machine's clock."""

    began: float = 0.0
    ended: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Start the first round."""
        self.began, self.ended = time.perf_counter(), []

    def lap(self) -> None:
        """End a round."""
        self.ended.append(time.perf_counter())


@dataclass(frozen=True)
class Trained:
    """What came out.

    Attributes
    ----------
    parameters
        The final model.
    local_steps
        Steps that the clients took, counted where they are taken.
    own_loss, own_accuracy
        What the peer itself measured after the last round, where it evaluates.
    """

    parameters: Parameters
    local_steps: int
    own_loss: float | None = None
    own_accuracy: float | None = None


@dataclass(frozen=True)
class Task:
    """What to do: train so many rounds on a file, with or without measuring after each."""

    data: Path
    rounds: int
    seed: int
    evaluate: bool


def main(train: Callable[[Federation, Task, Laps], Trained], *packages: str) -> None:
    """Do the task of the command line and print one line of JSON; all imports are done by now."""
    imported = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="the file of data")
    parser.add_argument("rounds", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--evaluate", action="store_true", help="measure after every round")
    task, laps = Task(**vars(parser.parse_args())), Laps()
    federation = Federation.load(task.data)
    trained = train(federation, task, laps)
    if tuple(p.shape for p in trained.parameters) != SHAPES or len(laps.ended) != task.rounds:
        raise ValueError(f"needs {task.rounds} rounds and {SHAPES}; got {len(laps.ended)} rounds")
    loss, accuracy = judge(trained.parameters, federation)
    result = {
        "versions": {name: version(name) for name in packages},
        "imported": imported,
        "began": laps.began,
        "ended": laps.ended,
        "local_steps": trained.local_steps,
        "moved": distance(trained.parameters, federation.start),
        "loss": loss,
        "accuracy": accuracy,
        "own_loss": trained.own_loss,
        "own_accuracy": trained.own_accuracy,
    }
    print("\n" + json.dumps(result), flush=True)
