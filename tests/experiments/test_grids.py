"""Grids: tried by multinomial sampling or by every design, the lowest final loss is kept."""

import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import run
from fedcohort import Multinomial, Recipe, SimilarityClustered
from fedcohort.errors import ExperimentError
from fedcohort.experiments import RunFolder, execute, read_results
from fedcohort.experiments.settings import TUNE_SEED, Panel, Rates
from fedcohort.experiments.tables import SCHEMAS, keep_table
from fedcohort.experiments.tuning import (
    candidate_losses,
    chosen_rates,
    final_loss,
    tuning_table,
    worded_choice,
)
from fedcohort.experiments.units import plan_units
from fedcohort.simulation import LocalTraining, Options, Run, Simulation, load_dataset, mlp
from small_runs import SMALL, go_on, make_folder, small_run, tables

#: The best is in the middle of the one and at the end of the other.
LRS, MUS = [0.001, 0.05, 0.3], [0.0, 10.0]
GRID = (
    SMALL.replace("lr = 0.1", f"lr = {LRS}\nmu = {MUS}")
    .replace("seeds = [0, 1]", "seeds = [3, 0]")
    .replace("steps = 2", "steps = 4")
    .replace("rounds = 6", "rounds = 8")
)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder.open(small_run(tmp_path_factory.mktemp("grid"), GRID))


def plain_loss(panel: Panel, rates: Rates, *, seed: int = 3, recipe: Recipe | None = None) -> float:
    """Train one design alone; return the last quarter's loss."""
    data = panel.data.federation(load_dataset("digits"), seed)
    training = LocalTraining(steps=4, batch_size=10, lr=rates.lr, mu=rates.mu)
    options = Options(device="cpu", server_lr=rates.server_lr)
    runs = [Run(recipe or Multinomial(3), data, seed)]
    simulation = Simulation(runs, lambda: mlp(64, 50), training, options)
    (history,) = simulation.run(8)
    losses = [each.quality.loss for each in history.rounds if each.quality is not None]
    return float(np.mean(losses[6:]))


def chosen(folder: RunFolder) -> Rates:
    """Return what the first panel's designs train with."""
    return chosen_rates(folder, folder.experiment.panels[0], "multinomial")


def test_the_choice_is_the_candidate_of_lowest_loss(tuned: RunFolder) -> None:
    (panel,) = tuned.experiment.panels
    points = [Rates(lr, mu, 1.0) for lr in LRS for mu in MUS]
    expected = {point: plain_loss(panel, point) for point in points}

    found = candidate_losses(tuned, panel, "multinomial")

    assert found == pytest.approx(expected, rel=1e-6)
    best = min(expected, key=lambda point: expected[point])
    for design in ("multinomial", "similarity"):
        assert chosen_rates(tuned, panel, design) == best == (0.05, 10.0, 1.0)


def test_all_runs_train_with_the_choice(tuned: RunFolder, tmp_path: Path) -> None:
    text = GRID.replace(f"lr = {LRS}\nmu = {MUS}", "lr = 0.05\nmu = 10.0")

    plain = read_results(small_run(tmp_path, text))

    found = read_results(tuned.path)
    for name in ("cohorts", "rows", "laws", "trees"):
        assert found.tables[name].equals(plain.tables[name])
    assert found.tables["rounds"]["loss"].equals(plain.tables["rounds"]["loss"])


def test_what_was_tried_is_no_result(tuned: RunFolder) -> None:
    results = read_results(tuned.path)

    assert results.tables["rounds"].num_rows == 2 * 2 * 8
    assert {planned.seed for planned in results.runs} == {3, 0}


def test_trials_do_not_train_all_clients(tmp_path: Path) -> None:
    """Only their losses count: a comparison with full participation would be lost work."""
    text = GRID.replace("[[design]]", "[server]\noracle_every = 2\n\n[[design]]", 1)
    folder = RunFolder.open(small_run(tmp_path, text))

    for unit in folder.units:
        errors = pq.read_table(unit.table("rounds"))["squared_error"]
        compared = 0 if unit.candidate is not None else 4 * len(unit.runs)
        assert len(errors) - errors.null_count == compared


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 10, 29, 49])
def test_a_stop_in_the_middle_of_a_grid_changes_nothing(
    rounds: int, tuned: RunFolder, tmp_path: Path
) -> None:
    """Six candidates of eight rounds: stopped in the first, second and fourth, and after them."""
    path = make_folder(tmp_path, GRID)

    go_on(path, rounds=rounds)
    go_on(path, rounds=2)
    go_on(path)

    assert tables(path) == tables(tuned.path)
    assert chosen(RunFolder.open(path)) == chosen(tuned)


def test_a_candidate_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    text = SMALL.replace("lr = 0.1", "lr = [1e30, 0.1, 1e6]")

    folder = RunFolder.open(small_run(tmp_path, text))

    losses = candidate_losses(folder, folder.experiment.panels[0], "multinomial")
    assert losses[Rates(1e30, 0.0, 1.0)] == math.inf
    assert losses[Rates(1e6, 0.0, 1.0)] > 1000
    assert chosen(folder).lr == 0.1
    assert "diverges" in (folder.units[0].folder / "diverged.txt").read_text()


def test_a_candidate_that_diverged_is_not_tried_again(tmp_path: Path) -> None:
    path = make_folder(tmp_path, SMALL.replace("lr = 0.1", "lr = [1e30, 0.1]"))
    go_on(path, rounds=2)
    folder = RunFolder.open(path)
    reason = folder.units[0].folder / "diverged.txt"
    reason.write_text("seen before")

    go_on(path)

    assert reason.read_text() == "seen before"
    assert folder.progress().state == "complete"


def test_a_run_is_complete_when_a_candidate_was_given_up(tmp_path: Path) -> None:
    folder = RunFolder.open(small_run(tmp_path, SMALL.replace("lr = 0.1", "lr = [1e30, 0.1]")))

    progress = folder.progress()

    assert progress.state == "complete"
    assert progress.done == progress.total


def test_a_grid_of_which_everything_diverges_gets_one_sentence(tmp_path: Path) -> None:
    path = make_folder(tmp_path, SMALL.replace("lr = 0.1", "lr = [1e30, 1e35]"))

    with pytest.raises(ExperimentError) as found:
        go_on(path)

    assert str(found.value).endswith(
        "panel 'small': every candidate of the grid diverges with design 'multinomial'. Try "
        "smaller lr."
    )


def test_a_loss_that_is_no_number_is_not_the_lowest(tmp_path: Path) -> None:
    folder = RunFolder.open(small_run(tmp_path, SMALL.replace("lr = 0.1", "lr = [0.2, 0.1]")))
    path = folder.units[0].table("rounds")
    table = pq.read_table(path, partitioning=None)
    nowhere = pa.array([math.nan] * table.num_rows, pa.float64())
    keep_table(path, table.set_column(table.column_names.index("loss"), "loss", nowhere))

    assert chosen(folder).lr == 0.1


def test_only_the_last_quarter_counts(tmp_path: Path) -> None:
    text = SMALL.replace("rounds = 6", "rounds = 20").replace("lr = 0.1", "lr = [0.2]")
    text = text.replace("[training]", "[server]\nmeasure_every = 2\n[training]")
    folder = RunFolder.open(small_run(tmp_path, text.replace("seeds = [0, 1]", "seeds = [0]")))
    table = pq.read_table(
        folder.units[0].table("rounds"), schema=SCHEMAS["rounds"], partitioning=None
    )

    late = table.filter(pc.greater_equal(table["round"], 15))["loss"].to_pylist()
    measured = [loss for loss in late if loss is not None]
    assert len(measured) < len(late) == 5
    unit = folder.units[0]
    assert final_loss(folder, unit, unit.runs[0]) == pytest.approx(np.mean(measured), rel=1e-12)


def test_every_panel_chooses_for_itself(tmp_path: Path) -> None:
    panels = '[[panel]]\nlabel = "a"\n[[panel]]\nlabel = "b"\ntraining.lr = [0.3, 0.001]\n'
    text = SMALL.replace("lr = 0.1", "lr = [0.01, 0.3]") + panels

    folder = RunFolder.open(small_run(tmp_path, text))

    first, second = folder.experiment.panels
    assert chosen_rates(folder, first, "similarity").lr == 0.01
    assert {point.lr for point in candidate_losses(folder, second, "multinomial")} == {0.3, 0.001}
    assert chosen_rates(folder, second, "similarity").lr == 0.001


#: Every design for itself: the best are not the same.
EACH = GRID.replace(f"lr = {LRS}\nmu = {MUS}", f"lr = {LRS}\n[server]\nserver_lr = [0.5, 2.0]")
EACH = f'tune = "each"\n{EACH}'
POINTS = [Rates(lr, 0.0, server_lr) for lr in LRS for server_lr in (0.5, 2.0)]
DESIGNS = {"multinomial": Multinomial(3), "similarity": SimilarityClustered(3)}


@pytest.fixture(scope="module")
def each_tuned(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder.open(small_run(tmp_path_factory.mktemp("each"), EACH))


def test_every_design_chooses_for_itself_with_a_seed_of_its_own(each_tuned: RunFolder) -> None:
    (panel,) = each_tuned.experiment.panels
    for design, recipe in DESIGNS.items():
        expected = {
            point: plain_loss(panel, point, seed=TUNE_SEED, recipe=recipe) for point in POINTS
        }

        assert candidate_losses(each_tuned, panel, design) == pytest.approx(expected, rel=1e-4)
        best = min(expected, key=lambda point: expected[point])
        assert chosen_rates(each_tuned, panel, design) == best


def test_every_design_trains_with_its_own_choice(each_tuned: RunFolder) -> None:
    (panel,) = each_tuned.experiment.panels
    results = read_results(each_tuned.path)
    for planned in results.runs:
        rates = chosen_rates(each_tuned, panel, planned.design)

        expected = plain_loss(panel, rates, seed=planned.seed, recipe=DESIGNS[planned.design])

        found = results.column("rounds", planned, "loss")[6:].mean()
        assert found == pytest.approx(expected, rel=1e-4)


def test_a_grid_for_each_is_tried_by_all_designs_together(each_tuned: RunFolder) -> None:
    tried = [unit for unit in each_tuned.units if unit.candidate is not None]

    assert [unit.candidate for unit in tried] == POINTS
    for unit in tried:
        assert [(r.design, r.seed) for r in unit.runs] == [(name, TUNE_SEED) for name in DESIGNS]
    assert {run.seed for run in read_results(each_tuned.path).runs} == {3, 0}


def test_a_stop_while_designs_try_their_grids_changes_nothing(
    each_tuned: RunFolder, tmp_path: Path
) -> None:
    path = make_folder(tmp_path, EACH)

    for rounds in (3, 20, 30):
        go_on(path, rounds=rounds)
    go_on(path)

    assert tables(path) == tables(each_tuned.path)


@pytest.mark.slow
def test_workers_try_grids_as_one_process_does(each_tuned: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder.open(make_folder(tmp_path, EACH))

    execute(folder, workers=2)

    assert tables(folder.path) == tables(each_tuned.path)


def test_a_design_that_diverges_leaves_the_others_their_candidate(
    each_tuned: RunFolder, tmp_path: Path
) -> None:
    folder = RunFolder.open(shutil.copytree(each_tuned.path, tmp_path / "copy"))
    (panel,) = folder.experiment.panels
    best = chosen_rates(folder, panel, "similarity")
    (unit,) = [unit for unit in folder.units if unit.candidate == best]
    path = unit.table("rounds")
    table = pq.read_table(path, schema=SCHEMAS["rounds"], partitioning=None)
    marks = pc.equal(table["design"], "similarity")
    keep_table(path, table.set_column(table.column_names.index("diverged"), "diverged", marks))

    before, after = (candidate_losses(each, panel, "multinomial") for each in (each_tuned, folder))

    assert before == after
    assert candidate_losses(folder, panel, "similarity")[best] == math.inf
    assert chosen_rates(folder, panel, "similarity") != best


def test_a_unit_goes_on_until_all_its_designs_diverge(tmp_path: Path) -> None:
    text = SMALL.replace("lr = 0.1", "lr = [1e30, 0.1]")

    folder = RunFolder.open(small_run(tmp_path, f'tune = "each"\n{text}'))

    assert folder.units[0].ended("diverged")
    assert {chosen_rates(folder, folder.experiment.panels[0], d).lr for d in DESIGNS} == {0.1}


@pytest.mark.parametrize(("extra", "seed"), [("", TUNE_SEED), ("tune_seed = 0\n", 0)])
def test_a_tuning_seed_is_not_used_again(extra: str, seed: int, tmp_path: Path) -> None:
    text = f"{extra}{EACH.replace('seeds = [3, 0]', f'seeds = [3, {seed}]')}"

    with pytest.raises(ExperimentError, match=f"tune_seed must not be in seeds .* got {seed}"):
        make_folder(tmp_path, text)


def test_the_baseline_can_be_tuned_with_another_seed(tmp_path: Path) -> None:
    folder = RunFolder.open(make_folder(tmp_path, f"tune_seed = 8\n{GRID}"))

    units = plan_units(folder.experiment, "cpu")

    assert {run.seed for unit in units if unit.candidate for run in unit.runs} == {8}


def test_trials_can_be_shorter_than_runs(tmp_path: Path) -> None:
    text = SMALL.replace("lr = 0.1", "lr = [0.05, 0.1]")

    folder = RunFolder.open(small_run(tmp_path, f'tune = "each"\ntune_rounds = 2\n{text}'))

    (panel,) = folder.experiment.panels
    assert {unit.rounds for unit in folder.units if unit.candidate is not None} == {2}
    assert {unit.rounds for unit in folder.units if unit.candidate is None} == {panel.rounds}
    assert all(unit.is_done for unit in folder.units)
    assert worded_choice(folder, panel).endswith(f"with seed {TUNE_SEED} after 2 rounds")


def test_trials_cannot_be_longer_than_runs(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"tune_rounds must be at most rounds, \d+; got 999"):
        make_folder(tmp_path, f"tune_rounds = 999\n{GRID}")


def test_choices_are_told_in_words_and_in_a_table(
    each_tuned: RunFolder, tuned: RunFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (panel,) = each_tuned.experiment.panels
    rates = {name: chosen_rates(each_tuned, panel, name) for name in DESIGNS}
    texts = [f"{name}: lr {r.lr:g} server_lr {r.server_lr:g}" for name, r in rates.items()]

    assert worded_choice(each_tuned, panel) == (
        f"{', '.join(texts)}; each chosen with seed {TUNE_SEED}"
    )
    assert worded_choice(tuned, tuned.experiment.panels[0]) == (
        "lr 0.05 mu 10 for all designs, chosen by multinomial with seed 3"
    )
    lines = tuning_table(each_tuned).to_pylist()
    assert len(lines) == 2 * len(POINTS)
    marked = [(e["design"], Rates(e["lr"], e["mu"], e["server_lr"])) for e in lines if e["chosen"]]
    assert marked == list(rates.items())
    told = run(capsys, "compare", each_tuned.path).out
    assert f"tuned: {texts[0]}" in " ".join(told.split())
    run(capsys, "export", each_tuned.path, "--csv", "--out", tmp_path)
    assert len((tmp_path / "tuning.csv").read_text().splitlines()) == 1 + len(lines)
