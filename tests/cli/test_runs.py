"""fedcohort runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import Result, refused, run
from fedcohort._lock import locked
from fedcohort.cli.runs import worded_time
from small_runs import make_folder, truncate


def lines_of(result: Result) -> list[list[str]]:
    """Return the words of every line of the table below its head."""
    return [line.split() for line in result.out.splitlines()[2:]]


def test_runs_are_listed_with_their_states(
    ran: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).mkdir()
    ran(home=tmp_path / "a")
    ran(home=tmp_path / "b", rounds=3)
    make_folder(tmp_path / "c")
    truncate(ran(home=tmp_path / "d") / "units" / "000" / "rounds.parquet")
    running = make_folder(tmp_path / "e")
    together = tmp_path / "runs"
    together.mkdir()
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name / "run").rename(together / name)
    (together / "other").mkdir()
    monkeypatch.chdir(tmp_path)

    with locked(together / "e" / "lock", str(running)):
        result = run(capsys, "runs")

    assert [line[:3] for line in lines_of(result)] == [
        ["runs/a", "complete", "24/24"],
        ["runs/b", "interrupted", "12/24"],
        ["runs/c", "interrupted", "0/24"],
        ["runs/d", "damaged", "0/24"],
        ["runs/e", "running", "0/24"],
    ]
    assert {line[-1] for line in lines_of(result)} == {"cpu"}
    assert result.code == 0


def test_an_unreadable_run_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    truncate(make_folder(tmp_path / "a") / "run.json")
    make_folder(tmp_path / "b")
    (tmp_path / "a" / "run").rename(tmp_path / "x")
    (tmp_path / "b" / "run").rename(tmp_path / "y")

    result = run(capsys, "runs", tmp_path)

    assert result.code == 0
    assert "unreadable" in result.out
    assert "interrupted" in result.out
    assert f"{tmp_path / 'x' / 'run.json'}: is damaged" in result.out


def test_one_run_can_be_asked_for(
    ran: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "runs", ran())

    assert "complete" in result.out
    assert len(result.out.splitlines()) >= 3


def test_the_time_is_the_time_of_computing(ran: Callable[..., Path]) -> None:
    """All runs of a unit train at once: their common time counts once."""
    from fedcohort.experiments import RunFolder, read_results

    path = ran()
    lines = read_results(path).tables["rounds"].to_pylist()

    seconds = RunFolder.open(path).progress().seconds

    own = sum(line["draw_seconds"] + line["measure_seconds"] for line in lines)
    together = sum(line["train_seconds"] for line in lines if line["seed"] == 0) / 2
    assert seconds == pytest.approx(own + together, rel=1e-9)


def test_a_folder_without_runs_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "runs", tmp_path)

    assert refused(result, f"{tmp_path} holds no runs. Make one with: fedcohort run")
    assert refused(run(capsys, "runs", tmp_path / "none"), "holds no runs")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (3599, "1 h 00 min"), (90000, "25 h 00 min")],
)
def test_times_are_worded(seconds: float, words: str) -> None:
    assert worded_time(seconds) == words
