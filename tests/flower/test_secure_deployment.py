"""Secure aggregation over a real SuperLink: a node is killed in a stage of the protocol."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("sklearn", reason="the extra 'sim' is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"
N_NODES = 4
#: A stage of the protocol, and what the log calls it; None if the client is in the sum.
STAGES = {
    "setup": "making keys",
    "share_keys": "sharing keys",
    "collect_masked_vectors": "training",
    "unmask": None,
}
#: Seconds that the server waits in a stage, and that a test waits for anything.
WAIT, LONGEST = 60.0, 600.0
#: A mod for the example's app: client 0 stops in a stage, and says so.
STOPS = """
import time
from pathlib import Path

def stops(message, context, call_next):
    configs = message.content.config_records.get("secaggplus_configs", {})
    if context.node_config["partition-id"] == 0 and configs.get("stage") == STAGE:
        Path(FILE).touch()
        time.sleep(10_000)
    return call_next(message, context)
"""


def stopping_app(folder: Path, stage: str) -> Path:
    """Return a copy of the example's app whose first client stops in a stage."""
    copy = folder / "flower-secure"
    shutil.copytree(EXAMPLES / "flower-secure", copy)
    package = copy / "flower_secure"
    mod = STOPS.replace("STAGE", repr(stage)).replace("FILE", repr(str(folder / "stopped")))
    (package / "stops.py").write_text(mod)
    client = (package / "client_app.py").read_text()
    mods = "mods=[secure_aggregation_mod]"
    assert mods in client
    stopping = client.replace(mods, "mods=[stops, secure_aggregation_mod]")
    (package / "client_app.py").write_text(f"from flower_secure.stops import stops\n{stopping}")
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_node_that_is_killed_in_a_stage_leaves_the_weights_as_they_are(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("flower-mnist", "flower-secure"):
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    federations, task = import_module("local_federation"), import_module("flower_secure.task")
    log, model, ended = tmp_path / "rounds.jsonl", tmp_path / "model.npz", list[str]()
    config = {
        **{"design": "uniform", "cohort_size": N_NODES, "min_nodes": N_NODES, "threshold": 3.0},
        **{"num_server_rounds": 1, "wait": WAIT, "log_file": str(log), "model_file": str(model)},
    }
    app, stopped = stopping_app(tmp_path, stage), tmp_path / "stopped"

    with federations.LocalFederation(tmp_path / "flower", N_NODES, app=app) as federation:

        def train() -> None:
            ended.append(federation.run(timeout=LONGEST, **config))

        thread = threading.Thread(target=train)
        thread.start()
        while not stopped.exists() and thread.is_alive():
            time.sleep(0.2)
        federation.signal_node(0, signal.SIGKILL)
        thread.join()
        assert ended == ["finished:completed"], federation.log_of("superlink")[-3000:]

    (line,) = [json.loads(each) for each in log.read_text().splitlines()]
    data = [task.load_data(k, N_NODES) for k in range(N_NODES)]
    total = sum(len(labels) for _, labels in data)
    summed = range(STAGES[stage] is not None, N_NODES)
    weights = {str(k): len(data[k][1]) / total for k in summed}
    reasons = {key: reason.rpartition("(when ")[2] for key, reason in line["failed"].items()}
    start, largest = task.new_model(), max(weights.values())
    with np.load(model) as found:
        for place, key in enumerate(found.files):
            steps = [
                weights[str(k)] * task.train(start, data[k], 20, 0.5)[0][place].astype(float)
                for k in summed
            ]
            # Each entry of a share is rounded to 2 * 4 / 2^29; models are floats of 32 bits.
            assert np.abs(found[key] - sum(steps)).max() <= len(summed) * largest * 2e-8 + 1e-6
    for name in ("local_federation", "certificates", "flower_secure", "flower_secure.task"):
        sys.modules.pop(name, None)

    assert line["weights"] == pytest.approx(weights, abs=1e-12)
    assert reasons == ({} if STAGES[stage] is None else {"0": f"{STAGES[stage]})"})
