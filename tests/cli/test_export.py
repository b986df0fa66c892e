"""fedcohort export."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

for module in ("torch", "pyarrow"):
    pytest.importorskip(module, reason="the extra 'sim' is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from command_line import refused, run
from fedcohort.experiments import Results, read_results
from fedcohort.experiments.tables import FEDERATIONS, SCHEMAS
from fedcohort.experiments.tuning import TUNING, tuning_table
from small_runs import TWO_UNITS, contents, small_run

#: Two units, a grid beside them, and a label that needs quotes in a CSV file.
TEXT = (
    TWO_UNITS.replace("rounds = 5", "rounds = 5\ntraining.mu = [0.0, 0.1]")
    .replace("[training]", "[server]\nmeasure_every = 2\n[training]", 1)
    .replace('recipe = "similarity"', "recipe = 'similarity'\nlabel = 'a, \"b\"'")
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return read_results(small_run(tmp_path_factory.mktemp("export"), TEXT))


def all_tables(results: Results) -> dict[str, pa.Table]:
    tuning = tuning_table(results.folder)
    return {**results.tables, "federations": results.federations, "tuning": tuning}


def test_parquet_files_hold_the_tables_of_all_units(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "export", results.folder.path, "--parquet", "--out", tmp_path / "deep/x")

    assert (result.code, result.err) == (0, "")
    for name, table in all_tables(results).items():
        found = pq.read_table(tmp_path / "deep" / "x" / f"{name}.parquet")
        assert found.equals(table)
        assert found.schema.equals({**SCHEMAS, "federations": FEDERATIONS, "tuning": TUNING}[name])
    assert pq.read_table(tmp_path / "deep" / "x" / "rounds.parquet").num_rows == 4 * (6 + 5)


def test_csv_files_hold_the_same(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "export", results.folder.path, "--csv", "--out", tmp_path)

    for name, table in all_tables(results).items():
        with (tmp_path / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        wanted = table.to_pylist()
        assert len(found) == len(wanted)
        for line, values in zip(found, wanted, strict=True):
            assert list(line) == table.column_names
            for key, value in values.items():
                if value is None:
                    assert line[key] == ""
                elif isinstance(value, bool):
                    assert line[key] == ("true" if value else "false")
                else:
                    assert type(value)(line[key]) == value


def test_what_was_written_is_listed(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "export", results.folder.path, "--csv", "--out", tmp_path)

    assert result.out.splitlines() == [
        f"{tmp_path / name}.csv: {table.num_rows} lines"
        for name, table in all_tables(results).items()
    ]


def test_the_default_is_a_folder_in_the_run(
    ran: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = ran()

    run(capsys, "export", path, "--csv")
    again = run(capsys, "export", path, "--csv")

    assert again.code == 0
    assert {file.name for file in (path / "export").iterdir()} == {
        f"{name}.csv" for name in (*SCHEMAS, "federations")
    }


def test_an_unfinished_run_can_be_exported(
    ran: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ran(rounds=3)

    result = run(capsys, "export", path, "--parquet", "--out", tmp_path / "x")

    assert result.code == 0
    assert pq.read_table(tmp_path / "x" / "rounds.parquet").num_rows == 4 * 3
    assert pq.read_table(tmp_path / "x" / "laws.parquet").num_rows == 0


@pytest.mark.parametrize("options", [(), ("--csv", "--parquet")])
def test_one_kind_must_be_chosen(
    options: tuple[str, ...], results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(results.folder.path)

    result = run(capsys, "export", results.folder.path, *options)

    assert refused(result, "export: needs one of --csv, --parquet, --latex; got ")
    assert contents(results.folder.path) == before


def test_a_target_that_is_no_folder_is_one_sentence(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")

    for target in ("file", "file/below", "x" * 300):
        result = run(capsys, "export", results.folder.path, "--csv", "--out", tmp_path / target)
        assert refused(result, "cannot be made", "Choose another path.")
    assert (tmp_path / "file").read_text() == "precious"
