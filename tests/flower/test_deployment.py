"""A real deployment on loopback: TLS, registered nodes only, and a node that is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("sklearn", reason="the extra 'sim' is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-mnist"


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    federations = import_module("local_federation")

    with federations.LocalFederation(tmp_path / "flower", 3, secure=True) as running:
        yield running
    for name in ("local_federation", "certificates"):
        sys.modules.pop(name, None)


def rounds_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.slow
def test_training_goes_on_when_a_node_is_killed_and_strangers_stay_out(
    federation: Any, tmp_path: Path
) -> None:
    """Three registered nodes, all drawn in every round; a fourth whose key nobody registered."""
    federation.start_node(3, register=False)
    log, ended = tmp_path / "selections.jsonl", []

    def train() -> None:
        ended.append(
            federation.run(
                design="size",
                cohort_size=3,
                min_nodes=3,
                num_server_rounds=3,
                log_file=str(log),
            )
        )

    training = threading.Thread(target=train)
    training.start()
    end = time.monotonic() + 120
    while not rounds_of(log) and training.is_alive() and time.monotonic() < end:
        time.sleep(0.2)
    os.kill(federation.nodes[0].pid, signal.SIGKILL)
    training.join(timeout=300)

    found = rounds_of(log)
    assert ended == ["finished:completed"], federation.log_of("superlink")[-3000:]
    assert [line["round"] for line in found] == [0, 1, 2]
    assert found[0]["failed"] == {}
    assert {key for line in found for key in line["drawn"]} <= {"0", "1", "2"}
    for line in found:
        answered = set(line["drawn"]) - set(line["failed"])
        assert set(line["weights"]) == answered
        assert sum(line["weights"].values()) <= 1.0 + 1e-12
    assert federation.nodes[3].poll() is not None  # refused, and ended
    assert "0" in found[1]["failed"] or "0" not in found[2]["drawn"]
    reasons = {line["failed"]["0"] for line in found if "0" in line["failed"]}
    assert all(reason.startswith("error ") for reason in reasons), reasons
