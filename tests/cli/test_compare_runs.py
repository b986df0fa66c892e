"""``fedcohort compare`` on a run folder: what designs paid for a loss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'sim' is not installed")

from command_line import run
from fedcohort.experiments import read_results
from fedcohort.experiments.units import PlannedRun
from small_runs import SMALL, make_folder, small_run

Capture = pytest.CaptureFixture[str]

POWER = f"""{SMALL}
[[design]]
recipe = "power-of-choice"
candidates = 6
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run"), POWER)


def test_the_price_is_what_was_spent_until_the_level_was_reached(
    folder: Path, capsys: Capture
) -> None:
    result = run(capsys, "compare", folder, "--json")

    (panel,) = json.loads(result.out)
    results = read_results(folder)
    assert [price["design"] for price in panel["designs"]] == [
        "multinomial",
        "similarity",
        "power-of-choice candidates=6",
    ]
    for price in panel["designs"]:
        spent = []
        for seed in (0, 1):
            planned = PlannedRun("small", price["design"], seed)
            loss = results.column("rounds", planned, "loss")  # six rounds: a half-life of 1
            smoothed = [
                np.average(loss[: end + 1], weights=0.5 ** np.arange(end + 1)[::-1])
                for end in range(len(loss))
            ]
            reached = np.flatnonzero(np.array(smoothed) <= panel["level"])
            if len(reached):
                columns = (results.column("rounds", planned, c) for c in ("bytes_down", "bytes_up"))
                spent.append(sum(c[: reached[0] + 1].sum() for c in columns))
        assert price["n_reached"] == len(spent)
        assert price["n_seeds"] == 2
        expected = float(np.mean(spent)) if spent else None
        assert price["costs"]["bytes"] == (None if expected is None else pytest.approx(expected))


def test_the_table_has_a_line_per_design_and_says_what_it_means(
    folder: Path, capsys: Capture
) -> None:
    result = run(capsys, "compare", folder)

    assert result.code == 0
    assert "until the smoothed loss is at most" in result.out
    for name in ("multinomial", "similarity", "power-of-choice"):
        assert sum(line.startswith(name) for line in result.out.splitlines()) == 1


def test_variances_are_shown_if_they_were_measured(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    text = SMALL.replace("[training]", "[server]\noracle_every = 2\n[training]")
    measured = small_run(tmp_path, text)

    table, (panel,) = (
        run(capsys, "compare", measured),
        json.loads(run(capsys, "compare", measured, "--json").out),
    )
    without, (bare,) = (
        run(capsys, "compare", folder),
        json.loads(run(capsys, "compare", folder, "--json").out),
    )

    first = panel["designs"][0]
    assert first["variance"] == pytest.approx(1)
    assert 0 < first["floor"] < 1
    assert first["above_floor"] == pytest.approx(1)
    assert "V / V_MD" in table.out
    assert f"{first['floor']:.3f}" in table.out
    assert "V / V_MD" not in without.out
    assert [each["variance"] for each in bare["designs"]] == [None] * 3


def test_a_narrow_table_of_variances_loses_no_column(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = small_run(
        tmp_path, SMALL.replace("[training]", "[server]\noracle_every = 2\n[training]")
    )
    outputs = {}
    for width in (80, 200):
        monkeypatch.setattr("fedcohort.cli.options.COLUMNS", width)
        outputs[width] = run(capsys, "compare", measured).out
    (panel,) = json.loads(run(capsys, "compare", measured, "--json").out)

    for width, out in outputs.items():
        lines = out.splitlines()
        n_tables = 2 if width == 80 else 1
        assert max(map(len, lines)) <= width
        assert "…" not in out
        assert sum(line.startswith("multinomial") for line in lines) == n_tables
        for price in panel["designs"]:
            for name in ("final_loss", "variance", "floor", "above_floor"):
                assert f"{price[name]:.3f}" in out


def test_asking_candidates_costs_bytes(folder: Path) -> None:
    """Those that train get the model; with candidates all six get it, and train on it if drawn."""
    results = read_results(folder)
    plain, asking = (
        PlannedRun("small", n, 0) for n in ("similarity", "power-of-choice candidates=6")
    )
    model = results.column("rounds", plain, "bytes_down") / results.column(
        "rounds", plain, "distinct_clients"
    )

    assert (model == model[0]).all()
    assert (results.column("rounds", asking, "bytes_down") == 6 * model[0]).all()


def test_the_figure_is_loss_against_costs(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

    result = run(capsys, "compare", folder, "--plot", tmp_path / "costs.svg")

    assert result.code == 0
    assert "simulated time" in (tmp_path / "costs.svg").read_text()


def test_the_same_costs_give_the_same_bytes(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

    for name in ("one.svg", "two.svg"):
        run(capsys, "compare", folder, "--plot", tmp_path / name)

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_folder_that_is_no_run_and_a_run_without_rounds_are_refused(
    tmp_path: Path, capsys: Capture
) -> None:
    nothing = run(capsys, "compare", tmp_path)
    begun = run(capsys, "compare", make_folder(tmp_path))

    assert nothing.code == begun.code == 2
    assert "is not a run folder" in nothing.err
    assert "has no results yet" in begun.err


def test_sizes_need_the_number_of_draws(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "sizes.csv").write_text("size\n5\n3\n")

    result = run(capsys, "compare", tmp_path / "sizes.csv")

    assert result.code == 2
    assert "compare: needs --cohort-size" in result.err


def test_options_for_sizes_are_not_ignored_in_silence(folder: Path, capsys: Capture) -> None:
    result = run(capsys, "compare", folder, "--cohort-size", 3)

    assert result.code == 2
    assert "a run folder needs no --cohort-size" in result.err


def test_norms_follow_from_given_updates(tmp_path: Path, capsys: Capture) -> None:
    """Norms 3 and 1, equal sizes, one draw: chances 3/4 and 1/4, V = (1/3 9 + 3 1) / 4."""
    (tmp_path / "sizes.csv").write_text("size\n1\n1\n")
    np.save(tmp_path / "updates.npy", np.array([[3.0], [-1.0]]))
    files = (tmp_path / "sizes.csv", "--updates", tmp_path / "updates.npy")

    result = run(capsys, "compare", *files, "-m", 1, "-d", "norm-optimal", "--json")

    (row,) = json.loads(result.out)["designs"]
    assert row["aggregate_variance"] == pytest.approx((9 / 3 + 3) / 4)
