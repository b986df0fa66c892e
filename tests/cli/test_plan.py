"""fedcohort plan."""

import csv
from pathlib import Path

import pytest

from command_line import SIZES, refused, run


def test_it_says_who_shares_a_distribution_and_each_clients_chance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "plan", "-", "-m", 2, stdin="id,size\nNice,5\nLyon,3\nBrest,2\n")
    lines = [line.split() for line in result.out.splitlines()]

    assert ["1", "1", "Nice", "100.0%"] in lines
    assert ["2", "2", "Lyon", "60.0%,", "Brest", "40.0%"] in lines
    assert ["Nice", "5", "1", "1", "1"] in lines
    assert ["Brest", "2", "0.4", "0.4", "1"] in lines


def test_long_tables_show_their_two_ends(capsys: pytest.CaptureFixture[str]) -> None:
    short = run(capsys, "plan", SIZES, "-m", 10, "--rows", 6).out
    whole = run(capsys, "plan", SIZES, "-m", 10, "--rows", 0).out

    assert short.count("client-") < whole.count("client-")
    assert (short.count("..."), whole.count("...")) == (2, 0)
    assert max(len(line) for line in whole.splitlines()) <= 80
    assert len([line for line in whole.splitlines() if line.startswith("client-")]) == 100


def test_the_csv_holds_the_whole_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.csv"

    run(capsys, "plan", SIZES, "-m", 10, "--out", path)

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    units: dict[str, int] = {}
    shares: dict[str, float] = {}
    for row in rows:
        units[row["distribution"]] = units.get(row["distribution"], 0) + int(row["units"])
        shares[row["client"]] = shares.get(row["client"], 0) + float(row["probability"])
    assert units == {str(k): 48500 for k in range(1, 11)}
    for row in rows:
        assert shares[row["client"]] == pytest.approx(10 * int(row["size"]) / 48500, abs=1e-12)
        assert float(row["expected_draws"]) == pytest.approx(shares[row["client"]], abs=1e-12)
        assert 0 < float(row["chance"]) <= 1


def test_a_design_without_rows_shows_the_chances_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.csv"

    result = run(capsys, "plan", "-", "-m", 2, "-d", "poisson", "--out", path, stdin="[8, 1, 1]")

    assert "poisson draws its clients together: it has no distributions" in result.out
    assert ["0", "8", "1", "1", "1"] in [line.split() for line in result.out.splitlines()]
    assert path.read_text().splitlines()[1:] == [
        ",0,8,,,1.0,1.0",
        ",1,1,,,0.5,0.5",
        ",2,1,,,0.5,0.5",
    ]


def test_groups_in_the_file_are_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    text = "size,group\n1,a\n1,b\n1,a\n1,b\n"

    result = run(capsys, "plan", "-", "-m", 2, "-d", "target", stdin=text)

    rows = [line.split()[2:] for line in result.out.splitlines() if "50.0%" in line]
    members = [sorted(word for word in row if "%" not in word) for row in rows]
    assert sorted(members) == [["0", "2"], ["1", "3"]]


def test_what_was_there_stays_if_the_new_plan_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("precious")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcohort.cli.plan._write_csv", full_disk)
    result = run(capsys, "plan", SIZES, "-m", 10, "--out", path)

    assert refused(result, "plan.csv: cannot be written (no space left on device)")
    assert path.read_text() == "precious"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.csv"]


def test_the_line_of_clients_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    path = tmp_path / "line.png"

    result = run(capsys, "plan", SIZES, "-m", 10, "--plot", path)

    assert result.code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("-m", 3, "-d", "poisson", "--plot", "x.png"), ("design 'poisson' has none",)),
        (("-m", 200, "--plot", "x.png"), ("draws at most 100 distributions; got 200",)),
        (("-m", 3, "--out", "/none/x.csv"), ("/none/x.csv: cannot be written",)),
        (("-m", 3, "-d", "taget"), ("Did you mean 'target'?",)),
        (("-m", 3, "--rows", -1), ("--rows",)),
    ],
)
def test_bad_options_are_one_sentence_and_exit_code_2(
    options: tuple[object, ...], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    if "--plot" in options:
        pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

    assert refused(run(capsys, "plan", SIZES, *options), *parts)
