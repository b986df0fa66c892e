"""A run that is killed at any moment ends, resumed, as if it had not been."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

ROUNDS = 150
KILLS = 10

#: Runs in a child for every folder that it reads: imports take longer than the rounds.
PROGRAM = f"""
import json, os, signal, sys
from pathlib import Path
import numpy as np
from fedcohort import Multinomial, SimilarityClustered
from fedcohort.simulation import *

data = one_class_shards(
    load_dataset("digits"), seed=0, clients_per_class=3, train_size=30, test_size=8
)

def new():
    recipes = SimilarityClustered(8), Multinomial(8)
    runs = [Run(recipe, data, overlap=True) for recipe in recipes]
    options = Options(device="cpu", oracle_every=7)
    training = LocalTraining(steps=3, batch_size=10, lr=0.1)
    return Simulation(runs, lambda: mlp(64, 20), training, options)

def train(folder, seconds):
    simulation = new()
    path = folder / "checkpoint.state"
    done = simulation.resume(path) if path.exists() else 0
    print(done, flush=True)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    simulation.run({ROUNDS} - done, checkpoint=path, every=1)
    np.save(folder / "models.npy", simulation.models)
    rows = [history.as_dicts(times=False) for history in simulation.histories]
    (folder / "history.json").write_text(json.dumps(rows))

new().run(2)  # what torch imports and compiles in a first round, no child has to

for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if child == 0:
        folder, seconds = line.split()
        train(Path(folder), float(seconds))
        sys.exit(0)
    _, status, used = os.wait4(child, 0)
    print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
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

    def start(self, folder: Path, seconds: float = 0.0) -> int:
        """Start a run, and wait until it trains; return how many rounds it has done before.

        The kernel ends it after ``seconds`` of its own processor time, wherever it is then: that
        is as sudden as SIGKILL, and does not depend on what else the machine does. 0: never.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder} {seconds}\n")
        self._process.stdin.flush()
        (done,) = self._said()
        return int(done)

    def finish(self) -> tuple[int, float]:
        """Wait for the end of the run; return its exit code and its processor time in seconds."""
        code, seconds = self._said()
        return int(code), float(seconds)

    def _said(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

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
    """Runs end at random moments; each round writes a checkpoint, so writes are hit too."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    runs.start(whole)
    code, seconds = runs.finish()
    assert code == 0
    moments = random.Random(0)
    progress = []

    for _ in range(KILLS):
        progress.append(runs.start(killed, moments.uniform(0.001, 0.1) * seconds))
        assert runs.finish()[0] == -signal.SIGPROF
    done = runs.start(killed)
    assert runs.finish()[0] == 0

    assert 0 < done < ROUNDS
    assert len(set(progress)) > KILLS // 2
    assert (np.load(killed / "models.npy") == np.load(whole / "models.npy")).all()
    histories = [json.loads((folder / "history.json").read_text()) for folder in (killed, whole)]
    assert histories[0] == histories[1]
    assert len(histories[0][0]) == ROUNDS
    leftovers = {path.name for path in killed.iterdir()}
    assert leftovers == {"checkpoint.state", "models.npy", "history.json"}
