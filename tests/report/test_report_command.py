"""fedcohort report."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from command_line import refused, run

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("plotly", reason="the extra 'report' is not installed")
pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

from fedcohort.experiments import Results

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(two_panels: Results, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(two_panels.folder.path, tmp_path / "two")


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_answer_and_the_paths_are_printed(folder: Path, capsys: Capture) -> None:
    result = run(capsys, "report", folder)

    lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert lines[0] == f"{folder}: Two panels"
    assert [line for line in lines if line.endswith(":")] == ["  alpha = 0.01:", "  alpha = 10:"]
    assert sum("has the lowest final loss of the 4 unbiased designs" in line for line in lines) == 2
    assert lines[-1] == str(folder / "report.html")
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_figures_lie_beside_the_page(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "elsewhere.html"

    result = run(capsys, "report", folder, "--out", page, "--figures", "svg")

    names = ["loss", "curves", "costs", "cohorts", "partition"]
    figures = [tmp_path / "figures" / f"{name}.svg" for name in names]
    assert result.out.splitlines()[-6:] == [str(path) for path in [page, *figures]]
    assert all(path.read_text().startswith("<?xml") for path in figures)


def test_several_runs_share_one_page_in_the_current_folder(
    folder: Path, partition: Results, here: Path, capsys: Capture
) -> None:
    result = run(capsys, "report", folder, partition.folder.path, "--figures", "png")

    drawn = sorted(str(path) for path in Path("figures").rglob("*.png"))
    assert result.code == 0
    assert sorted(result.out.splitlines()[-7:]) == sorted(["report.html", *drawn])
    assert "figures/partition/partition.png" in drawn
    assert "<title>2 runs</title>" in Path("report.html").read_text(encoding="utf-8")


def test_without_a_name_the_run_that_was_begun_last_is_taken(
    folder: Path, partition: Results, here: Path, capsys: Capture
) -> None:
    older = shutil.copytree(partition.folder.path, here / "runs" / "z")
    shutil.copytree(folder, here / "runs" / "a")
    head = json.loads((older / "run.json").read_text())
    (older / "run.json").write_text(json.dumps({**head, "created": "2001-01-01T00:00:00+00:00"}))

    result = run(capsys, "report")

    assert result.out.splitlines()[-1] == str(Path("runs/a/report.html"))


def test_no_run_at_all_is_one_sentence(here: Path, capsys: Capture) -> None:
    assert refused(run(capsys, "report"), "report: needs a run; there is none under ./runs.")


def test_an_unknown_kind_of_figure_is_refused_before_the_work(
    folder: Path, capsys: Capture
) -> None:
    before = files(folder)

    result = run(capsys, "report", folder, "--figures", "gif")

    assert refused(result, "--figures must be png, svg, pdf; got 'gif'")
    assert files(folder) == before


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("units/000/rounds.parquet", b"PAR1 half", ("rounds.parquet: is damaged", "resume")),
        ("federations.parquet", b"", ("federations.parquet: is damaged",)),
        ("run.json", b"{", ("run.json: is damaged",)),
        ("run.json", b'{"schema": 0}', ("was written with schema 0", "Nothing was changed")),
    ],
)
def test_a_damaged_or_older_folder_is_one_sentence_and_the_last_page_stays(
    name: str, content: bytes, parts: tuple[str, ...], folder: Path, capsys: Capture
) -> None:
    (folder / "report.html").write_text("the last page")
    (folder / name).write_bytes(content)
    before = files(folder)

    result = run(capsys, "report", folder)

    assert refused(result, *parts)
    assert files(folder) == before


def test_what_is_no_run_folder_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    assert refused(run(capsys, "report", tmp_path), "is not a run folder")


def test_a_page_that_cannot_be_written_is_one_sentence(folder: Path, capsys: Capture) -> None:
    nowhere = folder / "run.json" / "report.html"

    assert refused(run(capsys, "report", folder, "--out", nowhere), "cannot be made")


def test_a_missing_extra_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)

    assert refused(run(capsys, "report", folder), "needs plotly", "pip install 'fedcohort[report]'")
