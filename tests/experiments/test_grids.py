"""Grids: tried on multinomial sampling with the first seed, the lowest final loss is kept."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial
from fedcohort.errors import ExperimentError
from fedcohort.experiments import RunFolder, read_results
from fedcohort.experiments.results import candidate_losses, chosen_training, final_loss
from fedcohort.experiments.tables import SCHEMAS, keep_table
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


def plain_loss(folder: RunFolder, lr: float, mu: float) -> float:
    """Train multinomial sampling alone with the first seed; return the last quarter's loss."""
    (panel,) = folder.experiment.panels
    data = panel.data.federation(load_dataset("digits"), 3)
    training = LocalTraining(steps=4, batch_size=10, lr=lr, mu=mu)
    simulation = Simulation(
        [Run(Multinomial(3), data, 3)], lambda: mlp(64, 50), training, Options(device="cpu")
    )
    (history,) = simulation.run(8)
    losses = [each.quality.loss for each in history.rounds if each.quality is not None]
    return float(np.mean(losses[6:]))


def test_the_choice_is_the_candidate_of_lowest_loss(tuned: RunFolder) -> None:
    expected = {(lr, mu): plain_loss(tuned, lr, mu) for lr in LRS for mu in MUS}

    found = candidate_losses(tuned, "small")

    assert found == pytest.approx(expected, rel=1e-6)
    best = min(expected, key=lambda point: expected[point])
    chosen = chosen_training(tuned, "small")
    assert (chosen.lr, chosen.mu) == best == (0.05, 10.0)


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
    assert chosen_training(RunFolder.open(path), "small") == chosen_training(tuned, "small")


def test_a_candidate_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    text = SMALL.replace("lr = 0.1", "lr = [1e30, 0.1, 1e6]")

    folder = RunFolder.open(small_run(tmp_path, text))

    losses = candidate_losses(folder, "small")
    assert losses[1e30, 0.0] == math.inf
    assert losses[1e6, 0.0] > 1000
    assert chosen_training(folder, "small").lr == 0.1
    assert "diverges" in folder.diverged(folder.units[0]).read_text()


def test_a_candidate_that_diverged_is_not_tried_again(tmp_path: Path) -> None:
    path = make_folder(tmp_path, SMALL.replace("lr = 0.1", "lr = [1e30, 0.1]"))
    go_on(path, rounds=2)
    folder = RunFolder.open(path)
    reason = folder.diverged(folder.units[0])
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
        "panel 'small': every candidate of the grid diverges. Try smaller lr."
    )


def test_a_loss_that_is_no_number_is_not_the_lowest(tmp_path: Path) -> None:
    folder = RunFolder.open(small_run(tmp_path, SMALL.replace("lr = 0.1", "lr = [0.2, 0.1]")))
    path = folder.table(folder.units[0], "rounds")
    table = pq.read_table(path, partitioning=None)
    nowhere = pa.array([math.nan] * table.num_rows, pa.float64())
    keep_table(path, table.set_column(table.column_names.index("loss"), "loss", nowhere))

    assert chosen_training(folder, "small").lr == 0.1


def test_only_the_last_quarter_counts(tmp_path: Path) -> None:
    text = SMALL.replace("rounds = 6", "rounds = 20").replace("lr = 0.1", "lr = [0.2]")
    text = text.replace("[training]", "[server]\nmeasure_every = 2\n[training]")
    folder = RunFolder.open(small_run(tmp_path, text.replace("seeds = [0, 1]", "seeds = [0]")))
    table = pq.read_table(
        folder.table(folder.units[0], "rounds"), schema=SCHEMAS["rounds"], partitioning=None
    )

    late = table.filter(pc.greater_equal(table["round"], 15))["loss"].to_pylist()
    measured = [loss for loss in late if loss is not None]
    assert len(measured) < len(late) == 5
    assert final_loss(folder, folder.units[0]) == pytest.approx(np.mean(measured), rel=1e-12)


def test_every_panel_chooses_for_itself(tmp_path: Path) -> None:
    panels = '[[panel]]\nlabel = "a"\n[[panel]]\nlabel = "b"\ntraining.lr = [0.3, 0.001]\n'
    text = SMALL.replace("lr = 0.1", "lr = [0.01, 0.3]") + panels

    folder = RunFolder.open(small_run(tmp_path, text))

    assert chosen_training(folder, "a").lr == 0.01
    assert set(candidate_losses(folder, "b")) == {(0.3, 0.0), (0.001, 0.0)}
    assert chosen_training(folder, "b").lr == 0.001
