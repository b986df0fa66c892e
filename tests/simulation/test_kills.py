"""A run that is killed at any moment ends, resumed, as if it had not been."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

ROUNDS = 150
KILLS = 10

#: Runs in a child for every folder that it reads: imports take longer than the rounds.
PROGRAM = f"""
import json, os, sys
from pathlib import Path
import numpy as np, torch
from fedcohort import Multinomial, SimilarityClustered
from fedcohort.simulation import *

data = one_class_shards(
    load_dataset("digits"), seed=0, clients_per_class=3, train_size=30, test_size=8
)

def train(folder):
    torch.set_num_threads(1)
    runs = [Run(SimilarityClustered(8), data), Run(Multinomial(8), data)]
    options = Options(device="cpu", overlap=True, oracle_every=7)
    training = LocalTraining(steps=3, batch_size=10, lr=0.1)
    simulation = Simulation(runs, lambda: mlp(64, 20), training, options)
    path = folder / "checkpoint.npz"
    done = simulation.resume(path) if path.exists() else 0
    print(os.getpid(), done, flush=True)
    simulation.run({ROUNDS} - done, checkpoint=path, every=1)
    np.save(folder / "models.npy", simulation.models)
    rows = [history.as_dicts(times=False) for history in simulation.histories]
    (folder / "history.json").write_text(json.dumps(rows))

for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if child == 0:
        train(Path(line.rstrip()))
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runs:
    """Runs in processes of their own, one after the other."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self, folder: Path) -> tuple[int, int]:
        """Start a run, and wait until it trains; return its process and the rounds that it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        process, done = self._said()
        return process, done

    def finish(self) -> int:
        """Wait for the end of the run; return its exit code."""
        (code,) = self._said()
        return code

    def _said(self) -> list[int]:
        assert self._process.stdout is not None
        return list(map(int, self._process.stdout.readline().split()))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def runs() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    runs.end()


@pytest.mark.slow
def test_ten_kills_change_nothing(runs: Runs, tmp_path: Path) -> None:
    """SIGKILL at random moments; a checkpoint is written in every round, so writes are hit too."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    runs.start(whole)
    assert runs.finish() == 0
    delays = random.Random(0)
    progress = []

    for _ in range(KILLS):
        process, done = runs.start(killed)
        progress.append(done)
        time.sleep(delays.uniform(0.0, 0.4))
        os.kill(process, signal.SIGKILL)
        assert runs.finish() == -signal.SIGKILL
    _, done = runs.start(killed)
    assert runs.finish() == 0

    assert 0 < done < ROUNDS
    assert len(set(progress)) > KILLS // 2
    assert (np.load(killed / "models.npy") == np.load(whole / "models.npy")).all()
    histories = [json.loads((folder / "history.json").read_text()) for folder in (killed, whole)]
    assert histories[0] == histories[1]
    assert len(histories[0][0]) == ROUNDS
    leftovers = {path.name for path in killed.iterdir()}
    assert leftovers == {"checkpoint.npz", "models.npy", "history.json"}
