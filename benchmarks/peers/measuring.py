"""One run of one peer, in processes of its own, on one thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from measurement import ONE_THREAD
from peers.contract import Task
from peers.peer_list import Peer
from peers.process_tree import Usage, family
from peers.workload import COHORT, STEPS

#: Seconds between looks at the processes, and after which a run has failed.
PERIOD, PATIENCE = 0.25, 300
SETTINGS = {
    **ONE_THREAD,
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "CUDA_VISIBLE_DEVICES": "",
}
#: How far a peer's own loss and accuracy may be from the judge's: both are rounded sums of floats.
AGREEMENT = 1e-4


def measure(peer: Peer, python: Path, task: Task) -> dict[str, Any]:
    """Run a peer once; what it printed, or ``{"error": ...}``."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(python), "-m", peer.module, str(task.data), str(task.rounds), str(task.seed)]
            + ["--evaluate"] * task.evaluate,
            stdout=out,
            stderr=err,
            env=_environment(peer),
        )
        usage, in_time = _watch(process, started)
        out.seek(0)
        err.seek(0)
        lines = [line for line in out if line.startswith("{")]
        if not in_time or process.returncode or not lines:
            said = [line.strip() for line in err if line.strip()] or ["nothing on stderr"]
            reason = said[-1] if in_time else f"no result within {PATIENCE} s"
            return {"error": f"exit code {process.returncode}: {reason}"}
        return _summary(json.loads(lines[-1]), started, usage, task)


def _environment(peer: Peer) -> dict[str, str]:
    """Only fedcohort's environment sees the caller's own paths."""
    here, theirs = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")
    paths = [here] if peer.own_environment else [here, *theirs.split(os.pathsep)]
    return {**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _watch(process: subprocess.Popen[bytes], started: float) -> tuple[Usage, bool]:
    """Look at the processes until they end; end them, each by its number, when time is up."""
    usage = Usage()
    while process.poll() is None:
        now = time.perf_counter()
        usage.sample(process.pid, now)
        if now > started + PATIENCE:
            for pid in reversed(family(process.pid)):
                _end(pid)
            process.wait()
            return usage, False
        time.sleep(PERIOD)
    return usage, True


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        print(f"process {pid} has ended by itself", file=sys.stderr)


def _summary(said: dict[str, Any], started: float, usage: Usage, task: Task) -> dict[str, Any]:
    ended = said.pop("ended")
    began, imported = said.pop("began"), said.pop("imported")
    return {
        **said,
        "import_seconds": round(imported - started, 3),
        "setup_seconds": round(began - imported, 3),
        "round_seconds": [round(b - a, 5) for a, b in pairwise([began, *ended])],
        "cores": round(usage.cores(ended[0], ended[-2]), 2),
        "peak_mb": round(usage.peak_bytes / 1e6),
        "doubts": doubts(said, task),
    }


def doubts(said: dict[str, Any], task: Task) -> list[str]:
    """Say where a peer did other work than the task asks for."""
    found = []
    due = task.rounds * COHORT * STEPS
    if said["local_steps"] != due:
        found.append(f"{said['local_steps']} local steps instead of {due}")
    if not said["moved"] > 0:
        found.append(f"a model that moved by {said['moved']}: nothing was learnt")
    if task.evaluate:
        for what in ("loss", "accuracy"):
            own = said[f"own_{what}"]
            if own is None or abs(own - said[what]) > AGREEMENT:
                found.append(f"its own {what} is {own}, the judge's {said[what]:.4f}")
    return found
