"""Write the FLARE logs: two jobs on FLARE's simulator. Run it with FLARE's Python.

``python .../written/write_flare.py``: one minute on 2 cores. ``flare-fedavg`` is stock
FedAvg with 3 of 5 clients a round, one of which breaks twice. ``flare-scatter`` is ScatterAndGather
that goes on without the slowest client: ``min_clients`` are four of five.
"""

import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
from nvflare.app_common.aggregators import InTimeAccumulateWeightedAggregator
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.shareablegenerators import FullModelShareableGenerator
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.client.config import ExchangeFormat
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

WRITTEN = Path(__file__).parent
#: Only the lines of these loggers are kept, and continued lines.
KEPT = ("FedAvg", "ScatterAndGather", "ServerRunner", "ClientManager")
CLIENT = """
import sys, time
import numpy as np
import nvflare.client as flare

flare.init()
name = flare.get_site_name()
while flare.is_running():
    received = flare.receive()
    round_ = received.current_round
    if sys.argv[1] == "breaks" and name == "site-2" and round_ in (2, 3):
        raise RuntimeError("the disk is full")
    if sys.argv[1] == "slow" and name == "site-5":
        time.sleep(6)
    params = {key: value + 1 for key, value in received.params.items()}
    steps = 10 * int(name.rpartition("-")[2])
    flare.send(flare.FLModel(params=params, metrics={"loss": 1.0},
               meta={"NUM_STEPS_CURRENT_ROUND": steps}))
"""


def job_of(kind: str, script: Path) -> FedJob:
    """Put a stock controller, a model and clients into a job."""
    job = FedJob(name=f"stock-{kind}", min_clients=1)
    job.to_server(NPModelPersistor(model=np.zeros((2, 2)).tolist()), id="persistor")
    if kind == "fedavg":
        job.to_server(FedAvg(num_clients=3, num_rounds=6, ignore_result_error=True))
    else:
        job.to_server(FullModelShareableGenerator(), id="shareable_generator")
        job.to_server(
            InTimeAccumulateWeightedAggregator(expected_data_kind="WEIGHTS"), id="aggregator"
        )
        job.to_server(
            ScatterAndGather(
                min_clients=4,
                num_rounds=4,
                wait_time_after_min_received=1,
                persistor_id="persistor",
            )
        )
    job.to_clients(
        ScriptRunner(
            script=str(script),
            script_args="breaks" if kind == "fedavg" else "slow",
            framework=FrameworkType.NUMPY,
            server_expected_format=ExchangeFormat.NUMPY,
        )
    )
    return job


def main() -> None:
    """Run both jobs, and keep the server's logs."""
    for kind in sys.argv[1:] or ("fedavg", "scatter"):
        with tempfile.TemporaryDirectory() as scratch:
            script = Path(scratch) / "client.py"
            script.write_text(textwrap.dedent(CLIENT))
            workspace = Path(scratch) / "workspace"
            job_of(kind, script).simulator_run(str(workspace), n_clients=5, threads=5)
            for end in ("txt", "json"):
                log = (workspace / "server" / f"log.{end}").read_text().splitlines(keepends=True)
                marks = [f" - {name} - " if end == "txt" else f'"name": "{name}"' for name in KEPT]
                kept = [line for line in log if any(m in line for m in marks) or line[0] == " "]
                (WRITTEN / f"flare-{kind}.{end}").write_text("".join(kept))


if __name__ == "__main__":
    main()
