"""A run that is stopped or killed at any moment ends, resumed, as if it had not been."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort.errors import ExperimentError
from fedcohort.experiments import RunFolder, execute
from small_runs import SMALL, TWO_UNITS, contents, go_on, make_folder, small_run, tables
from small_runs import write as write_file

ROUNDS = 100
#: Two units with a design that takes its time if a variable says so: signals come in the middle.
LONG = (
    TWO_UNITS.replace("rounds = 6", f"rounds = {ROUNDS}")
    .replace("rounds = 5", f"rounds = {ROUNDS}")
    .replace("checkpoint_every = 2", "checkpoint_every = 7")
    .replace('"multinomial"', '"mine.py:Slow"')
)
SLOW = """
import os, time
from dataclasses import dataclass
from typing import ClassVar

from fedcohort import Recipe
from fedcohort.designs import MultinomialDesign

@dataclass(frozen=True)
class Slow(Recipe):
    name: ClassVar[str] = "slow"

    def design(self, population, known):
        if known.round_ > 0:
            time.sleep(float(os.environ.get("ROUND_SECONDS", 0)))
        return MultinomialDesign(population, self.cohort_size)
"""
#: One round that does not end in the time of a test.
ENDLESS = SMALL.replace("steps = 2", "steps = 200000").replace("seeds = [0, 1]", "seeds = [0]")
KILLS = 4


@pytest.fixture(scope="module")
def long_whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """Return the tables of the long run when nothing happens to it."""
    home = tmp_path_factory.mktemp("whole")
    (home / "mine.py").write_text(SLOW)
    return tables(small_run(home, LONG))


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the long run; a round takes a twentieth of a second and more."""
    (tmp_path / "mine.py").write_text(SLOW)
    monkeypatch.setenv("ROUND_SECONDS", "0.05")
    return tmp_path


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that the process does."""
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def said(process: subprocess.Popen[str], part: str) -> None:
    """Read the process's errors until it says something."""
    assert process.stderr is not None
    for line in process.stderr:
        if part in line:
            return
    pytest.fail(f"it never said {part!r}")


def in_a_round(path: Path) -> bool:
    """Whether a process has begun to train there."""
    return (path / "units" / "000").exists() and (path / "lock").read_text() != ""


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_goes_on_to_the_same_end(
    started: Callable[..., subprocess.Popen[str]],
    long_whole: dict[str, pa.Table],
    slow: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = slow / "run"
    process = started("run", write_file(slow, LONG), "--out", path)
    said(process, " % ")

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)

    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == f"stopped; resume with: fedcohort resume {path}"
    assert "Traceback" not in err
    progress = RunFolder.open(path).progress()
    assert progress.state == "interrupted"
    assert 0 < progress.done < progress.total
    monkeypatch.delenv("ROUND_SECONDS")
    assert run(capsys, "resume", path).code == 0
    assert tables(path) == long_whole


@pytest.mark.slow
def test_kills_change_nothing(
    started: Callable[..., subprocess.Popen[str]],
    long_whole: dict[str, pa.Table],
    slow: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGKILL at random moments of training, checkpoints and tables being written among them."""
    path = make_folder(slow, LONG)
    delays, progress = random.Random(1), []

    for _ in range(KILLS):
        process = started("resume", path)
        for _ in range(2):  # the second line comes a tenth of all rounds later: some are saved
            said(process, " % ")
        time.sleep(delays.uniform(0.0, 0.3))
        process.kill()
        process.wait(timeout=300)
        progress.append(RunFolder.open(path).progress())
    monkeypatch.delenv("ROUND_SECONDS")
    go_on(path)

    assert {each.state for each in progress} == {"interrupted"}
    assert len({each.done for each in progress}) == KILLS
    assert tables(path) == long_whole
    assert [name for name in contents(path) if name.endswith(".part")] == []


def test_a_stop_after_any_round_changes_nothing(
    whole: dict[str, pa.Table], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for rounds in (1, 2, 5, 6, 10):
        path = make_folder(tmp_path_factory.mktemp("stopped"), TWO_UNITS)

        go_on(path, rounds=rounds)
        stopped = RunFolder.open(path).progress()
        go_on(path)

        assert (stopped.state, stopped.done) == ("interrupted", 4 * rounds)
        assert tables(path) == whole


def test_a_stopped_run_goes_on_from_the_round_it_stopped_after(tmp_path: Path) -> None:
    text = SMALL.replace("checkpoint_every = 2", "checkpoint_every = 100")
    path = small_run(tmp_path, text, rounds=5)

    go_on(path)

    assert "unit 0: resumed after round 5" in (path / "log.txt").read_text()


def test_a_stop_in_the_last_round_is_no_stop(tmp_path: Path) -> None:
    path = make_folder(tmp_path, SMALL)

    go_on(path, rounds=6)

    assert RunFolder.open(path).progress().state == "complete"


@pytest.fixture
def busy(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> tuple[subprocess.Popen[str], Path]:
    """Return a process in a round without end, and its folder."""
    path = tmp_path / "busy"
    process = started("run", write_file(tmp_path, ENDLESS), "--out", path)
    until(lambda: in_a_round(path), process)
    return process, path


def test_a_second_ctrl_c_stops_at_once(busy: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = busy
    process.send_signal(signal.SIGINT)
    said(process, "stopping after this round; once more to stop now")

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)

    assert process.returncode == 130
    assert RunFolder.open(path).progress().done == 0  # it did not wait for the round's end
    assert err.splitlines()[-1] == f"stopped; resume with: fedcohort resume {path}"
    assert "Traceback" not in err


def test_one_process_at_a_time(
    busy: tuple[subprocess.Popen[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    process, path = busy

    second, listed = run(capsys, "resume", path), run(capsys, "runs", path)
    process.kill()
    process.wait(timeout=300)
    after = run(capsys, "runs", path)

    assert refused(second, f"{path}: process {process.pid} is running in it. Wait for it,")
    assert "running" in listed.out
    assert "interrupted" in after.out


def test_a_list_of_runs_does_not_keep_a_run_from_beginning(tmp_path: Path) -> None:
    """Looking whether a folder is locked must not lock it."""
    path = make_folder(tmp_path, SMALL)
    folder = RunFolder.open(path)
    execute(folder)

    for _ in range(3):
        assert folder.progress().state == "complete"
        execute(folder)


def test_a_lock_is_held_even_within_one_process(tmp_path: Path) -> None:
    from fedcohort._lock import is_locked, locked

    path = tmp_path / "lock"
    with locked(path, "me"):
        assert is_locked(path)
        with pytest.raises(ExperimentError, match="is running in it") as found, locked(path, "me"):
            pytest.fail("two hold it")

    assert str(found.value).startswith(f"me: process {os.getpid()} is")
    assert not is_locked(path)


def test_resuming_a_complete_run_changes_nothing(
    ran: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = ran()
    before = contents(path)

    result = run(capsys, "resume", path)

    assert result.code == 0
    assert "multinomial" in result.out
    assert "%" not in result.err
    assert contents(path) == before
