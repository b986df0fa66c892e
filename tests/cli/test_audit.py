"""fedcohort audit."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from command_line import refused, run
from fedcohort import Selector, SizeClustered

SIZES = {"Nice": 510, "Lyon": 340, "Lille": 300, "Brest": 260, "Metz": 240, "Caen": 200}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a log in which Metz leaves at round 15."""
    path = tmp_path_factory.mktemp("log") / "selections.jsonl"
    selector = Selector(SizeClustered(4), SIZES, seed=0, log=path)
    for round_ in range(40):
        cohort = selector.draw()
        lost = [each for each in cohort.ids if each == "Metz" and round_ >= 15]
        came = {each: np.zeros(1) for each in cohort.ids if each not in lost}
        selector.remember(came, failed=dict.fromkeys(lost, "timeout"))
    return path


def test_it_says_who_left_and_shows_replays_and_clients(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "audit", log)

    said = " ".join(result.out.split())
    assert "1 of 6 clients has not answered since round" in said
    assert "same draws, renormalise" in result.out
    assert "size, redraw" in result.out
    (line,) = [line for line in result.out.splitlines() if line.startswith("Metz ")]
    assert line.split()[1] == "240"
    assert max(map(len, result.out.splitlines()[1:])) <= 80  # the first line names the log


def test_json_has_the_sentences_and_every_client(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(run(capsys, "audit", log, "--json", "--no-replay").out)

    assert content["findings"][0]["clients"] == ["Metz"]
    assert [each["client"] for each in content["clients"]] == sorted(SIZES)
    assert content["replays"] == []
    assert content["claim"] == "size with 4 draws"


def test_the_table_and_the_page_are_written(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, page = tmp_path / "clients.csv", tmp_path / "audit.html"

    run(capsys, "audit", log, "--no-replay", "--csv", table, "--out", page)

    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == sorted(SIZES)
    assert page.read_text().startswith("<!doctype html>")


def test_sizes_and_a_design_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds, sizes = tmp_path / "rounds.csv", tmp_path / "sizes.csv"
    rounds.write_text("round,client\n" + "".join(f"{r},{c}\n" for r in range(5) for c in "ab"))
    sizes.write_text("id,size\na,30\nb,10\nc,10\n")

    arguments = ("audit", rounds, "--sizes", sizes, "-d", "uniform", "-m", 2, "--replay", "size")
    result = run(capsys, *arguments)

    assert "Design: uniform with 2 draws" in " ".join(result.out.split())
    assert "size, keep" in result.out
    assert "every row counts as an answer" in result.err
    assert "1 client never contributed: 20.0 % of all samples" in " ".join(result.out.split())


def test_pseudonyms_make_a_key_for_its_owner_and_keep_it(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, page = tmp_path / "audit.key", tmp_path / "audit.html"
    arguments = ("audit", log, "--no-replay", "--pseudonyms", key, "--out", page)

    first, second = run(capsys, *arguments), run(capsys, *arguments)

    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "made a key" in first.err
    assert "made a key" not in second.err
    assert first.out == second.out
    said = first.out + page.read_text()
    assert not any(name in said for name in (*SIZES, "timeout", str(log)))


def test_mistakes_are_one_sentence(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.key"
    short.write_bytes(b"abc")

    assert refused(run(capsys, "audit", "nothing.jsonl"), "nothing.jsonl", "cannot be read")
    assert refused(run(capsys, "audit", log, "--alpha", "2"), "--alpha must be above 0", "got 2")
    assert refused(run(capsys, "audit", log, "-d", "size"), "needs --cohort-size too")
    assert refused(run(capsys, "audit", log, "-m", 3), "needs --design too")
    assert refused(run(capsys, "audit", log, "--pseudonyms", short), "needs at least 16 bytes")
    assert refused(run(capsys, "audit", log, "--replay", "similarity"), "cannot be replayed")
