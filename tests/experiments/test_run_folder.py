"""A run folder holds everything that happened, as the simulator itself would tell it."""

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial, Poisson, SimilarityClustered, SizeClustered, Uniform, __version__
from fedcohort.designs import SimilarityClusteredDesign
from fedcohort.errors import ExperimentError
from fedcohort.experiments import Results, RunFolder, execute, read_experiment, read_results
from fedcohort.experiments.units import PlannedRun
from fedcohort.simulation import (
    LocalTraining,
    Options,
    Run,
    Simulation,
    dirichlet_unbalanced,
    load_dataset,
    mlp,
)
from fedcohort.streams import Stream, stream
from small_runs import SMALL, contents, make_folder, small_run, write

TEXT = """
title = "Twin"
rounds = 5
seeds = [2, 0]
cohort_size = 4
checkpoint_every = 2
[data]
dataset = "digits"
partition = "dirichlet"
alpha = 0.1
sizes = [[3, 10], [4, 25], [2, 40]]
test_share = 0.4
[model]
name = "mlp"
hidden = 12
[training]
steps = 3
batch_size = 8
lr = 0.2
lr_decay = 0.9
momentum = 0.5
weight_decay = 0.01
mu = 0.1
[server]
server_lr = 0.7
measure_every = 2
oracle_every = 3
rows_every = 2
sketch = 16
[[design]]
recipe = "multinomial"
[[design]]
recipe = "size"
[[design]]
recipe = "similarity"
measure = "l2"
[[design]]
recipe = "poisson"
[[design]]
recipe = "uniform"
"""
ROW_DESIGNS = ("multinomial", "size", "similarity l2")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return read_results(small_run(tmp_path_factory.mktemp("folder"), TEXT))


@pytest.fixture(scope="module")
def twins() -> dict[PlannedRun, tuple[Simulation, Run]]:
    """Every run by itself, made by hand and trained alone."""
    recipes = {
        "multinomial": Multinomial(4),
        "size": SizeClustered(4),
        "similarity l2": SimilarityClustered(4, measure="l2"),
        "poisson": Poisson(4),
        "uniform": Uniform(4),
    }
    dataset = load_dataset("digits")
    training = LocalTraining(
        **{"steps": 3, "batch_size": 8, "lr": 0.2, "lr_decay": 0.9},  # type: ignore[arg-type]
        momentum=0.5,
        weight_decay=0.01,
        mu=0.1,
    )
    options = Options(server_lr=0.7, measure_every=2, oracle_every=3, rows_every=2, device="cpu")
    found = {}
    for seed in (2, 0):
        data = dirichlet_unbalanced(
            dataset, alpha=0.1, seed=seed, sizes=[(3, 10), (4, 25), (2, 40)], test_share=0.4
        ).renumbered(stream(seed, use=Stream.NUMBERING))
        for label, recipe in recipes.items():
            run = Run(recipe, data, seed, sketch=16)
            simulation = Simulation([run], lambda: mlp(64, 12), training, options)
            simulation.run(5)
            found[PlannedRun("small", label, seed)] = simulation, run
    return found


def lines(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_the_folder_has_what_is_documented(results: Results) -> None:
    """Two units, one for each seed."""
    names = {str(name) for name in contents(results.folder.path)}

    tables = [f"{name}.parquet" for name in ("rounds", "cohorts", "rows", "laws", "trees")]
    assert names == {
        *("run.json", "experiment.toml", "federations.parquet", "lock", "log.txt"),
        "checksums.json",
        *(
            f"units/{unit}/{name}"
            for unit in ("000", "001")
            for name in (*tables, "checksums.json")
        ),
    }


def test_the_head_says_configuration_versions_machine_command_and_date(results: Results) -> None:
    path = results.folder.path

    head = json.loads((path / "run.json").read_text())

    assert head["schema"] == 1
    assert head["versions"]["fedcohort"] == __version__
    assert head["versions"]["numpy"] == np.__version__
    assert head["versions"]["python"] == platform.python_version()
    assert head["machine"]["device"] == "cpu"
    assert head["machine"]["system"].startswith(platform.system())
    assert head["command"] == "fedcohort run"
    assert head["created"].endswith("+00:00")
    assert head["experiment"]["title"] == "Twin"
    assert head["experiment"]["panels"][0]["training"]["weight_decay"] == 0.01


def test_the_file_is_kept_as_it_was_given(results: Results) -> None:
    assert (results.folder.path / "experiment.toml").read_text() == TEXT


def test_an_opened_folder_is_the_one_that_was_made(tmp_path: Path) -> None:
    path = make_folder(tmp_path)

    folder = RunFolder.open(path)

    assert folder.experiment == read_experiment(tmp_path / "small.toml")
    assert [planned.seed for planned in folder.units[0].runs] == [0, 0, 1, 1]


def test_the_tables_have_the_documented_columns(results: Results) -> None:
    own = ["panel", "design", "seed"]
    columns = {
        "rounds": [
            *(*own, "round", "loss", "accuracy", "accuracy_spread", "worst_accuracy"),
            "loss_error",
            *("distinct_clients", "distinct_classes", "residual", "squared_error"),
            *("design_variance", "multinomial_variance", "beta_squared", "kappa_squared"),
            *("design_floor", "multinomial_floor"),
            *("draw_seconds", "train_seconds", "measure_seconds"),
            *("bytes_down", "bytes_up", "client_seconds", "contacted", "simulated_seconds"),
            *("failed_clients", "scaled_clients", "diverged"),
        ],
        "cohorts": [*own, "round", "client", "count", "weight"],
        "rows": [*own, "round", "client", "row"],
        "laws": [*own, "client", "inclusion", "weight_variance", "bias", "loss", "accuracy"],
        "trees": [*own, "merge", "left", "right", "height"],
    }

    for name, names in columns.items():
        file = results.folder.units[0].table(name)
        assert pq.read_schema(file).names == names
    path = results.folder.path / "federations.parquet"
    assert pq.read_schema(path).names == ["panel", "seed", "client", "class", "samples"]


def test_rounds_are_what_the_simulator_says_when_it_runs_alone(
    results: Results, twins: dict[PlannedRun, tuple[Simulation, Run]]
) -> None:
    for planned, (simulation, _) in twins.items():
        (history,) = simulation.histories
        for line, each in zip(lines(results.of("rounds", planned)), history.rounds, strict=True):
            assert line["round"] == each.round_
            assert line["distinct_clients"] == each.distinct_clients == len(each.clients)
            assert line["distinct_classes"] == each.distinct_classes
            assert line["residual"] == each.residual
            assert (line["loss"] is None) == (each.quality is None)
            if each.quality is not None:
                assert line["loss"] == pytest.approx(each.quality.loss, rel=1e-5)
                assert line["accuracy"] == pytest.approx(each.quality.accuracy, abs=1e-9)
                spread = each.quality.accuracy_spread
                assert line["accuracy_spread"] == pytest.approx(spread, abs=1e-9)
                worst = each.quality.worst_accuracy
                assert line["worst_accuracy"] == pytest.approx(worst, abs=1e-9)
            assert (line["squared_error"] is None) == (each.yardstick is None)
            if each.yardstick is not None:
                for name in ("squared_error", "design_variance", "multinomial_variance"):
                    expected = getattr(each.yardstick, name)
                    assert line[name] == pytest.approx(expected, rel=1e-3, abs=1e-9)
                for name in ("beta_squared", "kappa_squared", "design_floor", "multinomial_floor"):
                    assert line[name] == pytest.approx(getattr(each.yardstick, name), rel=1e-3)


def test_measurements_are_where_they_were_asked_for(results: Results) -> None:
    table = results.of("rounds", PlannedRun("small", "size", 2))

    measured = [line["round"] for line in lines(table) if line["loss"] is not None]
    judged = [line["round"] for line in lines(table) if line["squared_error"] is not None]

    assert {4} < set(measured) < set(range(5))
    assert judged == [0, 3]


def test_cohorts_are_what_the_simulator_draws(
    results: Results, twins: dict[PlannedRun, tuple[Simulation, Run]]
) -> None:
    for planned, (simulation, _) in twins.items():
        (history,) = simulation.histories
        found = [
            (line["round"], line["client"], line["count"], line["weight"])
            for line in lines(results.of("cohorts", planned))
        ]
        assert found == [
            (each.round_, client, count, weight)
            for each in history.rounds
            for client, count, weight in zip(each.clients, each.counts, each.weights, strict=True)
        ]


def test_weights_and_residual_make_one(results: Results) -> None:
    for planned in results.runs:
        cohorts, rounds = (
            lines(results.of("cohorts", planned)),
            lines(results.of("rounds", planned)),
        )
        for each in rounds:
            weights = [line["weight"] for line in cohorts if line["round"] == each["round"]]
            assert sum(weights) + each["residual"] == pytest.approx(1, abs=1e-12)


def test_row_designs_draw_as_often_as_the_cohort_is_large(results: Results) -> None:
    for planned in results.runs:
        if planned.design in ROW_DESIGNS:
            cohorts = lines(results.of("cohorts", planned))
            for round_ in range(5):
                drawn = [line for line in cohorts if line["round"] == round_]
                assert sum(line["count"] for line in drawn) == 4
                assert all(line["weight"] == line["count"] / 4 for line in drawn)


def test_federations_say_who_holds_what(
    results: Results, twins: dict[PlannedRun, tuple[Simulation, Run]]
) -> None:
    for (_, run), planned in zip(twins.values(), twins, strict=True):
        counts = results.class_counts("small", planned.seed)
        labels = run.data.dataset.y

        for client, samples in enumerate(run.data.train):
            expected = np.bincount(labels[samples], minlength=10)[: counts.shape[1]]
            assert counts[client].tolist() == expected.tolist()
            assert counts[client].sum() == len(samples)


def test_distinct_classes_can_be_counted_from_the_tables(results: Results) -> None:
    """The classes that the drawn clients hold, without the simulator."""
    for planned in results.runs:
        counts = results.class_counts("small", planned.seed)
        cohorts = lines(results.of("cohorts", planned))
        for each in lines(results.of("rounds", planned)):
            drawn = [line["client"] for line in cohorts if line["round"] == each["round"]]
            assert each["distinct_clients"] == len(drawn)
            held = {int(label) for client in drawn for label in np.flatnonzero(counts[client])}
            assert each["distinct_classes"] == len(held)


def test_rows_tell_which_distribution_holds_most_of_a_client(
    results: Results, twins: dict[PlannedRun, tuple[Simulation, Run]]
) -> None:
    for planned, (simulation, _) in twins.items():
        (history,) = simulation.histories
        found = [
            (line["round"], line["client"], line["row"])
            for line in lines(results.of("rows", planned))
        ]
        assert found == [
            (each.round_, client, row)
            for each in history.rounds
            if each.rows is not None
            for client, row in enumerate(each.rows)
        ]
    assert results.of("rows", PlannedRun("small", "size", 0)).num_rows > 0


def test_laws_are_those_of_the_next_designs(
    results: Results, twins: dict[PlannedRun, tuple[Simulation, Run]]
) -> None:
    for planned, (simulation, _) in twins.items():
        (design,) = simulation.next_designs()

        inclusion = results.column("laws", planned, "inclusion")
        variance = results.column("laws", planned, "weight_variance")
        assert inclusion == pytest.approx(design.inclusion_probability(), abs=1e-12)
        assert variance == pytest.approx(design.weight_variance(), abs=1e-12)
        assert results.column("laws", planned, "bias") == pytest.approx(design.bias(), abs=1e-12)


def test_the_last_model_is_judged_on_every_client(
    results: Results, twins: dict[PlannedRun, tuple[Simulation, Run]]
) -> None:
    for planned, (simulation, _) in twins.items():
        (quality,) = simulation.client_quality()

        loss, accuracy = (results.column("laws", planned, name) for name in ("loss", "accuracy"))
        assert loss == pytest.approx(quality.loss, rel=1e-5, nan_ok=True)
        assert accuracy == pytest.approx(quality.accuracy, abs=1e-9, nan_ok=True)


def test_trees_join_all_clients_bottom_up(
    results: Results, twins: dict[PlannedRun, tuple[Simulation, Run]]
) -> None:
    for planned, (simulation, run) in twins.items():
        tree = lines(results.of("trees", planned))
        (design,) = simulation.next_designs()
        if not isinstance(design, SimilarityClusteredDesign):
            assert tree == []
            continue
        n = run.data.n_clients
        joined = [node for line in tree for node in (line["left"], line["right"])]
        assert [line["merge"] for line in tree] == list(range(len(tree)))
        assert len(set(joined)) == len(joined)
        assert {node for node in joined if node < n} == set(design.leaves.tolist())
        for line in tree:
            assert max(line["left"], line["right"]) < n + line["merge"]
        heights = [line["height"] for line in tree]
        assert design.tree.whole is not None
        assert heights == pytest.approx(design.tree.whole.heights.tolist(), rel=1e-4, abs=1e-6)


def test_runs_of_one_seed_begin_with_the_same_model(tmp_path: Path) -> None:
    text = SMALL.replace('"similarity"', '"multinomial"\nlabel = "again"')
    found = read_results(small_run(tmp_path, text))

    first, again = (PlannedRun("small", label, 1) for label in ("multinomial", "again"))

    assert found.column("rounds", first, "loss").tolist() == (
        found.column("rounds", again, "loss").tolist()
    )
    other = found.column("rounds", PlannedRun("small", "again", 0), "loss")
    assert found.column("rounds", again, "loss").tolist() != other.tolist()


def test_a_partition_alone_is_a_run(tmp_path: Path) -> None:
    text = 'rounds = 0\n[data]\ndataset = "digits"\npartition = "iid"\nn_clients = 4\n'

    found = read_results(small_run(tmp_path, text))

    assert found.tables["rounds"].num_rows == 0
    assert found.class_counts("small", 0).sum() == len(load_dataset("digits").y)
    assert found.folder.progress().state == "complete"


def test_a_partition_that_was_not_made_yet_is_not_complete(tmp_path: Path) -> None:
    text = 'rounds = 0\n[data]\ndataset = "digits"\npartition = "iid"\nn_clients = 4\n'

    path = make_folder(tmp_path, text)

    assert RunFolder.open(path).progress().state == "interrupted"


@pytest.mark.parametrize("occupied", ["run", "file", "other"])
def test_what_is_there_is_not_overwritten(occupied: str, tmp_path: Path) -> None:
    target = tmp_path / "run"
    if occupied == "run":
        make_folder(tmp_path)
    elif occupied == "file":
        target.write_text("precious")
    else:
        target.mkdir()
        (target / "precious").write_text("precious")
    before = contents(tmp_path)
    file = write(tmp_path)

    with pytest.raises(ExperimentError, match=r"Choose another .*--out"):
        RunFolder.create(
            target, read_experiment(file), source=file, device="cpu", command=["fedcohort"]
        )

    assert contents(tmp_path) == {**before, "small.toml": SMALL.encode()}


def test_an_empty_folder_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()

    assert make_folder(tmp_path) == tmp_path / "run"


def test_executing_a_complete_run_changes_nothing(ran: Callable[..., Path]) -> None:
    path = ran()
    before = contents(path)

    execute(RunFolder.open(path))

    assert contents(path) == before


def test_what_designs_say_of_themselves_is_logged_once(ran: Callable[..., Path]) -> None:
    text = (ran() / "log.txt").read_text()

    assert text.count("SimilarityClusteredDesign: exact tree of 10 clients") == 1


def test_failures_and_their_rules_are_part_of_an_experiment(tmp_path: Path) -> None:
    """Three rules on one seed: the same clients fail; renormalising keeps the weights' sum at 1."""
    rules = "".join(
        f'\n[[design]]\nrecipe = "multinomial"\nlabel = "{rule}"\non_failure = "{rule}"\n'
        for rule in ("redraw", "renormalise")
    )
    text = SMALL.replace("[[design]]", "[server]\nfailures = 0.5\n\n[[design]]", 1) + rules

    results = read_results(small_run(tmp_path, text))

    lost = {
        design: results.column("rounds", PlannedRun("small", design, 0), "failed_clients")
        for design in ("multinomial", "redraw", "renormalise")
    }
    spread = PlannedRun("small", "renormalise", 0)
    residual = results.column("rounds", spread, "residual")
    answered = results.column("rounds", spread, "distinct_clients")
    assert lost["multinomial"].sum() > 0
    assert (lost["multinomial"] == lost["renormalise"]).all()
    assert (lost["redraw"] >= lost["multinomial"]).all()
    assert (residual == (answered == 0)).all()  # where nobody answers, the model stays
