"""Ray: units as tasks of a real cluster of two nodes, one of which dies."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("ray", reason="the extra 'ray' is not installed")

from command_line import refused, run
from fedcohort.experiments import Observer, RunFolder, execute
from small_runs import SMALL, contents, make_folder, small_run, tables, write
from two_nodes import two_ray_nodes

Capture = pytest.CaptureFixture[str]
#: Two seeds of the user's own model, a unit each, and a grid before them.
GRID = SMALL.replace("cohort_size = 3", "cohort_size = 10").replace("lr = 0.1", "lr = [0.1, 0.2]")
LONG = GRID.replace("rounds = 6", "rounds = 300\ntune_rounds = 4").replace("every = 2", "every = 7")
LONG += '[model]\nname = "mine.py:own"\n'
OWN = "from fedcohort.simulation import mlp\n\ndef own(dataset):\n    return mlp(64, 3)\n"


class Watching(Observer):
    """Calls ``then`` once, when both workers have trained so many rounds of their runs."""

    def __init__(self, rounds: int, then: Callable[[], None]) -> None:
        self.rounds, self._then = rounds, then
        self.is_over = False
        self.notices: list[str] = []
        self._done: dict[str, int] = {}

    def advanced(self, work: int, text: str, worker: int) -> None:
        found = re.search(r"seed (\d): round (\d+) of 300", text)
        if found is not None:
            self._done[found[1]] = int(found[2])
        if not self.is_over and len(self._done) == 2 and min(self._done.values()) > self.rounds:
            self.is_over = True
            self._then()

    began = advanced

    def noticed(self, text: str) -> None:
        self.notices.append(text)


class Stopping(Watching):
    """Stops the run then, as Ctrl-C does."""

    def should_stop(self) -> bool:
        return self.is_over


@pytest.mark.slow
def test_a_stop_and_a_lost_node_change_nothing(tmp_path: Path) -> None:
    """A stopped run goes on without Ray, and with Ray although a node dies."""
    once = tmp_path / "once"
    once.mkdir()
    for home in (tmp_path, once):
        (home / "mine.py").write_text(OWN)
    path = make_folder(tmp_path, LONG)

    with two_ray_nodes() as nodes:
        with pytest.raises(KeyboardInterrupt):
            execute(RunFolder.open(path), ray=nodes.address, observer=Stopping(10, lambda: None))
        stopped = RunFolder.open(path).progress()
        shutil.copytree(path, tmp_path / "copy")
        observer = Watching(stopped.done // 4 + 20, lambda: nodes.lose(1))
        execute(RunFolder.open(path), ray=nodes.address, observer=observer)
    execute(RunFolder.open(tmp_path / "copy"))

    whole = tables(small_run(once, LONG))
    assert stopped.state == "interrupted"
    assert tables(tmp_path / "copy") == whole
    assert tables(path) == whole
    assert set(contents(path)) == set(contents(tmp_path / "copy"))
    assert observer.is_over
    assert any("its worker was lost (" in text for text in observer.notices), observer.notices
    log = (path / "log.txt").read_text()
    assert log.count("resumed after round") >= 3


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
