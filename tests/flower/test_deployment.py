"""A real deployment on loopback: TLS, registered nodes only; nodes and a SuperLink are killed."""

from __future__ import annotations

import json
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
#: Seconds to wait for anything, at most: a busy machine needs half a minute to start a client app.
LONGEST = 1500.0


@pytest.fixture
def secure() -> bool:
    return True


@pytest.fixture
def database() -> bool:
    return False


@pytest.fixture
def federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool, database: bool
) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delenv("FEDCOHORT_DATA", raising=False)
    federations = import_module("local_federation")

    folder = tmp_path / "flower"
    with federations.LocalFederation(folder, 3, secure=secure, database=database) as running:
        yield running
    for name in ("local_federation", "certificates"):
        sys.modules.pop(name, None)


def rounds_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


class Training:
    """All three nodes, drawn in every round, in a thread."""

    def __init__(self, federation: Any, log: Path, n_rounds: int) -> None:
        self.federation, self.log, self.ended = federation, log, list[str]()
        self._thread = threading.Thread(target=self._train, args=(n_rounds,))
        self._thread.start()

    def _train(self, n_rounds: int) -> None:
        config = {"design": "size", "cohort_size": 3, "min_nodes": 3, "log_file": str(self.log)}
        status = self.federation.run(timeout=LONGEST, num_server_rounds=n_rounds, **config)
        self.ended.append(status)

    def wait_for_a_round(self) -> None:
        end = time.monotonic() + LONGEST
        while not rounds_of(self.log) and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.2)

    def rounds(self) -> list[dict[str, Any]]:
        """Wait for the end; return the lines of all rounds."""
        self._thread.join()
        assert self.ended == ["finished:completed"], self.federation.log_of("superlink")[-3000:]
        return rounds_of(self.log)


def restarted(federation: Any, number: int) -> tuple[int, list[int]]:
    """Start a node until the SuperLink takes it; return its id, and how it ended before that.

    Flower refuses the key of a node that it believes to be online, for a minute at most.
    """
    ends: list[int] = []
    federation.start_node(number)
    end = time.monotonic() + LONGEST
    while federation.node_id(number) is None and time.monotonic() < end:
        if (status := federation.nodes[number].poll()) is not None:
            ends.append(status)
            federation.start_node(number)
        time.sleep(0.5)
    return int(federation.node_id(number)), ends


def answered(line: dict[str, Any], client: str) -> bool:
    return client in line["drawn"] and client not in line["failed"]


def counts_who_answered(line: dict[str, Any]) -> bool:
    """Whether the weights of a round are those of the clients that answered."""
    own = set(line["weights"]) == set(line["drawn"]) - set(line["failed"])
    return own and sum(line["weights"].values()) <= 1.0 + 1e-12


@pytest.mark.slow
def test_a_killed_node_that_returns_with_its_key_is_the_same_node_and_not_asked_again(
    federation: Any, tmp_path: Path
) -> None:
    """Training goes on meanwhile; a fourth node, whose key nobody registered, stays out.

    A node that is refused ends with status 1; the code 305 stands in its log alone.
    """
    federation.start_node(3, register=False)
    training = Training(federation, tmp_path / "selections.jsonl", 5)
    training.wait_for_a_round()
    before = federation.node_id(0)
    federation.signal_node(0, signal.SIGKILL)

    after, ends = restarted(federation, 0)

    found = training.rounds()
    assert after == before
    assert set(ends) == {1}
    assert federation.log_of("node-0").count("Exit Code: 305") == len(ends)
    assert [line["round"] for line in found] == [0, 1, 2, 3, 4]
    assert found[0]["failed"] == {}
    assert {key for line in found for key in line["drawn"]} == {"0", "1", "2"}
    assert all(map(counts_who_answered, found))
    assert answered(found[-1], "0"), found
    assert "query." not in federation.log_of("node-0").rpartition("=== start ===")[2]
    assert federation.nodes[3].poll() is not None  # refused, and ended


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False])
def test_a_killed_node_that_returns_with_its_name_is_known_when_the_old_node_is_dropped(
    federation: Any, tmp_path: Path
) -> None:
    training = Training(federation, tmp_path / "selections.jsonl", 6)
    training.wait_for_a_round()
    before = federation.node_id(0)
    federation.signal_node(0, signal.SIGKILL)

    after, _ = restarted(federation, 0)

    found = training.rounds()
    assert after != before
    assert len(found) == 6
    assert any("0" in line["failed"] for line in found)  # lost with its old node
    assert answered(found[-1], "0"), found


def wait_for_rounds(log: Path, n: int) -> None:
    end = time.monotonic() + LONGEST
    while len(rounds_of(log)) < n and time.monotonic() < end:
        time.sleep(0.2)


def status_of(federation: Any, run_id: str) -> str:
    """Wait for the end of a run, which the SuperLink notices when it hears no more of it."""
    end = time.monotonic() + LONGEST
    while (status := federation.runs()[run_id]) == "running" and time.monotonic() < end:
        time.sleep(5)
    return str(status)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False])
@pytest.mark.parametrize("database", [False, True])
def test_after_the_superlink_was_killed_the_next_run_goes_on_from_the_checkpoint(
    federation: Any, tmp_path: Path, database: bool
) -> None:
    """The run ends with its SuperLink. Without a database the new SuperLink knows no node.

    A round whose line was written, but not its checkpoint, is played again.
    """
    log, folder = tmp_path / "selections.jsonl", tmp_path / "checkpoint"
    config = {"design": "size", "cohort_size": 3, "min_nodes": 3, "log_file": str(log)}
    config |= {"checkpoint": str(folder), "every": 1}
    run_id = federation.submit(num_server_rounds=500, **config)
    wait_for_rounds(log, 3)

    federation.kill_superlink()
    played = len(rounds_of(log))
    time.sleep(5)
    assert len(rounds_of(log)) == played  # nobody goes on
    federation.start_superlink()
    if database:
        assert status_of(federation, run_id) == "finished:failed"
    else:
        assert federation.runs() == {}
        ends = [node.wait(timeout=LONGEST) for node in federation.nodes.values()]
        assert ends == [0, 0, 0]  # not a failure, for a supervisor
        for number in range(3):
            federation.start_node(number)
    status = federation.run(timeout=LONGEST, num_server_rounds=played + 2, **config)

    assert status == "finished:completed", federation.log_of("superlink")[-3000:]
    assert all(node.poll() is None for node in federation.nodes.values())
    numbers = [line["round"] for line in rounds_of(log)]
    assert numbers[:played] == list(range(played))
    assert numbers[played] in (played - 1, played)
    assert numbers[played:] == list(range(numbers[played], played + 2))
