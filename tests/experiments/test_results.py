"""What a run says, against plain loops and scipy."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.experiments import Results, read_results
from fedcohort.experiments.costs import spent
from fedcohort.experiments.results import (
    Curve,
    Interval,
    common_rounds,
    curve,
    half_life_of,
    interval,
    summarise,
    window_of,
)
from fedcohort.experiments.tables import SCHEMAS
from fedcohort.experiments.units import PlannedRun
from small_runs import SMALL, make_folder, small_run

ROUNDS = 12


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Some rounds measured, of some seeds."""
    rounds = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=20)))
    seeds = draw(st.integers(1, 4))
    flat = draw(
        st.lists(
            st.floats(-100, 100),
            min_size=seeds * len(rounds),
            max_size=seeds * len(rounds),
        )
    )
    return Curve(np.array(rounds), np.array(flat).reshape(seeds, len(rounds)))


@given(curves(), st.integers(1, 60))
def test_a_smoothed_value_is_a_mean_whose_weights_halve_with_age(
    measured: Curve, half_life: int
) -> None:
    smoothed = measured.smoothed(half_life)

    assert (smoothed.rounds == measured.rounds).all()
    for seed, values in enumerate(measured.values):
        for place, end in enumerate(measured.rounds):
            ages = end - measured.rounds[: place + 1]
            mean = np.average(values[: place + 1], weights=0.5 ** (ages / half_life))
            assert smoothed.values[seed, place] == pytest.approx(mean, abs=1e-11)


def test_a_straight_line_is_smoothed_without_a_kink() -> None:
    """A window that is full after 50 rounds bends a falling line there; this mean must not."""
    line = Curve(np.arange(200), -np.arange(200.0)[None])

    bends = np.diff(line.smoothed(5).values[0], n=2)

    # The lag grows from 0 to its limit, by less in every round.
    assert (bends < 0).all()
    assert (np.diff(bends[:100]) > 0).all()


@given(curves(), st.floats(-100, 100))
def test_first_below_counts_the_rounds_until_a_seed_gets_there(
    measured: Curve, level: float
) -> None:
    found = measured.first_below(level)

    for seed, values in enumerate(measured.values):
        there = [
            round_ for round_, value in zip(measured.rounds, values, strict=True) if value <= level
        ]
        if there:
            assert found[seed] == there[0] + 1
        else:
            assert math.isnan(found[seed])


def test_a_curve_without_points_is_never_below() -> None:
    empty = Curve(np.empty(0, dtype=np.int64), np.empty((2, 0)))

    assert np.isnan(empty.first_below(1.0)).all()
    assert empty.smoothed(5).values.shape == (2, 0)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_the_interval_is_students(values: list[float]) -> None:
    found = interval(np.array(values))

    mean, error = np.mean(values), stats.sem(values)
    low, high = (mean, mean) if error == 0 else stats.t.interval(0.95, len(values) - 1, mean, error)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, low, high), abs=1e-9)


def test_one_seed_has_no_spread() -> None:
    assert interval(np.array([3.0])) == Interval(3.0, -math.inf, math.inf)
    assert not interval(np.array([3.0])).excludes_zero


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (-0.1, 0.1, False), (0.0, 0.2, False)],
)
def test_a_difference_is_clear_when_its_interval_excludes_zero(
    low: float, high: float, excludes: bool
) -> None:
    assert Interval((low + high) / 2, low, high).excludes_zero is excludes


@pytest.mark.parametrize(
    ("rounds", "window", "half_life"),
    [(1, 1, 1), (7, 1, 1), (8, 2, 1), (150, 37, 4), (199, 49, 5), (1000, 50, 5)],
)
def test_the_window_is_the_papers_or_a_quarter_and_the_half_life_a_tenth_of_it(
    rounds: int, window: int, half_life: int
) -> None:
    assert (window_of(rounds), half_life_of(rounds)) == (window, half_life)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Three seeds, two designs, measured in every other round."""
    text = SMALL.replace("seeds = [0, 1]", "seeds = [4, 0, 2]").replace("rounds = 6", "rounds = 12")
    text = text.replace("[training]", "[server]\nmeasure_every = 2\n[training]")
    return read_results(small_run(tmp_path_factory.mktemp("summary"), text))


def plain(results: Results, design: str, seed: int, column: str) -> list[tuple[int, float]]:
    """Read a column line by line: the rounds in which something was measured."""
    return [
        (line["round"], line[column])
        for line in results.tables["rounds"].to_pylist()
        if (line["design"], line["seed"]) == (design, seed)
        and line[column] is not None
        and not math.isnan(line[column])
    ]


def late(results: Results, design: str, seed: int, column: str) -> list[float]:
    """Read the last quarter of the twelve rounds."""
    lines = plain(results, design, seed, column)
    return [value for round_, value in lines if round_ >= ROUNDS - 3]


def test_the_final_values_are_means_of_the_last_quarter(run: Results) -> None:
    (panel,) = run.folder.experiment.panels

    summary = summarise(run, panel)

    assert summary is not None
    assert (summary.seeds, summary.rounds, summary.window) == ([4, 0, 2], ROUNDS, 3)
    for design in summary.designs:
        for column, found in (
            ("loss", design.final_loss),
            ("accuracy", design.final_accuracy),
            ("distinct_classes", design.classes),
            ("distinct_clients", design.clients),
            ("distinct_clients", 3 * design.share),
        ):
            means = [np.mean(late(run, design.label, seed, column)) for seed in summary.seeds]
            assert found.tolist() == pytest.approx(means, abs=1e-12)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two seeds, two designs, six rounds, compared with full participation in every round."""
    text = SMALL.replace("[training]", "[server]\noracle_every = 1\n[training]")
    return read_results(small_run(tmp_path_factory.mktemp("judged"), text))


def test_variances_are_ratios_of_sums_over_the_second_half(judged: Results) -> None:
    summary = summarise(judged, judged.folder.experiment.panels[0])

    assert summary is not None
    for design in summary.designs:
        for place, seed in enumerate(summary.seeds):
            v, v_md, floor, floor_md = (
                sum(value for at, value in plain(judged, design.label, seed, name) if at >= 3)
                for name in (
                    *("design_variance", "multinomial_variance"),
                    *("design_floor", "multinomial_floor"),
                )
            )
            assert design.variance[place] == pytest.approx(v / v_md, rel=1e-12)
            assert design.floor[place] == pytest.approx(floor / v_md, rel=1e-12)
            above = (v - floor) / (v_md - floor_md)
            assert design.above_floor[place] == pytest.approx(above, rel=1e-9)
            assert 0 < floor < v_md


def with_column(results: Results, name: str, value: float) -> Results:
    """Set a column of the rounds that have it to one value."""
    table = results.tables["rounds"]
    column = [None if each is None else value for each in table[name].to_pylist()]
    at = table.column_names.index(name)
    table = table.set_column(at, name, pa.array(column, pa.float64()))
    return replace(results, tables={**results.tables, "rounds": table})


def test_the_share_above_the_floor_may_be_negative_or_undefined(
    judged: Results, run: Results
) -> None:
    """Undefined: multinomial sampling has nothing above its floor, or nothing was measured."""
    (panel,) = judged.folder.experiment.panels
    low = summarise(with_column(judged, "design_variance", 0.0), panel)
    high = summarise(with_column(judged, "multinomial_floor", 1e9), panel)
    alike = summarise(with_column(judged, "multinomial_variance", 0.0), panel)
    nothing = summarise(run, run.folder.experiment.panels[0])

    assert low is not None
    assert high is not None
    assert alike is not None
    assert nothing is not None
    assert all((each.above_floor < 0).all() for each in low.designs)
    for each in (*high.designs, *alike.designs, *nothing.designs):
        assert np.isnan(each.above_floor).all()
    assert all(np.isnan(each.variance).all() for each in nothing.designs)


def test_a_design_that_diverged_has_no_variance(judged: Results) -> None:
    (panel,) = judged.folder.experiment.panels
    table = judged.tables["rounds"]
    marks = [design == "similarity" for design in table["design"].to_pylist()]
    at = table.column_names.index("diverged")
    rounds = table.set_column(at, "diverged", [marks])

    summary = summarise(replace(judged, tables={**judged.tables, "rounds": rounds}), panel)

    assert summary is not None
    assert [np.isnan(each.variance).all() for each in summary.designs] == [False, True]


def test_differences_are_paired_by_seed(run: Results) -> None:
    summary = summarise(run, run.folder.experiment.panels[0])

    assert summary is not None
    assert summary.baseline == "multinomial"
    base, other = summary.designs
    pairs = [
        np.mean(late(run, "similarity", seed, "loss"))
        - np.mean(late(run, "multinomial", seed, "loss"))
        for seed in (4, 0, 2)
    ]
    low, high = stats.t.interval(0.95, 2, np.mean(pairs), stats.sem(pairs))
    assert base.difference is None
    assert other.difference is not None
    assert (other.difference.low, other.difference.high) == pytest.approx((low, high), abs=1e-12)


def test_rounds_needed_and_jumps_are_those_of_plain_loops(run: Results) -> None:
    summary = summarise(run, run.folder.experiment.panels[0])

    assert summary is not None
    ends = [np.mean(late(run, "multinomial", seed, "loss")) for seed in summary.seeds]
    assert summary.level == pytest.approx(np.mean(ends), abs=1e-12)
    for design in summary.designs:
        for place, seed in enumerate(summary.seeds):
            lines = plain(run, design.label, seed, "loss")
            needed = math.nan
            for end, _ in reversed(lines):
                past = [(end - round_, value) for round_, value in lines if round_ <= end]
                ages, values = np.array(past).T
                if np.average(values, weights=0.5**ages) <= summary.level:
                    needed = end + 1
            ending = late(run, design.label, seed, "loss")
            jumps = [abs(b - a) for a, b in pairwise(ending)]
            assert design.rounds_needed[place] == pytest.approx(needed, nan_ok=True)
            assert design.jump[place] == pytest.approx(np.mean(jumps), abs=1e-12)


def test_a_seed_that_has_just_begun_does_not_shorten_the_others(run: Results) -> None:
    (panel,) = run.folder.experiment.panels
    lines = run.tables["rounds"].to_pylist()
    kept = [line for line in lines if line["seed"] != 2 or line["round"] < 2]
    rounds = pa.Table.from_pylist(kept, schema=SCHEMAS["rounds"])
    begun = Results(run.folder, {**run.tables, "rounds": rounds}, run.federations)

    summary = summarise(begun, panel)

    assert common_rounds(begun, panel) == ([4, 0], ROUNDS)
    assert summary is not None
    assert (summary.seeds, summary.rounds) == ([4, 0], ROUNDS)
    assert curve(begun, panel, "similarity", "loss").values.shape[0] == 2


def with_divergence(run: Results, design: str, *, seed: int, round_: int) -> Results:
    """Mark a run as diverged from a round on."""
    table = run.tables["rounds"]
    lines = zip(*(table[name].to_pylist() for name in ("design", "seed", "round")), strict=True)
    marks = [(its, of) == (design, seed) and at >= round_ for its, of, at in lines]
    assert sum(marks) == 12 - round_
    at = table.column_names.index("diverged")
    return replace(run, tables={**run.tables, "rounds": table.set_column(at, "diverged", [marks])})


def test_a_curve_ends_where_a_seed_diverges(run: Results) -> None:
    """Seed 2 of multinomial from round 4 on, of 12 rounds; the other design is as before."""
    (panel,) = run.folder.experiment.panels
    broken = with_divergence(run, "multinomial", seed=2, round_=4)

    for name in ("loss", "distinct_clients"):
        before, after = (curve(each, panel, "multinomial", name) for each in (run, broken))
        assert after.rounds.tolist() == [each for each in before.rounds.tolist() if each < 4]
        assert (after.values == before.values[:, before.rounds < 4]).all()
    summary = summarise(broken, panel)
    assert summary is not None
    first, second = summary.designs
    assert np.isnan(first.final_loss).all()
    assert first.divergence == "diverged in 1 of 3 seeds, from round 5 on"
    assert not np.isnan(second.final_loss).any()


def test_a_design_that_diverges_in_the_last_round_has_no_final_values(run: Results) -> None:
    """The window of 12 rounds has 3; the two before the last would be called final."""
    (panel,) = run.folder.experiment.panels

    summary = summarise(with_divergence(run, "multinomial", seed=2, round_=11), panel)

    assert summary is not None
    first, second = summary.designs
    for name in ("final_loss", "final_accuracy", "classes", "clients", "jump"):
        assert np.isnan(getattr(first, name)).all()
    assert math.isnan(summary.level)
    assert second.difference is not None
    assert math.isnan(second.difference.mean)


def test_a_run_that_diverged_at_once_has_spent_what_it_spent(run: Results) -> None:
    (panel,) = run.folder.experiment.panels
    broken = with_divergence(run, "multinomial", seed=2, round_=0)

    before, after = (spent(each, panel, "multinomial", "bytes") for each in (run, broken))

    assert before is not None
    assert before.shape == (3, 12)
    np.testing.assert_array_equal(before, after)


def test_designs_are_compared_over_the_rounds_that_all_have_done(run: Results) -> None:
    (panel,) = run.folder.experiment.panels
    lines = run.tables["rounds"].to_pylist()
    kept = [line for line in lines if line["design"] != "similarity" or line["round"] < 8]
    rounds = pa.Table.from_pylist(kept, schema=SCHEMAS["rounds"])
    begun = Results(run.folder, {**run.tables, "rounds": rounds}, run.federations)

    assert common_rounds(begun, panel) == ([4, 0, 2], 8)
    assert curve(begun, panel, "multinomial", "distinct_clients").rounds.tolist() == list(range(8))


def test_nothing_is_said_of_a_run_without_rounds(tmp_path: Path, run: Results) -> None:
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    panel = run.folder.experiment.panels[0]

    assert summarise(Results(run.folder, empty, run.federations), panel) is None


def test_a_run_of_one_seed_and_one_round_is_judged(tmp_path: Path) -> None:
    text = SMALL.replace("seeds = [0, 1]", "seeds = [3]").replace("rounds = 6", "rounds = 1")
    results = read_results(small_run(tmp_path, text))

    summary = summarise(results, results.folder.experiment.panels[0])

    assert summary is not None
    difference = summary.designs[1].difference
    assert difference is not None
    assert math.isinf(difference.high)
    loss = results.column("rounds", PlannedRun("small", "similarity", 3), "loss")
    assert summary.designs[1].final_loss.tolist() == loss.tolist()
    assert summary.designs[0].rounds_needed.tolist() == [1.0]


def test_results_before_the_first_round_are_asked_for_later(tmp_path: Path) -> None:
    path = make_folder(tmp_path)

    with pytest.raises(ValueError, match=f"{path}: has no results yet. Run: fedcohort resume"):
        read_results(path)
