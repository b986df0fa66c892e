"""Parts: shares of an experiment in folders of their own, which are merged into one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import Result, refused, run
from fedcohort.errors import ExperimentError
from fedcohort.experiments import RunFolder, merge_runs, read_experiment
from fedcohort.experiments.units import Part, needed_by, plan_units, shared_units
from small_runs import (
    SMALL,
    contents,
    go_on,
    small_run,
    tables,
    truncate,
    whole_folder,
    without_times,
    write,
)

#: A unit for each of three seeds; a grid of two points is tried on a seed of the first panel.
TEXT = f"""{SMALL.replace("size = 3", "size = 10").replace("rounds = 6", "rounds = 4")}
[[panel]]
label = "tuned"
training.lr = [0.1, 1e30]
seeds = [0, 1]

[[panel]]
label = "plain"
seeds = [0]
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of everything in one folder."""
    return small_run(tmp_path_factory.mktemp("whole"), TEXT)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the experiment file, for what only reads it."""
    return write(tmp_path_factory.mktemp("file"), TEXT)


@given(seeds=st.integers(1, 4), only_trials=st.booleans(), of=st.integers(1, 4))
def test_parts_have_every_unit_once_and_the_trials_that_it_needs(
    file: Path, seeds: int, only_trials: bool, of: int
) -> None:
    units = plan_units(read_experiment(file, seeds=f"0-{seeds - 1}"), "cpu")
    shared = shared_units(units, only_trials=only_trials)
    if of > len(shared):
        with pytest.raises(ExperimentError, match="Use at most that many parts"):
            Part(1, of, only_trials).chosen(units)
        return

    chosen = [Part(k + 1, of, only_trials).chosen(units) for k in range(of)]

    own = [shared_units(each, only_trials=only_trials) for each in chosen]
    assert sorted(unit.number for each in own for unit in each) == [u.number for u in shared]
    assert max(map(len, own)) - min(map(len, own)) <= 1
    for each in chosen:
        numbers = {unit.number for unit in each}
        assert all(need.number in numbers for unit in each for need in needed_by(unit, units))


def test_parts_that_stop_and_go_on_equal_one_run(
    one_worker: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The same command begins a part and goes on with it; each part tries the grid by itself."""
    file, paths = write(tmp_path, TEXT), [tmp_path / "1", tmp_path / "2"]
    for number, path in enumerate(paths, start=1):
        RunFolder.create(
            path,
            read_experiment(file),
            source=file,
            device="cpu",
            command=["run"],
            part=Part(number, 2),
        )
    go_on(paths[0], rounds=5)

    results = [
        run(capsys, "run", file, "--part", f"{k}/2", "--out", path, "--device", "cpu")
        for k, path in enumerate(paths, start=1)
    ]
    listed = run(capsys, "runs", tmp_path)
    merged = run(capsys, "merge", *reversed(paths), "--out", tmp_path / "all")

    assert [result.code for result in (*results, merged)] == [0, 0, 0]
    assert listed.out.count("complete (part ") == 2
    assert without_times(tmp_path / "all") == without_times(one_worker)
    assert whole_folder(tmp_path / "all") == whole_folder(one_worker)
    assert RunFolder.open(tmp_path / "all").progress().state == "complete"


def test_trials_are_shared_too_and_parts_take_them(
    one_worker: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path, TEXT)
    common = ("run", file, "--device", "cpu")

    for k in (1, 2):
        out = tmp_path / "trials" / str(k)
        run(capsys, *common, "--only-trials", "--part", f"{k}/2", "--out", out)
    truncate(tmp_path / "trials" / "1" / "units" / "000" / "rows.parquet")
    for k in (1, 2, 3):
        out = tmp_path / "parts" / str(k)
        taken = ("--trials-from", tmp_path / "trials")
        assert run(capsys, *common, *taken, "--part", f"{k}/3", "--out", out).code == 0
    logs = [(tmp_path / "parts" / str(k) / "log.txt").read_text() for k in (1, 2, 3)]
    folder, notes = merge_runs([tmp_path / "parts" / str(k) for k in (1, 2, 3)], tmp_path / "all")

    assert notes == []
    assert tables(folder.path) == tables(one_worker)
    # The first trial was damaged, so it ran again; the other one diverged and was taken.
    assert ["unit 0: done" in log for log in logs] == [True, True, False]
    assert not any("unit 1:" in log for log in logs)


def test_a_folder_of_another_part_or_experiment_is_refused(tmp_path: Path, capsys: Capture) -> None:
    file, out = write(tmp_path, TEXT), tmp_path / "1"
    assert run(capsys, "run", file, "--part", "1/3", "--out", out, "--device", "cpu").code == 0
    before = contents(out)

    def again(*options: object) -> Result:
        return run(capsys, "run", file, "--out", out, "--device", "cpu", *options)

    assert refused(again("--part", "2/3"), "must hold part 2/3 of this", "it holds part 1/3 on cpu")
    changed = again("--part", "1/3", "--set", "training.lr=0.3")
    assert refused(changed, "it holds another experiment on cpu. Choose another folder")
    assert refused(again(), "holds a run already")
    assert contents(out) == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--part", "4/3"], "--part: must be K/N with K from 1 to N, as 3/16; got '4/3'."),
        (["--part", "0/3"], "must be K/N"),
        (["--part", "all"], "got 'all'. Write it so."),
        (["--part", "1/4"], "part 1/4: the experiment has 3 units of work to share."),
        (["--part", "1/3", "--only-trials"], "trials 1/3: the experiment has 2 trials of work"),
        (["--only-trials"], "--only-trials needs --part; got none. Pass --part 1/1 for all."),
        (["--trials-from", "."], "its trials are of another experiment than"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    options: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, TEXT)
    if "--trials-from" in options:
        small_run(tmp_path)
        write(tmp_path, TEXT)
    before = set(contents(tmp_path))

    result = run(capsys, "run", "small.toml", "--device", "cpu", *options)

    assert refused(result, sentence)
    assert set(contents(tmp_path)) == before


def test_a_merge_names_the_parts_that_are_missing(tmp_path: Path, capsys: Capture) -> None:
    file = write(tmp_path, TEXT)
    run(capsys, "run", file, "--part", "2/3", "--out", tmp_path / "2", "--device", "cpu")

    result = run(capsys, "merge", tmp_path / "2", "--out", tmp_path / "all")

    assert refused(result, "merge: of 3 parts, these are missing: 1, 3. Run each with --part K/3,")
    assert not (tmp_path / "all").exists()


def test_a_part_that_was_killed_while_its_folder_was_made_begins_again(
    tmp_path: Path, capsys: Capture
) -> None:
    file, unfinished = write(tmp_path, TEXT), tmp_path / "runs" / ".small-part-3-of-3.part"
    (unfinished / "units").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        result = run(capsys, "run", file, "--part", "3/3", "--device", "cpu")

    assert result.code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["small-part-3-of-3"]
