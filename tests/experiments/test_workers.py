"""Several workers: the same tables as with one, whoever is killed and whenever."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch

from command_line import refused, run
from fedcohort.errors import ExperimentError
from fedcohort.experiments import FailedUnitsError, Observer, RunFolder, execute, runner
from fedcohort.experiments.runner import Ledger, Outcome
from fedcohort.experiments.workers import _quota, auto_workers, gpu_of, usable_cores
from small_runs import SMALL, contents, go_on, make_folder, small_run, tables, write
from two_nodes import OWN as WAITING
from two_nodes import Gate, until

#: A unit for each seed.
SEEDS = SMALL.replace("cohort_size = 3", "cohort_size = 10").replace("_class = 1", "_class = 2")
FOUR = SEEDS.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3]")
#: So many rounds that a kill comes in the middle of them.
LONG = FOUR.replace("rounds = 6", "rounds = 150").replace("every = 2", "every = 7")
#: Who dies by the model that a unit makes: a worker, since the driver makes no models.
OWN = """
import os, signal
from fedcohort.simulation import mlp

def deadly(dataset, hidden=12):
    os.kill(os.getpid(), signal.SIGKILL)

def broken(dataset):
    raise RuntimeError("no model today")

def greedy(dataset):
    raise MemoryError

def wrong(dataset):
    import fedcohort.simulation.round_loop as module
    module.Simulation.run = None
    return mlp(64, 12)

def talking(dataset):
    print("a model is made")
    return mlp(64, 12)
"""
TWO_PANELS = f"""{SEEDS}
[[panel]]
label = "good"

[[panel]]
label = "bad"
model.name = "mine.py:%s"
"""
KILLS = 10


class Listening(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.work: list[tuple[int, int]] = []
        self.total = (0, 0, 0)
        self.notices: list[str] = []

    def started(self, total: int, done: int, workers: int) -> None:
        self.total = (total, done, workers)

    def advanced(self, work: int, text: str, worker: int) -> None:
        self.work.append((worker, work))

    def began(self, work: int, text: str, worker: int) -> None:
        self.work.append((worker, work))

    def noticed(self, text: str) -> None:
        self.notices.append(text)


@pytest.fixture(scope="module")
def long_whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """Return the tables of the long run with one worker when nothing happens to it."""
    return tables(small_run(tmp_path_factory.mktemp("whole"), LONG))


def own_folder(folder: Path, function: str) -> Path:
    """Make the run folder of two panels, the second with an own model."""
    (folder / "mine.py").write_text(OWN)
    return make_folder(folder, TWO_PANELS % function)


def folder_of_own(folder: Path, text: str, function: str) -> Path:
    """Make the run folder of an experiment whose model is an own one."""
    (folder / "mine.py").write_text(OWN)
    return make_folder(folder, f'{text}[model]\nname = "mine.py:{function}"\n')


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the workers of a driver that live."""
    try:
        text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split() if is_alive(int(pid))]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_worker_computes_on_one_thread_and_restores_torchs_number(tmp_path: Path) -> None:
    class Counting(Observer):
        threads: ClassVar[set[int]] = set()

        def advanced(self, work: int, text: str, worker: int) -> None:
            self.threads.add(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        execute(RunFolder.open(make_folder(tmp_path)), observer=Counting())
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)

    assert Counting.threads == {1}
    assert after == 3


def test_two_workers_fill_the_same_tables_as_one(tmp_path: Path) -> None:
    """Grids among them: a panel's runs wait for its trials."""
    text = f"{FOUR}[[panel]]\nlabel = 'tuned'\ntraining.lr = [0.1, 1e30]\n[[panel]]\nlabel = 'b'\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, path = small_run(tmp_path / "one", text), make_folder(tmp_path / "two", text)
    heard = Listening()

    execute(RunFolder.open(path), workers=2, observer=heard)

    assert tables(path) == tables(one)
    assert RunFolder.open(path).progress().state == "complete"
    assert {worker for worker, _ in heard.work} == {0, 1}
    assert heard.total == (sum(work for _, work in heard.work), 0, 2)
    log = (path / "log.txt").read_text()
    assert [log.count(f"unit {k}: done") for k in range(10)] == [1, 0, *[1] * 8]
    assert set(contents(path)) == set(contents(one))


def test_a_run_of_two_workers_goes_on_with_one_and_of_one_with_two(tmp_path: Path) -> None:
    whole = tables(small_run(tmp_path, FOUR))
    (tmp_path / "again").mkdir()
    path = make_folder(tmp_path / "again", FOUR)

    go_on(path, rounds=9)
    execute(RunFolder.open(path), workers=2)

    assert tables(path) == whole


def test_more_workers_than_units_are_not_started_and_may_print(tmp_path: Path) -> None:
    """What the user's code prints does not disturb what a worker says to the driver."""
    path, heard = folder_of_own(tmp_path, SEEDS, "talking"), Listening()

    execute(RunFolder.open(path), workers=9, observer=heard)

    assert heard.total[2] == 2
    assert {worker for worker, _ in heard.work} == {0, 1}
    assert RunFolder.open(path).progress().state == "complete"


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "all"])
def test_a_number_of_workers_that_is_none_is_refused(workers: object, tmp_path: Path) -> None:
    path = make_folder(tmp_path)
    before = contents(path)

    with pytest.raises(ExperimentError, match="workers must be at least 1 or 'auto'; got "):
        execute(RunFolder.open(path), workers=workers)  # type: ignore[arg-type]

    assert contents(path) == before


@pytest.mark.slow
def test_kills_of_workers_change_nothing(
    started: Callable[..., subprocess.Popen[str]],
    long_whole: dict[str, pa.Table],
    tmp_path: Path,
) -> None:
    """SIGKILL at random moments: at the start, in training, while files are written."""
    moments, kills, said = random.Random(1), 0, ""
    while kills < KILLS:
        (home := tmp_path / str(kills)).mkdir()
        path = make_folder(home, LONG)
        process = started("resume", path, "--workers", 2)
        while process.poll() is None and kills < KILLS:
            time.sleep(moments.uniform(0.1, 3.0))
            if victims := workers_of(process):
                with suppress(ProcessLookupError):
                    os.kill(moments.choice(victims), signal.SIGKILL)
                    kills += 1
        _, err = process.communicate(timeout=300)
        said += err

        assert process.returncode == (2 if " units failed (" in err else 0), err
        go_on(path)
        assert tables(path) == long_whole

    assert said.count("was killed by signal 9") >= KILLS - 2


@pytest.mark.slow
def test_kills_of_the_driver_change_nothing(
    started: Callable[..., subprocess.Popen[str]],
    long_whole: dict[str, pa.Table],
    tmp_path: Path,
) -> None:
    """Its workers end with it, and the next driver begins at once."""
    folder = RunFolder.open(make_folder(tmp_path, LONG))
    path, moments, progress = folder.path, random.Random(2), [0]
    for kill in range(KILLS):
        process = started("resume", path, "--workers", 2)
        if kill % 2:  # in training, else at the start
            while process.poll() is None and folder.progress().done == progress[-1]:
                time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.3 if kill % 2 else 4.0))
        workers = workers_of(process)
        process.kill()
        process.wait(timeout=300)
        until(lambda workers=workers: not any(map(is_alive, workers)), 300)  # type: ignore[misc]
        progress.append(folder.progress().done)
    execute(RunFolder.open(path), workers=2)

    assert progress == sorted(progress)
    assert len(set(progress)) > 2
    assert tables(path) == long_whole
    assert [name for name in contents(path) if name.endswith(".part")] == []


@pytest.mark.slow
def test_nobody_resumes_while_a_worker_survives_its_driver(
    started: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A worker that is stopped cannot notice that its driver is gone; it holds the lock."""
    path = make_folder(tmp_path, LONG)
    process = started("resume", path, "--workers", 2)
    until(lambda: len(workers_of(process)) == 2, 300)
    workers = workers_of(process)
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait(timeout=300)

    try:
        second = run(capsys, "resume", path)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    until(lambda: not any(map(is_alive, workers)), 300)

    assert refused(second, f"{path}: process {process.pid} is running in it. Wait for it,")
    assert RunFolder.open(path).progress().state == "interrupted"


@pytest.mark.slow
def test_ctrl_c_stops_all_workers_after_their_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a terminal does it: the signal goes to the whole group."""
    once, gate = tmp_path / "once", Gate(tmp_path / "gate")
    once.mkdir()
    for home in (tmp_path, once):
        (home / "mine.py").write_text(WAITING)
    monkeypatch.setenv("GATE", str(gate.path))
    text = LONG.replace('"multinomial"', '"mine.py:Waiting"')
    path = make_folder(tmp_path, text)
    gate.set("ajar")
    command = [sys.executable, "-m", "fedcohort", "resume", str(path), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: gate.n_waiting() == 2, 300)

    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    gate.set("open")

    assert process.returncode == 130
    assert err.splitlines()[-1] == f"stopped; resume with: fedcohort resume {path}"
    assert "Traceback" not in err
    assert "unit" not in "".join(err.splitlines()[1:])
    assert RunFolder.open(path).progress().state == "interrupted"
    assert "stopped after round" in (path / "log.txt").read_text()
    assert run(capsys, "resume", path, "--workers", "auto").code == 0
    assert tables(path) == tables(small_run(once, text))


@pytest.mark.slow
def test_a_unit_that_always_dies_fails_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own_folder(tmp_path, "deadly")

    result = run(capsys, "resume", path, "--workers", 2)

    *notices, last = [line for line in result.err.splitlines() if "unit" in line][1:]
    assert result.code == 2
    assert "good: 6 rounds, 2 seeds" in result.out
    why = "was killed by signal 9 (as the system does when memory runs out)"
    assert sorted(notices) == sorted(
        line
        for unit in (2, 3)
        for line in (
            *(f"unit {unit}: its worker {why}; starting it again ({k} of 3)" for k in (1, 2, 3)),
            f"unit {unit}: failed: its worker died 4 times, and the last one {why}",
        )
    )
    assert last.startswith(f"fedcohort: {path}: 2 of 4 units failed (unit ")
    assert last.endswith(f"What is done is kept. Try again with: fedcohort resume {path}")
    assert "failed" in run(capsys, "runs", path).out
    assert run(capsys, "report", path).code == 0
    assert run(capsys, "export", path, "--csv").code == 0

    code = path / "code" / "mine.py"
    code.write_text(OWN.replace("os.kill(os.getpid(), signal.SIGKILL)", "return mlp(64, hidden)"))
    assert run(capsys, "resume", path, "--workers", 2).code == 0
    assert RunFolder.open(path).progress().state == "complete"
    assert list(path.rglob("failed.txt")) == []


@pytest.mark.slow
def test_units_that_wait_for_a_failed_one_do_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RESTARTS", 0)
    path = folder_of_own(tmp_path, SEEDS.replace("lr = 0.1", "lr = [0.1, 0.2]"), "deadly")

    with pytest.raises(FailedUnitsError, match=r"2 of 4 units failed .* 2 that need them did not"):
        execute(RunFolder.open(path), workers=2)


@pytest.mark.parametrize("function", ["broken", "greedy"])
def test_an_error_in_a_worker_is_the_sentence_of_one_worker(
    function: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    file = write(tmp_path, f'{SEEDS}[model]\nname = "mine.py:{function}"\n')
    out = tmp_path / "run"

    one = run(capsys, "run", file, "--out", out)
    two = run(capsys, "run", file, "--out", out, "--workers", 2)

    assert refused(one, "mine.py:")
    assert refused(two)
    assert two.err == one.err
    assert not out.exists()


def test_a_bug_in_a_worker_has_its_traceback(tmp_path: Path) -> None:
    path = own_folder(tmp_path, "wrong")

    with pytest.raises(RuntimeError, match=r"(?s)a worker failed:\n.*TypeError: 'NoneType'"):
        execute(RunFolder.open(path), workers=2)


def test_one_worker_per_gpu_or_per_core_and_not_more_than_units() -> None:
    assert auto_workers(10, cores=4, gpus=0) == 4
    assert auto_workers(3, cores=4, gpus=0) == 3
    assert auto_workers(10, cores=64, gpus=1) == 1
    assert auto_workers(10, cores=64, gpus=8) == 8
    assert auto_workers(2, cores=64, gpus=8) == 2
    assert auto_workers(0, cores=4, gpus=0) == 1


def test_workers_take_gpus_in_turn() -> None:
    assert [gpu_of(k, 0, None) for k in range(3)] == [None] * 3
    assert [gpu_of(k, 1, "3") for k in range(3)] == [None] * 3
    assert [gpu_of(k, 2, None) for k in range(5)] == ["0", "1", "0", "1", "0"]
    assert [gpu_of(k, 3, "") for k in range(3)] == ["0", "1", "2"]
    assert [gpu_of(k, 2, "GPU-a, 7") for k in range(3)] == ["GPU-a", "7", "GPU-a"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000\n"}, sys.maxsize),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, sys.maxsize),
        ({"cpu.max": "nonsense"}, sys.maxsize),
        ({}, sys.maxsize),
    ],
)
def test_a_control_group_limits_the_cores(
    files: dict[str, str], cores: int, tmp_path: Path
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    assert _quota(tmp_path) == cores
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_a_ledger_gives_every_unit_once_and_trials_first(tmp_path: Path) -> None:
    text = SEEDS.replace("lr = 0.1", "lr = [0.1, 0.2]")
    folder = RunFolder.open(make_folder(tmp_path, text))
    units = folder.units
    units[0].record_end("diverged", "it is done")
    ledger = Ledger(folder, Observer(), None)

    first, waiting = ledger.take(), ledger.take()
    ledger.settle(units[1], Outcome())
    rest = [ledger.take() for _ in range(3)]

    assert (first, waiting) == (units[1], None)
    assert rest == [units[2], units[3], None]
    ledger.settle(units[2], Outcome(crash="vanished"))
    assert ledger.take() is units[2]
    ledger.settle(units[2], Outcome(is_stopped=True))
    assert (ledger.left, ledger.take()) == ([units[2]], None)
    with pytest.raises(KeyboardInterrupt):
        ledger.close()


def test_a_unit_fails_after_too_many_crashes_whatever_runs_it(tmp_path: Path) -> None:
    folder = RunFolder.open(make_folder(tmp_path, SEEDS))
    ledger = Ledger(folder, Observer(), None)
    n_units = len(ledger.left)

    for _ in range(runner.RESTARTS + 1):
        unit = ledger.take()
        assert unit is folder.units[0]
        ledger.settle(unit, Outcome(crash="vanished"))

    assert folder.units[0].ended("failed")
    assert len(ledger.left) == n_units - 1
    with pytest.raises(FailedUnitsError, match=r"unit 0: its worker died 4 times, .* vanished\)"):
        ledger.close()
