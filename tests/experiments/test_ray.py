"""Ray: units as tasks of a real cluster of two nodes, one of which dies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("ray", reason="the extra 'ray' is not installed")

from command_line import refused, run
from fedcohort.experiments import Observer, RunFolder, execute
from small_runs import SMALL, make_folder, small_run, start, whole_folder, write
from two_nodes import OWN, Gate, two_ray_nodes

Capture = pytest.CaptureFixture[str]
#: Two seeds of the user's own model and design, a unit each, and a grid before them.
GRID = SMALL.replace("cohort_size = 3", "cohort_size = 10").replace("lr = 0.1", "lr = [0.1, 0.2]")
LONG = GRID.replace("rounds = 6", "rounds = 120\ntune_rounds = 4").replace("every = 2", "every = 7")
LONG = LONG.replace('"multinomial"', '"mine.py:Waiting"') + '[model]\nname = "mine.py:own"\n'


class AtTheGate(Observer):
    """Calls ``then`` once, when two units wait at the gate; ``stops`` is to press Ctrl-C then."""

    def __init__(self, gate: Gate, then: Callable[[], None], *, stops: bool = False) -> None:
        self._gate, self._then, self._stops = gate, then, stops
        self.is_over = False
        self.notices: list[str] = []

    def should_stop(self) -> bool:
        if not self.is_over and self._gate.n_waiting() == 2:
            self.is_over = True
            self._then()
        return self._stops and self.is_over

    def noticed(self, text: str) -> None:
        self.notices.append(text)


@pytest.mark.slow
def test_a_stop_and_a_lost_node_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped run goes on without Ray, and with Ray although a node dies."""
    once, gate = tmp_path / "once", Gate(tmp_path / "gate")
    once.mkdir()
    for home in (tmp_path, once):
        (home / "mine.py").write_text(OWN)
    monkeypatch.setenv("GATE", str(gate.path))
    path = make_folder(tmp_path, LONG)

    with two_ray_nodes() as nodes:
        stopping = AtTheGate(gate, lambda: gate.set("ajar"), stops=True)
        with pytest.raises(KeyboardInterrupt):
            execute(RunFolder.open(path), ray=nodes.address, observer=stopping)
        stopped = RunFolder.open(path).progress()
        shutil.copytree(path, tmp_path / "copy")
        gate.set("closed")

        def lose_a_node() -> None:
            nodes.lose(1)
            gate.set("open")

        losing = AtTheGate(gate, lose_a_node)
        execute(RunFolder.open(path), ray=nodes.address, observer=losing)
    execute(RunFolder.open(tmp_path / "copy"))

    whole = whole_folder(small_run(once, LONG))
    assert stopped.state == "interrupted"
    assert whole_folder(tmp_path / "copy") == whole
    assert whole_folder(path) == whole
    assert any("its worker was lost (" in text for text in losing.notices), losing.notices
    # Both units went on; the lost one again from the same round, which the log says once.
    assert (path / "log.txt").read_text().count("resumed after round") == 2


@pytest.mark.slow
def test_a_cluster_on_this_machine_leaves_the_same_files(tmp_path: Path) -> None:
    """One point of the grid diverges."""
    once, text = tmp_path / "once", GRID.replace("0.2", "1e30")
    once.mkdir()
    command = ("run", write(tmp_path, text), "--out", tmp_path / "run", "--device", "cpu")

    process = start(*command, "--ray", "local")  # Ray's own objects outlive it in a process
    _, err = process.communicate(timeout=600)

    assert process.returncode == 0, err
    assert "100 % small" in err
    assert whole_folder(tmp_path / "run") == whole_folder(small_run(once, text))
    assert len(list((tmp_path / "run").rglob("diverged.txt"))) == 1
    assert list((tmp_path / "run").rglob("checkpoint.state")) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ray", "ray://127.0.0.1:1"], "cannot join 'ray://127.0.0.1:1' (a client's address"),
        (["--ray", "local", "-w", 2], "run: takes --workers or --ray; got both."),
    ],
)
def test_an_address_that_cannot_be_is_refused(
    options: list[object], sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path, SMALL)

    result = run(capsys, "run", file, "--out", tmp_path / "run", "--device", "cpu", *options)

    assert refused(result, sentence)
    assert not (tmp_path / "run" / "units" / "000").exists()
