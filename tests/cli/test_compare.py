"""fedcohort compare."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import DESIGNS, SIZES, refused, run
from fedcohort import compare


def test_json_has_every_design_with_exact_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "compare", SIZES, "--cohort-size", 10, "--json")
    content = json.loads(result.out)
    rows = {row["design"]: row for row in content["designs"]}

    assert (content["n_clients"], content["total"], content["cohort_size"]) == (100, 48500, 10)
    assert list(rows) == DESIGNS
    assert round(rows["multinomial"]["weight_variance"], 6) == 0.098694
    assert round(rows["size"]["weight_variance"], 6) == 0.087491
    assert round(rows["size"]["weight_variance_ratio"], 3) == 0.886
    assert round(rows["size"]["expected_distinct"], 3) == 9.972
    assert (rows["size"]["unbiased"], rows["size"]["bias"]) == (True, 0.0)
    assert (rows["uniform"]["unbiased"], round(rows["uniform"]["bias"], 9)) == (False, 0.9)
    assert [rows[name]["max_count"] for name in DESIGNS] == [10, 2, 2, 1, 1, 1, 1]
    # Coins of chances n / 4850, the sum of n^2 is 30,725,000: the root of 10 - 30.725 / 23.5225.
    assert round(rows["poisson"]["size_deviation"], 3) == 2.949
    assert content["answer"].startswith("Use size (size:whole_rows_first is equal): it draws each")
    assert content["left_out"] == content["notes"] == []
    assert (rows["uniform:unbiased"]["unbiased"], rows["uniform:unbiased"]["bias"]) == (True, 0.0)
    assert all(row["build_seconds"] > 0 and row["draw_seconds"] > 0 for row in rows.values())


def test_the_table_is_readable_at_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    short = run(capsys, "compare", SIZES, "--cohort-size", 10)
    result = run(capsys, "compare", SIZES, "--cohort-size", 10, "--all", "--explain")
    lines = result.out.partition("\nIn your server loop:")[0].splitlines()

    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in short.out.splitlines() if line.startswith("size  ")]
    assert rows == [["size", "none", "0.886", "9.97"]]
    assert "weight variance  " not in short.out
    size = next(line.split() for line in lines if line.startswith("size "))
    assert size[:6] == ["size", "none", "0.0875", "0.886", "0.0206", "9.97"]
    poisson = next(line for line in lines if line.startswith("poisson "))
    assert " 10.00 ± 2.95 " in poisson
    assert next(line.split()[1] for line in lines if line.startswith("cohort-mean ")) == "~0.043"
    assert result.err == ""


def test_a_terminal_shows_the_answer_bold_and_biased_rows_dim() -> None:
    """A pipe gets no escape sequences; FORCE_COLOR stands for a terminal."""
    command = [sys.executable, "-m", "fedcohort", "compare", str(SIZES), "-m", "10"]

    def lines(**environment: str) -> list[str]:
        result = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, check=True
        )
        return result.stdout.decode().splitlines()

    plain, coloured = lines(), lines(FORCE_COLOR="1", TERM="xterm-256color")
    assert not any("\x1b" in line for line in plain)
    (biased,) = (line for line in coloured if "cohort-mean  " in line and "1.18" in line)
    (winner,) = (line for line in coloured if line.startswith("\x1b[1mUse size"))
    assert biased.startswith("\x1b[2mcohort-mean")
    assert winner.endswith("\x1b[0m")
    assert any(line.startswith("size ") for line in coloured)


def test_what_is_printed_is_the_librarys_comparison(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times differ from call to call: the command gets one that was made before."""
    calls: list[tuple[object, ...]] = []
    made = compare([5, 3, 1], 2, designs="multinomial,size", seed=7)

    def returned(*arguments: object, **keywords: object) -> object:
        calls.append((*arguments[1:], *map(keywords.get, ("designs", "updates", "seed"))))
        return made

    monkeypatch.setattr("fedcohort.cli.compare.compare_designs", returned)
    options = ("-m", 2, "-d", "multinomial,size", "--seed", 7)
    result = run(capsys, "compare", "-", *options, stdin="[5, 3, 1]")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{made!r}\n")
    assert calls == [(2, "multinomial,size", None, 7)]


def test_a_terminal_without_unicode_gets_a_table_in_ascii() -> None:
    command = [sys.executable, "-m", "fedcohort", "compare", str(SIZES), "-m", "10", "-d", "size"]

    result = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )

    assert b"\n-----" in result.stdout
    assert result.stdout.isascii()


def test_groups_in_the_file_bring_the_designs_that_need_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "size,group\n5,a\n3,b\n2,b\n"

    result = run(capsys, "compare", "-", "-m", 2, "--json", stdin=text)

    names = [row["design"] for row in json.loads(result.out)["designs"]]
    assert names == [*DESIGNS, "stratified", "target"]


def test_a_design_that_is_named_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "compare", SIZES, "-m", 2, "-d", "size, size")

    assert refused(result, "compare: 'size' appears twice in designs")


@pytest.mark.parametrize(
    ("sizes", "cohort_size"),
    [
        ([10**9] + [1] * 50, 10),
        (list(range(1, 3000)), 2000),
        ([1] * 2500 + [10**15], 3),
        ([5], 1),
    ],
)
def test_no_number_is_cut_off_the_table(
    sizes: list[int], cohort_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "compare", "-", "-m", cohort_size, "--all", stdin=json.dumps(sizes))

    table = result.out.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    named = (line for line in table if line.startswith(("uniform", "multi", "poisson", "size")))
    rows = [line.split() for line in named if "left out" not in line]
    assert len(rows) >= 3
    for row in rows:
        # Name, bias, four numbers, a random size's deviation, and the time with its unit.
        assert len(row) == (10 if "±" in row else 8)
        assert row[-1] in ("us", "ms", "s")


def test_designs_can_be_chosen_with_their_hyper_parameters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    designs = "similarity:measure=l2:linkage=average, size:whole_rows_first=true"

    result = run(capsys, "compare", SIZES, "-m", 10, "--designs", designs, "--json")

    rows = json.loads(result.out)["designs"]
    assert [row["design"] for row in rows] == [name.strip() for name in designs.split(",")]


@pytest.mark.parametrize(
    ("spec", "variance"),
    [
        ("size", 0.1022),
        ("size:whole_rows_first=false", 0.1022),
        ("size:whole_rows_first", 0.0689),
        ("size:whole_rows_first=True", 0.0689),
    ],
)
def test_hyper_parameters_reach_the_design(
    spec: str, variance: float, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "compare", "-", "-m", 3, "-d", spec, "--json", stdin="[5, 4, 1]")

    assert round(json.loads(result.out)["designs"][0]["weight_variance"], 4) == variance


def test_a_seed_gives_the_same_comparison_again(capsys: pytest.CaptureFixture[str]) -> None:
    def numbers(seed: int) -> list[float]:
        result = run(
            capsys, "compare", SIZES, "-m", 7, "-d", "similarity", "--seed", seed, "--json"
        )
        return [row["mean_inclusion"] for row in json.loads(result.out)["designs"]]

    assert numbers(1) == numbers(1) != numbers(2)


def test_designs_that_cannot_draw_so_many_are_left_out_with_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "compare", "-", "-m", 4, "--json", stdin="[5, 3, 1]")

    assert result.code == 0
    content = json.loads(result.out)
    names = [row["design"] for row in content["designs"]]
    assert names == ["multinomial", "size", "size:whole_rows_first"]
    missing = {each["design"]: each["reason"] for each in content["left_out"]}
    assert list(missing) == ["poisson", "uniform:unbiased", "uniform", "cohort-mean"]
    assert {reason.partition(",")[0] for reason in missing.values()} == {
        "draws without replacement"
    }
    table = run(capsys, "compare", "-", "-m", 4, "-d", "size,poisson", stdin="[5, 3, 1]")
    assert "\npoisson       left out: draws without replacement, so" in table.out
    assert (result.err, table.err) == ("", "")


def test_alone_it_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "compare", "-", "-m", 4, "-d", "poisson", stdin="[5, 3, 1]")

    assert refused(result, "PoissonDesign", "at most the 3 clients of positive size; got 4")


def test_one_client_has_no_variance_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "compare", "-", "-m", 1, "--json", stdin="[5]")

    ratios = {row["weight_variance_ratio"] for row in json.loads(result.out)["designs"]}
    assert ratios == {None}
    assert "nan" not in run(capsys, "compare", "-", "-m", 1, stdin="[5]").out.lower()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("-m", 0), ("cohort_size must be a whole number of at least 1; got 0",)),
        (("-m", "ten"), ("--cohort-size must be a whole number of draws, or several; got",)),
        (("-m", "5,5"), ("--cohort-size must be a whole number of draws, or several; got",)),
        (("-m", "5,10", "--plot", "a.png"), ("--plot needs one cohort size; got 2",)),
        ((), ("needs --cohort-size",)),
        (("-m", 3, "-d", "siz"), ("unknown design 'siz'", "Did you mean 'size'?")),
        (("-m", 3, "-d", ""), ("unknown design ''",)),
        (("-m", 3, "-d", "size:rows=1"), ("unknown key 'rows'; known are whole_rows_first",)),
        (("-m", 3, "-d", "similarity:measure=cos"), ("measure must be one of arccos, l2, l1",)),
        (("-m", 3, "-d", "target"), ("needs the group of every client", "add a column group")),
        (("-m", 3, "--seed", -1), ("--seed",)),
        (("-m", 3, "--plt", "x.png"), ("--plt",)),
        (("-m", 3, "--plot", "x.gif"), ("--plot must end in .png, .svg, .pdf; got 'x.gif'",)),
        (("-m", 10**18), ("cohort_size must be at most 10^7; got",)),
    ],
)
def test_bad_options_are_one_sentence_and_exit_code_2(
    options: tuple[object, ...], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(run(capsys, "compare", SIZES, *options), *parts)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_plot_is_a_figure_of_its_suffix(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    path = tmp_path / f"inclusion{suffix}"

    result = run(capsys, "compare", SIZES, "-m", 10, "--plot", path)

    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert result.code == 0
    assert path.read_bytes().startswith(start)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_without_the_extra_a_plot_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    for command in ("compare", "plan"):
        result = run(capsys, command, SIZES, "-m", 10, "--plot", tmp_path / "x.png")

        assert refused(result, "needs matplotlib", "pip install 'fedcohort[report]'")


def test_a_plot_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

    result = run(capsys, "compare", SIZES, "-m", 10, "--plot", tmp_path / "none" / "x.png")

    assert refused(result, "x.png: cannot be written (no such file or directory)")


def test_designs_that_choose_anew_are_said_to_show_one_cohort(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "updates.npy"
    np.save(path, np.eye(100))

    result = run(capsys, "compare", SIZES, "-m", 10, "-d", "divfl,size", "--updates", path)

    assert (result.code, result.err) == (0, "")
    assert "divfl chooses new clients in every round; these numbers describe one" in result.out


def test_the_plan_of_a_design_that_chooses_anew_is_its_law(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns = run(capsys, "plan", SIZES, "-m", 10, "--design", "round-robin")
    mean = run(capsys, "plan", SIZES, "-m", 10, "--design", "cohort-mean")

    for result in (turns, mean):
        row = next(line.split() for line in result.out.splitlines() if line.startswith("client-"))
        assert row[1:] == ["1000", "0.1", "0.1", "1"]
    assert turns.err.startswith("round-robin draws nothing: the clients take turns.")
    assert mean.err == ""


def pasted(out: str, where: str) -> str:
    """Return the lines below a heading of the next steps."""
    return out.partition(f"\n{where}:\n")[2].partition("\n\n")[0]


SIZE_2 = "SizeClustered(cohort_size=2)"
FILE = "Klinik;Land;Fallzahl;Betten\nSüd;a;1.512;9\nNord;b;90;9\nOst;b;655;9\n"


@pytest.mark.parametrize(
    ("path", "content", "options", "design", "clients"),
    [
        ("sizes.csv", "size\n5\n3\n2\n", (), SIZE_2, {0: 5, 1: 3, 2: 2}),
        (
            "Kliniken 2024.csv",
            FILE,
            ("--group-column", "Land", "--seed", 3),
            "Stratified(cohort_size=2)",
            {"Nord": 90, "Ost": 655, "Süd": 1512},
        ),
        ("-", "[5, 3, 2]", (), SIZE_2, {0: 5, 1: 3, 2: 2}),
        ("-", '{"a": 5, "b": 3}', ("-d", "size"), SIZE_2, {"a": 5, "b": 3}),
    ],
)
def test_the_lines_to_paste_run(
    path: str,
    content: str,
    options: tuple[object, ...],
    design: str,
    clients: dict[object, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if path != "-":
        Path(path).write_text(content, encoding="utf-8")

    result = run(capsys, "compare", path, "-m", 2, *options, stdin=content)

    loop = pasted(result.out, "In your server loop")
    assert len(loop.splitlines()) == 3
    names: dict[str, Any] = {}
    exec(loop, names)
    selector = names["selector"]
    assert repr(selector.recipe) == design
    assert selector.clients == clients
    assert selector.seed == (3 if "--seed" in options else 0)
    assert names["cohort"].round_ == 0
    command = shlex.split(result.out.strip().splitlines()[-1])
    drawn = run(capsys, *command[1:], "--json", stdin=content)
    (first,) = json.loads(drawn.out)["rounds"]
    assert [each["client"] for each in first["clients"]] == names["cohort"].ids


def test_the_lines_for_flower_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategies = pytest.importorskip("flwr.serverapp.strategy", reason="flwr is not installed")
    path = tmp_path / "kliniken.csv"
    path.write_text(FILE, encoding="utf-8")

    from_file = run(capsys, "compare", path, "-m", 2, "--group-column", "Land").out
    from_pipe = run(capsys, "compare", "-", "-m", 2, stdin="[5, 3, 2]").out

    made = []
    for out in (from_file, from_pipe):
        lines = pasted(out, "In Flower, around your strategy")
        assert len(lines.splitlines()) == 3
        names = {"strategy": strategies.FedAvg()}
        exec(lines, names)
        made.append(names["strategy"])
    assert [strategy.recipe.name for strategy in made] == ["stratified", "size"]
    assert made[0].directory._given == {"Nord": 90, "Ost": 655, "Süd": 1512}
    assert made[0].selector._roster.labels == {"Nord": "b", "Ost": "b", "Süd": "a"}
    assert made[1].directory._given == {"0": 5, "1": 3, "2": 2}


def test_with_groups_the_answer_names_what_weights_cannot_see(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the page on designs: a draw for each group, or target if there are more groups."""
    text = "size,group\n" + "".join(f"{k + 1},g{k % 5}\n" for k in range(20))

    few = json.loads(run(capsys, "compare", "-", "-m", 5, "--json", stdin=text).out)
    many = json.loads(run(capsys, "compare", "-", "-m", 4, "--json", stdin=text).out)

    assert few["answer"].startswith(
        "Use stratified if clients of a group are alike: in every round each of the 5 groups has "
        "its own draws and its full weight. The variance of the weights ("
    )
    assert "cannot see this, as it knows sizes only." in few["answer"]
    assert " Otherwise use size" in few["answer"]
    assert many["answer"].startswith("Use target if clients of a group are alike: in every round")
    page = (Path(__file__).parents[2] / "docs" / "which-design.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| who is alike"))
    assert "`stratified` if each group gets its own draw, `target` if there are more" in row
    losses = re.findall(r"0\.\d{3}", row.split("|")[3])
    assert [f"from 0.936 to {loss}; sizes alone to 0.906" in each["answer"]
            for loss, each in zip(losses, (few, many), strict=True)] == [True, True]  # fmt: skip
    assert "`multinomial` 0.936" in page
    assert "draws a client twice | 0.906" in page


def test_several_cohort_sizes_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """Multinomial sampling's variance is (1 - sum of p^2) / m."""
    result = run(capsys, "compare", SIZES, "-m", "5,10,20", "-d", "multinomial,size")
    found = json.loads(
        run(capsys, "compare", SIZES, "-m", "5,10,20", "-d", "multinomial,size", "--json").out
    )

    table = result.out.split("\n\n")[1].splitlines()
    lines = {line.split()[0]: line.split()[1:] for line in table}
    assert lines["design"] == ["5", "10", "20"]
    assert lines["multinomial"] == ["1.000", "0.500", "0.250"]
    ratios = [each["designs"][1]["weight_variance_ratio"] for each in found]
    assert [each["cohort_size"] for each in found] == [5, 10, 20]
    shown = [f"{ratio * 5 / m:.3f}" for ratio, m in zip(ratios, (5, 10, 20), strict=True)]
    assert lines["size"] == shown
    worth = [
        f"{m} draws by size are worth {m / r:.3g}" for m, r in zip((5, 10, 20), ratios, strict=True)
    ]
    assert all(each in " ".join(result.out.split()) for each in worth)


def test_importances_are_compared_without_a_number_of_samples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "compare", "-", "-m", 1, stdin="site;share\na;75 %\nb;25 %\n")

    assert result.out.startswith("1 draw from 2 clients, by importance\n")
    assert "read share as importance, site as id." in result.err
