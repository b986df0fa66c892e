"""Four clients on FLARE's simulator, two drawn in every round; prints who was drawn.

Run it as ``python examples/nvflare-digits/job.py``: half a minute on 2 cores. With
``--fails-at error:site-2:1`` the second client breaks in round 1. ``--export jobs`` writes the job
into a folder, for a deployment.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.client.config import ExchangeFormat
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

from fedcohort import SizeClustered
from fedcohort.nvflare import CohortController
from fedcohort.selector import read_selections

PIXELS, CLASSES = 64, 10


def make_job(options: argparse.Namespace, folder: Path) -> FedJob:
    """Put controller, model and clients into a job."""
    job = FedJob(name="digits", min_clients=1)
    first = np.zeros((PIXELS + 1, CLASSES)).tolist()
    job.to_server(NPModelPersistor(model=first), id="persistor")
    controller = CohortController(
        recipe=SizeClustered(options.draws),
        seed=1,
        num_rounds=options.rounds,
        min_clients=options.sites,
        on_failure=options.on_failure,
        timeout=options.timeout,
        start_timeout=60,
        query_timeout=20,
        log_file=str(folder / "selections.jsonl"),
        checkpoint=str(folder / "checkpoint"),
        resume=True,
    )
    job.to_server(controller)
    breaks = f" --fails-at {options.fails_at}" if options.fails_at else ""
    runner = ScriptRunner(
        script=str(Path(__file__).with_name("client.py")),
        script_args=f"--sites {options.sites}{breaks}",
        launch_external_process=options.external,
        launch_once=False,  # a new process for every task, if external
        framework=FrameworkType.NUMPY,
        server_expected_format=ExchangeFormat.NUMPY,
    )
    job.to_clients(runner)
    return job


def main() -> int:
    """Run the job, print what happened, and return 0 if it came to its end; or only write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--draws", type=int, default=2, help="how many are drawn in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--on-failure", default="keep")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--fails-at", default="", help="how, who and when: error:site-2:1")
    parser.add_argument("--external", action="store_true", help="train in a process per task")
    parser.add_argument("--folder", type=Path, default=None, help="for the log and the checkpoint")
    parser.add_argument("--export", type=Path, default=None, help="only write the job, to here")
    options = parser.parse_args()
    if options.export is not None and options.folder is None:
        parser.error("--export needs --folder: the server keeps the log and the checkpoint there")
    if options.export is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        make_job(options, options.folder.resolve()).export_job(str(options.export))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        job = make_job(options, folder.resolve())
        job.simulator_run(f"{scratch}/workspace", n_clients=options.sites, threads=options.sites)
        # The rounds that count: a round that was played again after a restart is there once.
        rounds = read_selections(folder / "selections.jsonl")
        for found in rounds:
            print(f"round {found['round']}: drawn {found['drawn']}, failed {found['failed']}")
    return 0 if len(rounds) == options.rounds else 1


if __name__ == "__main__":
    sys.exit(main())
