"""The time of a round on FLARE's simulator: CohortController beside FLARE's own FedAvg.

Run ``build/nvflare/bin/python benchmarks/nvflare_rounds.py [--rounds 25]``, where
``make test-frameworks`` has made the environment: two minutes. Four clients, two in every round, a
model of a million numbers in float32, to which clients add 1. The two jobs run one after the
other; a round ends when the model is saved. Bar: 1.2.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import nvflare.client as flare
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

from fedcohort import SizeClustered
from fedcohort.nvflare import CohortController
from measurement import machine

SITES, DRAWN, NUMBERS = 4, 2, 10**6


class TimedPersistor(ModelPersistor):
    """Saves nothing; writes the moment of every save to a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        """Return zeros."""
        weights = {"numpy_key": np.zeros(NUMBERS, dtype=np.float32)}
        return make_model_learnable(weights=weights, meta_props={})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        """Note the time."""
        with Path(self.path).open("a") as file:
            file.write(f"{time.time()}\n")


def client() -> None:
    """Answer tasks at once."""
    flare.init()
    while flare.is_running():
        received = flare.receive()
        params = {key: value + 1 for key, value in received.params.items()}
        flare.send(flare.FLModel(params=params))


def seconds_of(name: str, controller: Any, folder: Path) -> list[float]:
    """Run a job; return how long each of its rounds took, but the first."""
    moments = folder / f"{name}.txt"
    job = FedJob(name=name)
    job.to_server(TimedPersistor(str(moments)), id="persistor")
    job.to_server(controller)
    job.to_clients(
        ScriptRunner(script=__file__, script_args="--client", framework=FrameworkType.NUMPY)
    )
    job.simulator_run(str(folder / name), n_clients=SITES, threads=SITES)
    times = [float(line) for line in moments.read_text().splitlines()]
    return np.diff(times).tolist()


def main() -> None:
    """Print the medians and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--client", action="store_true", help="play a client")
    options = parser.parse_args()
    if options.client:
        client()
        return
    sizes = {f"site-{k}": 100 * k for k in range(1, SITES + 1)}
    own = CohortController(
        recipe=SizeClustered(DRAWN), seed=0, sizes=sizes, num_rounds=options.rounds
    )
    theirs = FedAvg(num_clients=DRAWN, num_rounds=options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: seconds_of(name, each, Path(folder))
            for name, each in (("FedAvg", theirs), ("CohortController", own))
        }
    print(machine())
    for name, seconds in found.items():
        low, middle, high = np.percentile(seconds, [10, 50, 90])
        print(f"{name}: {middle:.3f} s a round ({low:.3f} to {high:.3f}), {len(seconds)} rounds")
    ratio = np.mean(found["CohortController"]) / np.mean(found["FedAvg"])
    print(f"mean time of a round, over FedAvg's: {ratio:.2f}")


if __name__ == "__main__":
    main()
