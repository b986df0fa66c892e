"""Folders that are damaged or not ours: a clear sentence, and nothing is lost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import Result, refused, run
from fedcohort.experiments import RunFolder
from fedcohort.experiments.tables import is_whole
from small_runs import TWO_UNITS, contents, tables, truncate, write

UNIT_TABLES = [f"units/000/{name}.parquet" for name in ("rounds", "cohorts", "rows")]
LAST_TABLES = [f"units/000/{name}.parquet" for name in ("laws", "trees")]
Folders = Callable[[str], Path]
Restores = Callable[[Path, str], None]
#: A complete run, one stopped in its second unit and one stopped in its first.
ROUNDS = {"complete": None, "interrupted": 9, "begun": 3}


@pytest.fixture
def copy_of(ran: Callable[..., Path]) -> Folders:
    """Return what makes a run that may be damaged."""
    return lambda state: ran(TWO_UNITS, rounds=ROUNDS[state])


@pytest.fixture
def assert_restores(whole: dict[str, pa.Table], capsys: pytest.CaptureFixture[str]) -> Restores:
    """Return what checks that commands name a damaged table, and that a resume restores it."""

    def check(path: Path, table: str) -> None:
        report = run(capsys, "report", path, "--out", path.parent / "report.html")
        export = run(capsys, "export", path, "--csv", "--out", path.parent / "export")
        resumed = run(capsys, "resume", path)

        for result in (report, export):
            way_out = f"Run: fedcohort resume {path}\n"
            assert refused(result, f"{path / table}: is damaged", way_out)
        assert not (path.parent / "report.html").exists()
        assert resumed.code == 0
        assert tables(path) == whole

    return check


def corrupt(path: Path) -> None:
    """Overwrite the middle of a file; its two ends stay as they are."""
    content = bytearray(path.read_bytes())
    content[8 : len(content) // 4] = bytes(len(content) // 4 - 8)
    path.write_bytes(content)


def flip(path: Path, place: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(bytes(content))


def all_commands(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Result]:
    return {
        "resume": run(capsys, "resume", path),
        "report": run(capsys, "report", path),
        "export": run(capsys, "export", path, "--csv"),
    }


@pytest.mark.parametrize(
    ("state", "table"),
    [
        *(("complete", table) for table in (*UNIT_TABLES, *LAST_TABLES, "federations.parquet")),
        *(("interrupted", table) for table in (*UNIT_TABLES, *LAST_TABLES, "federations.parquet")),
        *(("begun", table) for table in (*UNIT_TABLES, "federations.parquet")),
    ],
)
def test_a_half_written_table_is_named_and_restored(
    table: str, state: str, copy_of: Folders, assert_restores: Restores
) -> None:
    path = copy_of(state)

    truncate(path / table)

    assert_restores(path, table)


@pytest.mark.parametrize("table", [*UNIT_TABLES, *LAST_TABLES, "federations.parquet"])
def test_a_damaged_run_is_listed_as_such(table: str, copy_of: Folders) -> None:
    path = copy_of("complete")
    truncate(path / table)

    assert RunFolder.open(path).progress().state == "damaged"


@pytest.mark.parametrize("table", ["units/000/rounds.parquet", "federations.parquet"])
def test_a_table_damaged_in_the_middle_is_restored_too(
    table: str, copy_of: Folders, assert_restores: Restores
) -> None:
    path = copy_of("complete")

    corrupt(path / table)

    assert_restores(path, table)


@pytest.mark.parametrize("table", [*UNIT_TABLES, *LAST_TABLES, "federations.parquet"])
def test_a_flipped_bit_is_found_wherever_it_is(table: str, copy_of: Folders) -> None:
    path = copy_of("complete") / table
    places = range(0, path.stat().st_size, max(1, path.stat().st_size // 40))

    for place in places:
        flip(path, place)

        assert not is_whole(path), place
        flip(path, place)
    assert is_whole(path)


@pytest.mark.parametrize("state", ["complete", "interrupted"])
@pytest.mark.parametrize("table", ["federations.parquet", "units/000/cohorts.parquet"])
def test_a_flipped_bit_is_named_and_does_not_survive_a_resume(
    table: str, state: str, copy_of: Folders, assert_restores: Restores
) -> None:
    path = copy_of(state)

    flip(path / table, (path / table).stat().st_size // 3)

    assert_restores(path, table)


def test_damaged_sums_are_made_anew(
    whole: dict[str, pa.Table], copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    for sums in path.rglob("checksums.json"):
        truncate(sums)

    assert refused(run(capsys, "report", path), "checksums.json", f"fedcohort resume {path}\n")
    assert run(capsys, "resume", path).code == 0
    assert run(capsys, "report", path).code == 0
    assert tables(path) == whole


def test_a_folder_of_before_there_were_sums_is_read(
    copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    for sums in path.rglob("checksums.json"):
        sums.unlink()

    assert RunFolder.open(path).progress().state == "complete"
    assert run(capsys, "report", path).code == 0


@pytest.mark.parametrize("table", [*UNIT_TABLES, *LAST_TABLES, "federations.parquet"])
@pytest.mark.parametrize("state", ["complete", "interrupted"])
def test_a_report_on_a_folder_without_a_table_is_one_sentence(
    state: str, table: str, copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of(state)
    (path / table).unlink()

    report = run(capsys, "report", path, "--out", path.parent / "report.html")

    assert refused(report, str(path), f"Run: fedcohort resume {path}\n")
    assert not (path.parent / "report.html").exists()


@pytest.mark.parametrize("table", [*UNIT_TABLES, *LAST_TABLES, "federations.parquet"])
def test_a_folder_in_the_place_of_a_table_is_one_sentence(
    table: str, copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    (path / table).unlink()
    (path / table).mkdir()

    assert refused(run(capsys, "report", path), f"{path / table}: is damaged or missing")


@pytest.mark.parametrize("table", [*UNIT_TABLES, *LAST_TABLES, "federations.parquet"])
def test_a_missing_table_is_written_again(
    table: str,
    whole: dict[str, pa.Table],
    copy_of: Folders,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = copy_of("complete")
    (path / table).unlink()

    assert RunFolder.open(path).progress().state != "complete"
    assert run(capsys, "resume", path).code == 0
    assert tables(path) == whole


def test_a_half_written_checkpoint_has_a_way_out_that_works(
    whole: dict[str, pa.Table], copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    """Either the run goes on by itself, or it says which file to delete and how to go on."""
    path = copy_of("begun")
    checkpoint = path / "units" / "000" / "checkpoint.state"
    truncate(checkpoint)
    before = tables(path)

    result = run(capsys, "resume", path)

    if result.code != 0:
        assert refused(result, str(checkpoint), "elete", f"fedcohort resume {path}")
        assert tables(path) == before
        checkpoint.unlink()
        assert run(capsys, "resume", path).code == 0
    assert tables(path) == whole


def test_a_complete_run_keeps_no_checkpoint(
    copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")

    assert not list(path.rglob("checkpoint.state"))
    assert run(capsys, "report", path).code == 0
    assert run(capsys, "resume", path).code == 0


def test_a_damaged_table_is_made_anew(
    whole: dict[str, pa.Table], copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    truncate(path / "units" / "001" / "rounds.parquet")

    assert run(capsys, "resume", path).code == 0
    assert tables(path) == whole


def test_a_truncated_head_is_one_sentence_and_touches_nothing(
    copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    truncate(path / "run.json")
    before = contents(path)

    for result in all_commands(capsys, path).values():
        assert refused(
            result, f"{path / 'run.json'}: is damaged", "run experiment.toml again into another"
        )
    assert contents(path) == before


def test_a_folder_of_another_schema_is_one_sentence_and_touches_nothing(
    copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    change_head(path, schema=0)
    before = contents(path)

    for result in all_commands(capsys, path).values():
        assert refused(result, f"{path}: was written with schema 0", "reads schema 1", "again")
    assert contents(path) == before


def test_a_new_run_does_not_replace_one_of_another_schema(
    copy_of: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    change_head(path, schema=0)
    before = contents(path)

    result = run(capsys, "run", write(tmp_path), "--out", path)

    assert refused(result, f"{path}: holds a run already. Choose another folder with --out")
    assert contents(path) == before


def change_head(path: Path, **values: Any) -> None:
    head = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**head, **values}))


@pytest.mark.parametrize(
    "content",
    [
        *("", "null", "[]", "3", "{}", '{"schema": 1}', '{"schema": "1"}', "\x00\x00"),
        '{"schema": 0, "versions": []}',
        '{"schema": 1, "experiment": {}, "units": [], "machine": {"device": "cpu"}}',
    ],
)
def test_a_head_that_is_no_head_is_one_sentence(
    content: str, copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("complete")
    (path / "run.json").write_text(content)

    for result in all_commands(capsys, path).values():
        assert refused(result, str(path))


@pytest.mark.parametrize(
    "units",
    [
        3,
        [3],
        [{}],
        [{"number": 0, "trials": [], "candidate": None}],
        [
            {
                "number": 0,
                "trials": [{"panel": "other", "design": "size", "seed": 0}],
                "candidate": None,
            }
        ],
        [
            {
                "number": 0,
                "trials": [{"panel": "slow", "design": "other", "seed": 0}],
                "candidate": None,
            }
        ],
        [
            {
                "number": 0,
                "trials": [{"panel": "slow", "design": "multinomial", "seed": 0}],
                "candidate": [0.1],
            }
        ],
    ],
)
def test_units_that_do_not_fit_the_experiment_are_one_sentence(
    units: object, copy_of: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy_of("begun")
    change_head(path, units=units)

    assert refused(run(capsys, "resume", path), "run.json: does not hold a run")


def test_what_is_no_run_folder_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "none", write(tmp_path)):
        for result in all_commands(capsys, path).values():
            assert refused(result, f"{path}: is not a run folder (run.json: ", "fedcohort runs")
