"""Units: every run once, together what can train together; run anywhere, and their ends."""

import pickle
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.errors import ExperimentError, WriteError
from fedcohort.experiments import Experiment, Observer, RunFolder, read_experiment
from fedcohort.experiments.runner import Ledger, Outcome, UnitRunner
from fedcohort.experiments.settings import Rates
from fedcohort.experiments.units import (
    LANES,
    PlannedRun,
    Unit,
    baseline_of,
    lanes_of,
    needed_by,
    plan_units,
    worded_plan,
)
from small_runs import SMALL, make_folder, small_run, tables, write

RECIPES = ["multinomial", "size", "similarity", "target", "uniform"]


def a_panel(values: tuple[int, int, int, int, float, str, list[float]]) -> dict[str, Any]:
    seeds, designs, cohort, rounds, lr, dataset, mus = values
    return {
        "seeds": list(range(seeds)),
        "rounds": rounds,
        "cohort_size": cohort,
        "data": {"dataset": dataset, "partition": "iid"},
        "training": {"steps": 1, "lr": lr, "mu": mus if len(mus) > 1 else mus[0]},
        "design": [{"recipe": recipe, "label": recipe} for recipe in RECIPES[:designs]],
    }


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """Up to four panels of all kinds."""
    values = st.tuples(
        st.integers(1, 6),
        st.integers(1, 5),
        st.sampled_from([3, 10, 40]),
        st.sampled_from([5, 6]),
        st.sampled_from([0.1, 0.2]),
        st.sampled_from(["digits", "mnist"]),
        st.sampled_from([[0.0], [0.0, 0.1]]),
    )
    found = draw(st.lists(values, min_size=1, max_size=4))
    panels = [{"label": f"panel {k}", **a_panel(value)} for k, value in enumerate(found)]
    return Experiment.of({"name": "x", "panels": panels})


def of_runs(experiment: Experiment, device: str) -> list[Unit]:
    return [unit for unit in plan_units(experiment, device) if unit.candidate is None]


@given(experiments(), st.sampled_from(sorted(LANES)))
def test_every_run_is_in_one_unit_once(experiment: Experiment, device: str) -> None:
    found = Counter(planned for unit in of_runs(experiment, device) for planned in unit.runs)

    assert found == Counter(
        PlannedRun(panel.label, entry.label, seed)
        for panel in experiment.panels
        for entry in panel.design
        for seed in panel.seeds
    )


@given(experiments(), st.sampled_from(sorted(LANES)))
def test_the_designs_of_a_panel_and_seed_are_together_unless_they_are_too_many(
    experiment: Experiment, device: str
) -> None:
    """Then their parts have as many designs, or one less."""
    places: dict[tuple[str, int], Counter[int]] = {}
    for unit in of_runs(experiment, device):
        for planned in unit.runs:
            places.setdefault((planned.panel, planned.seed), Counter())[unit.number] += 1

    for (label, _), counts in places.items():
        panel = experiment.panel(label)
        fits = panel.cohort_size * len(panel.design) <= LANES[device].most
        assert (len(counts) == 1) is fits
        assert max(counts.values()) - min(counts.values()) <= 1


@given(experiments(), st.sampled_from(sorted(LANES)))
def test_no_more_clients_train_together_than_the_device_takes(
    experiment: Experiment, device: str
) -> None:
    """Only a unit of one seed has more than enough."""
    for unit in of_runs(experiment, device):
        seeds = {(planned.panel, planned.seed) for planned in unit.runs}

        assert lanes_of(unit, experiment) <= LANES[device].most
        assert lanes_of(unit, experiment) <= LANES[device].enough or len(seeds) == 1


def test_a_design_with_more_clients_than_the_device_takes_is_alone(tmp_path: Path) -> None:
    text = f'{SMALL}[[design]]\nrecipe = "size"\ncohort_size = 100\n'
    experiment = read_experiment(write(tmp_path, text))

    units = plan_units(experiment, "cpu")

    assert [[run.design for run in unit.runs] for unit in units] == [
        ["multinomial", "similarity"],
        ["size cohort_size=100"],
    ] * 2


@given(experiments(), st.sampled_from(sorted(LANES)))
def test_what_cannot_train_together_is_apart(experiment: Experiment, device: str) -> None:
    for unit in of_runs(experiment, device):
        panels = [experiment.panel(label) for label in {planned.panel for planned in unit.runs}]
        first = panels[0]

        for panel in panels:
            assert panel.data.dataset == first.data.dataset
            assert (panel.model, panel.training.mu) == (first.model, first.training.mu)
            assert (panel.server, panel.rounds) == (first.server, first.rounds)
            assert panel.label == first.label or not panel.is_grid


@pytest.mark.parametrize(
    "change",
    [
        "rounds = 7",
        'data.dataset = "mnist"',
        'model = {name = "mlp", hidden = 7}',
        "training.mu = 0.2",
        "server.measure_every = 2",
        "",
        "training.lr = 0.2",
        "server.server_lr = 0.5",
    ],
)
def test_panels_that_differ_in_how_they_train_are_apart(change: str, tmp_path: Path) -> None:
    text = f'{SMALL}[[panel]]\nlabel = "a"\n[[panel]]\nlabel = "b"\n{change}\n'

    units = plan_units(read_experiment(write(tmp_path, text)), "cuda")

    assert len(units) == (2 if change and "lr" not in change else 1)


@given(experiments(), st.sampled_from(sorted(LANES)))
def test_neighbours_that_fit_are_not_kept_apart(experiment: Experiment, device: str) -> None:
    """Two units of one panel in a row are full: the next one's first seed did not fit."""
    units = of_runs(experiment, device)
    for unit, after in pairwise(units):
        panel = experiment.panel(after.runs[0].panel)
        if {planned.panel for planned in (*unit.runs, *after.runs)} == {panel.label}:
            next_seed = [run for run in after.runs if run.seed == after.runs[0].seed]
            clients = panel.cohort_size * (len(unit.runs) + len(next_seed))
            assert clients > LANES[device].enough


@given(experiments())
def test_units_are_numbered_and_survive_a_file(experiment: Experiment) -> None:
    units = plan_units(experiment, "cpu")

    assert [unit.number for unit in units] == list(range(len(units)))
    assert [Unit.of_dict(unit.as_dict(), experiment, Path()) for unit in units] == units


def test_grids_come_first_one_unit_for_every_candidate(tmp_path: Path) -> None:
    changes = ["training.lr=[0.1, 0.2]", "training.mu=[0.0, 1.0]", "seeds=[5, 3]"]
    experiment = read_experiment(write(tmp_path), changes=changes)

    units = plan_units(experiment, "cpu")

    candidates = [unit.candidate for unit in units]
    points = [(0.1, 0.0), (0.1, 1.0), (0.2, 0.0), (0.2, 1.0)]
    assert candidates == [*(Rates(lr, mu, 1.0) for lr, mu in points), None]
    judge = PlannedRun("small", "multinomial", 5)
    assert [unit.runs for unit in units[:4]] == [(judge,)] * 4


def test_a_unit_waits_for_the_grids_of_its_panels(tmp_path: Path) -> None:
    text = f'{SMALL}[[panel]]\nlabel = "a"\ntraining.lr = [0.1, 0.2]\n[[panel]]\nlabel = "b"\n'

    units = plan_units(read_experiment(write(tmp_path, text)), "cpu")

    assert [len(needed_by(unit, units)) for unit in units] == [0, 0, 2, 0]
    assert needed_by(units[2], units) == units[:2]


def test_the_plan_says_how_runs_are_grouped(tmp_path: Path) -> None:
    changes = ["training.lr=[0.1, 0.2]", 'seeds="0-6"']
    grid = read_experiment(write(tmp_path), changes=changes)

    units = plan_units(grid, "cpu")

    assert worded_plan(units, grid) == (
        "2 units of 1 trial (3 clients together), 2 units of 6 runs (18 clients together), "
        "1 unit of 2 runs (6 clients together)"
    )
    assert worded_plan([], grid) == "no units"


def test_without_multinomial_the_first_design_is_the_judge(tmp_path: Path) -> None:
    text = SMALL.replace('"multinomial"', '"size"')
    first = read_experiment(write(tmp_path, text)).panels[0]
    last = f'{SMALL.replace("multinomial", "size")}[[design]]\nrecipe = "multinomial"\n'
    third = read_experiment(write(tmp_path, f'{last}label = "third"\n')).panels[0]

    assert baseline_of(first) == "size"
    assert baseline_of(third) == "third"


def test_a_plain_multinomial_is_the_judge_rather_than_another(tmp_path: Path) -> None:
    """Plainly aggregated, and of the panel's own cohort size."""
    others = """
    [[design]]
    recipe = "multinomial"
    estimator = "difference"
    [[design]]
    recipe = "multinomial"
    cohort_size = 9
    """
    before = SMALL.replace('[[design]]\nrecipe = "multinomial"', others)
    first = read_experiment(write(tmp_path, before)).panels[0]
    plain = f'{before}[[design]]\nrecipe = "multinomial"\n'
    last = read_experiment(write(tmp_path, plain)).panels[0]

    assert baseline_of(first) == "multinomial + difference"
    assert baseline_of(last) == "multinomial"


def test_a_unit_can_be_run_anywhere_and_says_how_it_ended(tmp_path: Path) -> None:
    """As another process, a job of a cluster or a task does it: by the folder and a number."""
    once = tmp_path / "once"
    once.mkdir()
    folder = RunFolder.open(make_folder(tmp_path))
    stops = iter([False, False, True])
    runner = UnitRunner(folder, lambda message: None, lambda: next(stops), tracked=False)
    runner.prepare()

    stopped = runner.run(folder.units[0])
    again = UnitRunner(RunFolder.open(folder.path), lambda message: None, bool, tracked=False)
    outcomes = [again.run(unit) for unit in folder.units]

    assert stopped == Outcome(is_stopped=True)
    assert outcomes == [Outcome()] * len(folder.units)
    assert all(unit.is_done for unit in folder.units)
    assert folder.progress().state == "complete"
    assert tables(folder.path) == tables(small_run(once))


def test_a_failure_is_recorded_until_the_unit_begins_again(tmp_path: Path) -> None:
    unit = RunFolder.open(make_folder(tmp_path)).units[0]

    unit.record_end("failed", "its worker died")
    failed = unit.ended("failed"), unit.is_done, (unit.folder / "failed.txt").read_text()
    unit.begin()

    assert failed == (True, False, "its worker died\n")
    assert not unit.ended("failed")


def test_a_unit_reports_an_error_that_another_process_can_raise(tmp_path: Path) -> None:
    folder = RunFolder.open(make_folder(tmp_path))
    unit = folder.units[0]
    unit.begin()
    unit.checkpoint.write_text("no checkpoint")

    outcome = UnitRunner(folder, lambda message: None, bool, tracked=False).run(unit)

    received = pickle.loads(pickle.dumps(outcome))
    with pytest.raises(ExperimentError, match=r"cannot be read .* Delete the file"):
        Ledger(folder, Observer(), None).settle(unit, received)


def test_the_cause_of_an_error_and_the_place_of_an_internal_one_reach_another_process() -> None:
    full = ExperimentError("the run stopped")
    full.__cause__ = WriteError("rounds.parquet: no space left")
    try:
        int("nothing")
    except ValueError as error:
        internal = error

    first, second = (
        pickle.loads(pickle.dumps(Outcome(error=error))).error for error in (full, internal)
    )

    assert (type(first), str(first)) == (ExperimentError, "the run stopped")
    assert first.__cause__.place == "rounds.parquet: no space left"
    assert type(second) is RuntimeError
    assert re.fullmatch(
        r"(?s)a worker failed:\nTraceback .*test_units.py.*ValueError: .*'nothing'\n", str(second)
    )
