"""fedcohort run and resume."""

import json
import os
import pty
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort.experiments import read_results
from fedcohort.experiments.progress import Watcher
from small_runs import SMALL, TWO_UNITS, contents, make_folder, small_run, tables, write

DIGITS = Path(__file__).parents[2] / "experiments" / "digits.toml"


def test_a_run_goes_into_a_folder_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path)

    first, second = run(capsys, "run", file), run(capsys, "run", file)

    assert first.out.endswith("\nrun folder: runs/small\n")
    assert second.out.endswith("\nrun folder: runs/small-2\n")
    assert tables(Path("runs/small")) == tables(Path("runs/small-2"))


def test_the_command_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/fedcohort", "run", "a file.toml"])

    run(capsys, "run", write(tmp_path), "--out", tmp_path / "run")

    head = json.loads((tmp_path / "run" / "run.json").read_text())
    assert head["command"] == "fedcohort run 'a file.toml'"


def test_options_change_what_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    options = ("--seeds", "7", "--designs", "similarity", "--panels", "fast", "--device", "cpu")

    run(
        capsys,
        *("run", write(tmp_path, TWO_UNITS), "--out", path, *options),
        *("--set", "rounds=2", "--set", "training.lr=0.3"),
    )

    (panel,) = json.loads((path / "run.json").read_text())["experiment"]["panels"]
    assert (panel["label"], panel["seeds"], panel["rounds"]) == ("fast", [7], 2)
    assert panel["training"]["lr"] == 0.3
    (rounds,) = [table for name, table in tables(path).items() if name.endswith("rounds.parquet")]
    assert rounds["design"].to_pylist() == ["similarity"] * 2


@pytest.mark.parametrize(
    ("old", "new", "options"),
    [
        ("rounds = 6", "rouns = 6", ()),
        ('"digits"', '"digitz"', ()),
        ("train_size = 20", "train_size = 2000", ()),
        ('"similarity"', '"similarty"', ()),
        ('"similarity"', '"similarity"\nmeasure = "l3"', ()),
        ('"similarity"', '"none.py:Mine"', ()),
        ("", "", ("--seeds", "x")),
        ("", "", ("--seeds", "99999999999999999999")),
        ("", "", ("--set", "lr=0.1")),
        ("", "", ("--set", "model.name=cnn")),
        ("", "", ("--designs", "sise")),
        ("", "", ("--panels", "sise")),
        ("", "", ("--device", "gpu")),
        ("", "", ("--workers", "0")),
        ("", "", ("--workers", "all")),
        ("", "", ("--workers", "-1")),
        ("", "", ("--workers", "1.5")),
        ("", "", ("--tracker", "tensorbord")),
    ],
)
def test_nothing_is_made_of_bad_input(
    old: str,
    new: str,
    options: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(tmp_path, SMALL.replace(old, new) if old else SMALL)
    before = contents(tmp_path)

    result = run(capsys, "run", file, "--out", tmp_path / "run", *options)

    assert refused(result)
    assert not (tmp_path / "run").exists()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("out", ["x" * 300, "small.toml/x"])
def test_an_impossible_folder_is_one_sentence(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "run", write(tmp_path), "--out", tmp_path / out)

    assert refused(result, "cannot be written", "--out")


def test_diverging_training_goes_on_and_the_table_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"

    result = run(capsys, "run", write(tmp_path), "--out", path, "--set", "training.lr=1e30")

    assert result.code == 0
    said = " ".join(result.out.split())
    assert "multinomial diverged in 2 of 2 seeds, from round 1 on; lower lr or server_lr" in said
    assert "nan" not in said
    assert "never" not in said
    costs = run(capsys, "compare", path, "--plot", tmp_path / "costs.png")
    assert "there is no loss to reach, since multinomial has no final loss" in costs.out
    assert (costs.code, "nan" in costs.out, "never" in costs.out) == (0, False, False)
    (panel,) = json.loads(run(capsys, "compare", path, "--json").out, parse_constant=pytest.fail)
    assert panel["level"] is None


def test_the_share_of_lost_updates_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"

    result = run(capsys, "run", write(tmp_path), "--out", path, "--set", "server.failures=0.25")

    rounds = read_results(path).tables["rounds"].to_pylist()
    own = [each for each in rounds if each["design"] == "multinomial"]
    lost = sum(each["failed_clients"] for each in own)
    arrived = sum(each["distinct_clients"] for each in own)
    assert 0 < lost < arrived
    assert f"not finite: multinomial {100 * lost / (lost + arrived):.2g} %" in result.out


def test_where_every_update_is_lost_the_share_is_100_per_cent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(
        capsys, "run", write(tmp_path), "--out", tmp_path / "run", "--set", "server.failures=1.0"
    )

    assert "not finite: multinomial 100 %, similarity 100 %" in " ".join(result.out.split())


def test_a_pipe_gets_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "run", write(tmp_path, TWO_UNITS), "--out", tmp_path / "run")

    plan, *lines = result.err.splitlines()
    form = r" *(\d+) % (slow|fast), seeds 0-1: round \d of [56](; (about )?\d+ (s|min) left)?"
    matches = [re.fullmatch(form, line) for line in lines]
    percents = [int(match[1]) for match in matches if match is not None]
    assert len(percents) == len(lines) >= 8
    assert percents == sorted(set(percents))
    assert (percents[-1], lines[-1]) == (100, "100 % fast, seeds 0-1: round 5 of 5")
    assert plan == "plan: 2 units of 4 runs (12 clients together); 1 worker"
    assert "\x1b" not in result.err + result.out


def test_a_long_run_says_no_more_than_ten_lines_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watcher = Watcher("10 units")
    watcher.started(1000, 0, 2)
    watcher.began(0, "round 0 of 1000", 0)
    for done in range(1000):
        watcher.advanced(1, f"round {done + 1} of 1000", done % 2)
    watcher.close()

    plan, *lines = capsys.readouterr().err.splitlines()

    assert plan == "plan: 10 units; 2 workers"
    assert [line.split("%")[0].strip() for line in lines] == [str(10 * k) for k in range(1, 11)]


def test_the_time_left_does_not_count_what_was_done_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half was in a checkpoint; a tenth took ten seconds: four tenths are left."""
    clock = [0.0]
    monkeypatch.setattr("fedcohort.experiments.progress.time.perf_counter", lambda: clock[0])
    watcher = Watcher("1 unit")
    watcher.started(100, 50, 1)
    clock[0] = 10.0

    watcher.advanced(10, "round 6 of 10", 0)
    watcher.close()

    assert capsys.readouterr().err == " 60 % round 6 of 10; 40 s left\n"


def test_a_resumed_run_says_how_long_the_rest_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rounds of the checkpoint took no time now, so the first line cannot tell yet."""
    path = small_run(tmp_path, SMALL.replace("rounds = 6", "rounds = 40"), rounds=20)

    lines = run(capsys, "resume", path).err.splitlines()

    assert lines[1] == " 50 % small, seeds 0-1: round 20 of 40"


def test_work_that_a_dead_worker_lost_is_counted_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watcher = Watcher("1 unit")
    watcher.started(10, 0, 2)
    for done in range(5):
        watcher.advanced(1, f"round {done + 1}", 1)
    watcher.began(-3, "round 2", 1)
    for done in range(2, 10):
        watcher.advanced(1, f"round {done + 1}", 1)
    watcher.close()

    lines = [line for line in capsys.readouterr().err.splitlines() if "%" in line]

    assert [line.split("%")[0].strip() for line in lines] == [str(10 * k) for k in range(1, 11)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_terminal_gets_a_bar_and_a_line_for_each_of_several_workers(
    workers: str, tmp_path: Path
) -> None:
    master, slave = pty.openpty()
    file, out_folder = write(tmp_path, TWO_UNITS), tmp_path / "run"
    command = ["fedcohort", "run", str(file), "-o", str(out_folder), "--workers", workers]
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(slave)
    shown = bytearray()
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        shown += part
    os.close(master)
    out, _ = process.communicate(timeout=60)

    text = shown.decode()
    assert process.returncode == 0
    assert "\x1b[" in text
    assert "━" in text
    assert "left" not in text
    for line in ("worker 1  slow, seeds 0-1: round", "worker 2  fast, seeds 0-1: round"):
        assert (line in text) is (workers == "2")
    assert b"\x1b" not in out


def test_the_summary_fits_80_columns_and_names_every_design(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a design with quite a long label of its own"
    text = SMALL.replace('"similarity"', f'"similarity"\nlabel = "{long}"')
    options = ("--seeds", "0-2", "--set", "title=Some digits")

    result = run(capsys, "run", write(tmp_path, text), "--out", tmp_path / "run", *options)

    lines = result.out.splitlines()
    table = lines[: next(k for k, line in enumerate(lines) if line.startswith("run folder"))]
    assert max(map(len, table)) <= 80
    assert "Some digits: 6 rounds, 3 seeds" in lines
    cells = [
        line[:20] for line in lines if not line.startswith(("rounds needed", "smoothed", "final"))
    ]
    joined = "".join("".join(cells).split())
    assert "multinomial" in joined
    for word in long.split():
        assert word in joined
    assert any(line.startswith("multinomial") and "baseline" in line for line in lines)
    assert any(line.startswith("difference     to multinomial") for line in lines)


def test_the_summary_of_the_digits_preset_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", "rounds=2", "--set", "training.steps=1")

    result = run(capsys, "run", DIGITS, "--out", tmp_path / "run", *options)

    lines = result.out.splitlines()
    assert result.code == 0
    assert max(len(line) for line in lines if not line.startswith("run folder")) <= 80
    for name in ("uniform,", "cohort-mean", "multinomial", "size", "similarity", "target"):
        assert any(line.startswith(name) for line in lines)


def test_every_panel_has_a_table(
    ran: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, "resume", ran(TWO_UNITS)).out.splitlines()

    assert [line for line in lines if " rounds, " in line] == [
        "slow: 6 rounds, 2 seeds",
        "fast: 5 rounds, 2 seeds",
    ]


def test_paths_in_commands_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "my runs"
    home.mkdir()
    path = make_folder(home)

    again = run(capsys, "run", write(tmp_path), "--out", path)
    export = run(capsys, "export", path, "--csv")

    assert refused(again, f"fedcohort resume '{path}'")
    assert refused(export, f"fedcohort resume '{path}'")


@pytest.mark.parametrize(
    "change",
    [
        "training.lr=1e308",
        "training.weight_decay=1e308",
        "training.mu=1e308",
        "training.batch_size=9223372036854775808",
        "training.steps=9223372036854775807",
        'model={name="mlp", hidden=100000000000}',
        "server.sketch=9223372036854775807",
        "server.server_lr=1e308",
        "data.clients_per_class=9223372036854775807",
        "rounds=9223372036854775808",
    ],
)
def test_a_number_that_no_machine_can_use_leaves_nothing_behind(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path)

    result = run(capsys, "run", file, "--out", tmp_path / "run", "--set", change)

    assert refused(result, str(file))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change", ['model={name="mlp", hidden=1000000000}', "training.batch_size=1000000000"]
)
def test_a_run_that_needs_more_memory_than_there_is_leaves_nothing_behind(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some 256 GB; the process may have 8 more than it has."""
    with at_most(8 * 2**30):
        result = run(capsys, "run", write(tmp_path), "--out", tmp_path / "run", "--set", change)

    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("fedcohort: ")
    assert "needs more memory than there is" in result.err
    assert not (tmp_path / "run").exists()


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """Allow the process so many bytes of memory more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
