"""fedcohort plan."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from command_line import SIZES, refused, run
from fedcohort import read_clients
from fedcohort.cli.plan import _some
from fedcohort.designs import SizeClusteredDesign
from fedcohort.streams import Stream, stream


def test_it_says_who_shares_a_distribution_and_each_clients_chance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "plan", "-", "-m", 2, stdin="id,size\nNice,5\nLyon,3\nBrest,2\n")
    lines = [line.split() for line in result.out.splitlines()]

    assert ["1", "1", "Nice", "100%"] in lines
    assert ["2", "2", "Lyon", "60%,", "Brest", "40%"] in lines
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

    assert "poisson has no distributions; each client's chance:" in result.out
    assert ["0", "8", "1", "1", "1"] in [line.split() for line in result.out.splitlines()]
    assert path.read_text().splitlines()[1:] == [
        ",0,8,,,1.0,1.0,1",
        ",1,1,,,0.5,0.5,1",
        ",2,1,,,0.5,0.5,1",
    ]


@pytest.mark.parametrize("name", ["tournament", "auto", "balanced"])
def test_designs_along_a_tree_say_that_they_have_no_distributions(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "plan", "-", "-m", 2, "-d", name, stdin="[8, 1, 1]")

    assert (result.code, result.err) == (0, "")
    assert f"{name} has no distributions; each client's chance:" in result.out
    # m p = 1.6: once for certain, and once more with chance 0.6.
    assert ["0", "8", "1.6", "1", "2"] in [line.split() for line in result.out.splitlines()]


def test_the_csv_names_clients_of_size_zero_and_true_chances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[5, 4, 1, 0], m = 3: client 1 has 5 units in row 2 and 7 in row 3."""
    path = tmp_path / "plan.csv"

    run(capsys, "plan", "-", "-m", 3, "--out", path, stdin="[5, 4, 1, 0]")

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    second = [row for row in rows if row["client"] == "1"]
    assert [row["units"] for row in second] == ["5", "7"]
    assert {float(row["expected_draws"]) for row in second} == {1.2}
    assert [float(row["chance"]) for row in second] == pytest.approx([0.85, 0.85], abs=1e-12)
    assert {row["most_draws"] for row in second} == {"2"}
    assert [row["distribution"] for row in rows if row["client"] == "3"] == [""]


def test_the_table_shows_chances_not_expectations_largest_client_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "plan", "-", "-m", 2, "-d", "multinomial", stdin="[1, 8, 1]")

    rows = [line.split() for line in result.out.splitlines()[-3:]]
    assert rows == [
        ["1", "8", "1.6", "0.96", "2"],
        ["0", "1", "0.2", "0.19", "2"],
        ["2", "1", "0.2", "0.19", "2"],
    ]


@pytest.mark.parametrize(
    ("n", "rows", "shown"),
    [
        (10, 6, [0, 1, 2, None, 7, 8, 9]),
        (10, 5, [0, 1, 2, None, 8, 9]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
        (3, 0, [0, 1, 2]),
        (4, 1, [0, None]),
    ],
)
def test_the_two_ends_of_a_long_table(n: int, rows: int, shown: list[int | None]) -> None:
    assert list(_some(n, rows)) == shown


def test_members_beyond_the_fourth_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert ", 2 more" in run(capsys, "plan", "-", "-m", 1, stdin="[1, 1, 1, 1, 1, 1]").out


@pytest.mark.parametrize("name", ["[/foo]", "[red]a", ":smile:", "$x^{$", "a\nb"])
def test_ids_are_printed_and_drawn_as_they_are(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    text = json.dumps({"sizes": [3, 2], "ids": [name, "b"]})

    result = run(capsys, "plan", "-", "-m", 1, "--plot", tmp_path / "x.png", stdin=text)

    assert (result.code, result.err) == (0, "")
    assert name.split("\n")[0] in result.out


def test_a_seed_is_the_stream_of_ties(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, population = tmp_path / "plan.csv", read_clients(str(SIZES))

    run(capsys, "plan", SIZES, "-m", 10, "--seed", 5, "--out", path)

    expected = SizeClusteredDesign(population, 10, rng=stream(5, use=Stream.TIES)).plan.units
    units = np.zeros(expected.shape, dtype=np.int64)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            client = population.ids.index(row["client"])
            units[int(row["distribution"]) - 1, client] = int(row["units"])
    assert (units == expected.toarray()).all()


def test_links_are_followed_and_pipes_are_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real" / "plan.csv")

    assert run(capsys, "plan", SIZES, "-m", 3, "--out", link).code == 0
    assert run(capsys, "plan", SIZES, "-m", 3, "--out", "/dev/null").code == 0

    assert link.is_symlink()
    assert (tmp_path / "real" / "plan.csv").stat().st_size > 0
    assert Path("/dev/null").is_char_device()


def test_groups_in_the_file_are_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    text = "size,group\n1,a\n1,b\n1,a\n1,b\n"

    result = run(capsys, "plan", "-", "-m", 2, "-d", "target", stdin=text)

    rows = [line.split()[2:] for line in result.out.splitlines() if "50%" in line]
    members = [sorted(word for word in row if "%" not in word) for row in rows]
    assert sorted(members) == [["0", "2"], ["1", "3"]]


def test_what_was_there_stays_if_the_new_plan_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("precious")

    def full_disk(_: object, temporary: Path) -> None:
        temporary.write_text("half")
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
        (("-m", 3, "-d", "tournament", "--plot", "x.png"), ("design 'tournament' has none",)),
        (("-m", 3, "-d", "auto", "--plot", "x.png"), ("design 'auto' has none",)),
        (("-m", 3, "-d", "balanced", "--plot", "x.png"), ("design 'balanced' has none",)),
        (("-m", 3, "--out", "/none/x.csv"), ("/none/x.csv: cannot be written",)),
        (("-m", 3, "--out", "/etc/passwd/x.csv"), ("cannot be written (not a directory)",)),
        (("-m", 3, "--out", "."), ("cannot be written (is a directory)",)),
        (("-m", 3, "--out", "/tmp/" + 300 * "x"), ("cannot be written (file name too long)",)),
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
