"""A run that is killed at any moment ends, resumed, as if it had not been."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

ROUNDS = 150
KILLS = 10

PROGRAM = f"""
import json, sys
from pathlib import Path
import numpy as np, torch
from fedcohort import Multinomial, SimilarityClustered
from fedcohort.simulation import *
torch.set_num_threads(1)
data = one_class_shards(
    load_dataset("digits"), seed=0, clients_per_class=3, train_size=30, test_size=8
)
runs = [Run(SimilarityClustered(8), data), Run(Multinomial(8), data)]
options = Options(device="cpu", overlap=True, oracle_every=7)
training = LocalTraining(steps=3, batch_size=10, lr=0.1)
simulation = Simulation(runs, lambda: mlp(64, 20), training, options)
path = Path(sys.argv[1]) / "checkpoint.npz"
done = simulation.resume(path) if path.exists() else 0
print("ready", done, flush=True)
simulation.run({ROUNDS} - done, checkpoint=path, every=1)
np.save(Path(sys.argv[1]) / "models.npy", simulation.models)
rows = [history.as_dicts(times=False) for history in simulation.histories]
(Path(sys.argv[1]) / "history.json").write_text(json.dumps(rows))
"""


def start(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Start the run, and wait until it trains; return how many rounds were done."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[0] == "ready"
    return process, int(line[1])


def finish(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(timeout=300)


@pytest.mark.slow
def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    """SIGKILL at random moments; a checkpoint is written in every round, so writes are hit too."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    process, _ = start(whole)
    assert finish(process) == 0
    delays = random.Random(0)
    progress = []

    for _ in range(KILLS):
        process, done = start(killed)
        progress.append(done)
        time.sleep(delays.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        assert finish(process) == -signal.SIGKILL
    process, done = start(killed)
    assert finish(process) == 0

    assert 0 < done < ROUNDS
    assert len(set(progress)) > KILLS // 2
    assert (np.load(killed / "models.npy") == np.load(whole / "models.npy")).all()
    histories = [json.loads((folder / "history.json").read_text()) for folder in (killed, whole)]
    assert histories[0] == histories[1]
    assert len(histories[0][0]) == ROUNDS
    leftovers = {path.name for path in killed.iterdir()}
    assert leftovers == {"checkpoint.npz", "models.npy", "history.json"}
