"""Studies in Python: the same units, tables and folders as those of experiment files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from torch import nn

import fedcohort
from command_line import run
from fedcohort import (
    MIFA,
    Difference,
    FedStale,
    Multinomial,
    Regression,
    SizeClustered,
    Study,
    Tournament,
    study,
)
from fedcohort.errors import DesignError, ExperimentError
from fedcohort.experiments import RunFolder, execute, read_experiment
from fedcohort.experiments.results import interval
from fedcohort.simulation import Dataset, FederatedData, LocalTraining
from small_runs import SMALL, go_on, small_run, tables, write

TRAINING = LocalTraining(steps=2, batch_size=10, lr=0.1)


def wards(*, test: float | None = 0.25) -> FederatedData:
    """Six clients, each with two of three classes."""
    rng = np.random.default_rng(0)
    ward = np.repeat(np.arange(6), [14, 20, 9, 30, 16, 12])
    y = (ward + rng.integers(2, size=len(ward))) % 3
    x = rng.normal(size=(len(ward), 4)) + 2 * np.eye(3, 4)[y]
    return FederatedData.from_arrays(x, y, ward, test=test)


class Net(nn.Module):
    """A model whose code a worker cannot import by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@fedcohort.recipe
def largest(population: Any, known: Any, rng: Any, factor: float = 1.0) -> Any:
    return np.argsort(factor * population.sizes)[-known.cohort_size :]


def small(*designs: Any, **changes: Any) -> Study:
    given: dict[str, Any] = {"rounds": 4, "seeds": 2, "training": TRAINING, "device": "cpu"}
    usual: list[Any] = ["multinomial", SizeClustered(2)]
    return study(designs or usual, wards(), Net, **{**given, **changes})


@pytest.fixture(scope="module")
def done() -> Study:
    return small()


def test_a_study_has_the_tables_of_the_experiment_file_that_says_the_same(tmp_path: Path) -> None:
    file = small_run(tmp_path, SMALL)
    table = {"dataset": "digits", "partition": "one-class", "clients_per_class": 1}

    found = study(
        ["multinomial", "similarity"],
        {**table, "train_size": 20, "test_size": 5},
        rounds=6,
        seeds=2,
        cohort_size=3,
        training=TRAINING,
        device="cpu",
    )

    assert found.experiment.panels[0].label == "study"
    mine, other = tables(found.folder), tables(file)
    assert mine.keys() == other.keys()
    for name in mine:
        kept = [each for each in mine[name].column_names if each != "panel"]
        assert mine[name].select(kept).equals(other[name].select(kept))


def test_a_study_says_what_it_is_and_its_runs_know_theirs(done: Study) -> None:
    assert repr(done) == (
        "Study(designs=['multinomial', 'size'], seeds=2, rounds=4, state='complete')"
    )
    known = [(each.design, each.seed) for each in done.runs]
    assert known == [("multinomial", 0), ("size", 0), ("multinomial", 1), ("size", 1)]
    panel = done.experiment.panels[0]
    assert [entry.draws(panel) for entry in panel.design] == [2, 2]


def test_the_table_is_the_one_that_the_command_line_prints(
    done: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small().save(tmp_path / "kept")

    printed = run(capsys, "resume", path)

    assert str(done) == done.table()
    assert [line.rstrip() for line in printed.out.strip().splitlines()[:-2]] == (
        done.table().splitlines()
    )
    assert "<table>" in done._repr_html_()


def test_a_comparison_is_paired_by_seed(done: Study) -> None:
    one, other = done.summary().designs

    found = done.compare("size", "multinomial")

    assert found.loss == interval(other.final_loss - one.final_loss) == other.difference
    assert found.accuracy == interval(other.final_accuracy - one.final_accuracy)
    first, second = str(found).splitlines()
    assert first.startswith("loss of size minus that of multinomial: ")
    assert first.endswith("2 seeds): no more than the spread over seeds")
    assert " points (95 % interval " in second
    assert "(one seed: no interval)" in str(small(seeds=1).compare("size", "multinomial"))


def test_a_frame_has_a_row_for_every_run_and_round(done: Study) -> None:
    frame = done.to_frame()

    assert len(frame["loss"]) == 2 * 2 * 4
    last = [
        float(loss)
        for loss, design, round_ in zip(frame["loss"], frame["design"], frame["round"], strict=True)
        if design == "size" and round_ == 3
    ]
    assert np.mean(last) == pytest.approx(np.mean(done.summary().designs[1].final_loss))


def test_latex_has_a_line_for_every_design_and_marks_the_best(done: Study, tmp_path: Path) -> None:
    text = done.to_latex(tmp_path / "table.tex")

    assert (tmp_path / "table.tex").read_text() == text
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "design &" not in line]
    assert [row.partition(" & ")[0] for row in rows] == ["multinomial", "size"]
    losses = [float(np.mean(each.final_loss)) for each in done.summary().designs]
    best = rows[int(np.argmin(losses))].split(" & ")[2]
    assert best.startswith(rf"$\mathbf{{{min(losses):.3f}}} \pm ")
    assert sum(r"\mathbf" in row.split(" & ")[2] for row in rows) == 1
    assert all(row.count("&") == 4 for row in rows)


def test_characters_of_latex_in_labels_are_escaped() -> None:
    designs = {"50 % & more_": "size"}
    found = study(designs, wards(), Net, rounds=1, seeds=1, cohort_size=2, training=TRAINING)

    assert r"50 \% \& more\_ & " in found.to_latex()


def test_a_plot_has_loss_accuracy_and_clients(done: Study, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")

    axes = done.plot(path=tmp_path / "curves.svg")

    assert [each.get_ylabel() for each in axes[0]] == [
        "training loss",
        "test accuracy",
        "accuracy on own samples",
    ]
    assert (tmp_path / "curves.svg").stat().st_size > 0
    worst = axes[0, 2].lines[0].get_ydata()
    runs = [each for each in done.runs if each.design == "multinomial"]
    lowest = [done.results.column("laws", each, "accuracy").min() for each in runs]
    assert worst[0] == pytest.approx(np.mean(lowest))
    assert done.plot("loss", path=tmp_path / "loss.png").shape == (1, 1)


def test_designs_are_names_recipes_and_tables() -> None:
    found = small(
        "size:whole_rows_first",
        Tournament(3, measure="l2"),
        {"recipe": Multinomial(2), "estimator": Difference(keep="int8")},
        {"recipe": "osmd", "estimator": FedStale(keep="int8")},
        {"recipe": "hics", "estimator": "mifa"},
        {"recipe": "size", "estimator": Regression(features="classes", keep=None), "label": "mine"},
        largest(2, factor=-1.0),
        rounds=1,
        seeds=[5],
        cohort_size=2,
    )

    panel = found.experiment.panels[0]
    assert [entry.label for entry in panel.design] == [
        "size whole_rows_first",
        "tournament l2 cohort_size=3",
        "multinomial + difference int8",
        "osmd + fedstale int8",
        "hics + mifa",
        "mine",
        "largest factor=-1.0",
    ]
    assert panel.design[2].aggregation() == Difference(keep="int8")
    regression = Regression(features="classes", keep=None)
    assert panel.design[3].aggregation() == FedStale(keep="int8")
    assert panel.design[4].aggregation() == MIFA()
    assert repr(panel.design[5].aggregation()) == repr(regression)
    clients = found.results.column("cohorts", found.runs[-1], "client")
    assert sorted(clients) == sorted(np.argsort([len(part) for part in wards().train])[:2])


def test_panels_change_data_and_other_arguments() -> None:
    digits = np.arange(40)
    dataset = Dataset(np.eye(4)[digits % 4], digits % 4, np.eye(4), np.arange(4), 4)
    found = study(
        ["multinomial", "size"],
        {"dataset": dataset, "partition": "iid", "n_clients": 4},
        lambda: nn.Linear(4, 4),
        panels={
            "few": {"data": {"n_clients": 3}},
            "wards": {"data": {"n_clients": 5}, "rounds": 1},
        },
        rounds=2,
        seeds=1,
        cohort_size=2,
        training={"steps": 1, "lr": [0.1, 0.2]},
        device="cpu",
    )

    assert [panel.rounds for panel in found.experiment.panels] == [2, 1]
    assert found.results.class_counts("few", 0).shape == (3, 4)
    assert found.summary("wards").rounds == 1
    assert found.table().count("tuned ") == 2
    assert "few: After 2 rounds" in found.answer
    assert r"\multicolumn{5}{l}{\emph{few" in found.to_latex()
    with pytest.raises(ExperimentError, match=r"Study.summary: panel must be one of few, wards"):
        found.summary()


def test_without_test_samples_only_the_loss_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    found = study(
        "multinomial", wards(test=None), Net, rounds=1, seeds=1, cohort_size=2, training=TRAINING
    )

    assert found.plot(path=tmp_path / "loss.png").shape == (1, 1)


def test_a_temporary_folder_disappears_with_its_study_and_a_saved_one_stays(tmp_path: Path) -> None:
    found = small(rounds=1, seeds=1)
    temporary = found.folder
    assert temporary.is_dir()

    kept = found.save(tmp_path / "deep" / "kept")

    assert not temporary.exists()
    assert found.folder == kept
    assert repr(Study.open(kept)) == repr(found)
    other = small(rounds=1, seeds=1)
    temporary = other.folder
    del other
    assert not temporary.exists()
    with pytest.raises(ExperimentError, match="kept: holds a run already"):
        found.save(kept)


def test_a_study_in_a_folder_goes_on_where_it_stopped_and_refuses_another(tmp_path: Path) -> None:
    path = tmp_path / "here"
    whole = small(rounds=4)
    with pytest.raises(ExperimentError):
        small(folder=path, workers=0)
    assert not path.exists()
    small(folder=path, rounds=4, seeds=2)
    unit = RunFolder.open(path).units[0]
    unit.table("laws").unlink()

    again = small(folder=path, rounds=4, seeds=2)

    assert tables(again.folder) == tables(whole.folder)
    with pytest.raises(ExperimentError, match="holds another study; rounds differs"):
        small(folder=path, rounds=5)
    with pytest.raises(ExperimentError, match="model or a design of yours differs"):
        study(
            ["multinomial", SizeClustered(2)],
            wards(),
            lambda: nn.Linear(4, 3),
            rounds=4,
            seeds=2,
            training=TRAINING,
            device="cpu",
            folder=path,
        )


PROGRAM = """
import sys
from torch import nn
from test_studies import TRAINING, wards
from fedcohort import SizeClustered, recipe, study

class Mine(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

@recipe
def first(population, known, rng):
    return range(known.cohort_size)

study(["multinomial", SizeClustered(2), first(2)], wards(), Mine, rounds=4, training=TRAINING,
      seeds=[int(sys.argv[2])], device="cpu", folder=sys.argv[1])
"""


@pytest.mark.slow
def test_folders_of_a_script_resume_elsewhere_and_merge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes of the script itself: the folders have their code."""
    for seed in (0, 1):
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / str(seed)), str(seed)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            check=True,
        )
    for unit in RunFolder.open(tmp_path / "0").units:
        for file in unit.folder.iterdir():
            file.unlink()

    resumed = run(capsys, "resume", tmp_path / "0")
    merged = run(capsys, "merge", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "both")

    assert (resumed.code, merged.code) == (0, 0)
    assert len(Study.open(tmp_path / "both").runs) == 2 * 3


def test_what_cannot_be_pickled_or_read_is_said(tmp_path: Path) -> None:
    lock: Any = Lock()
    with pytest.raises(ExperimentError, match=r"study: the model cannot be pickled \(TypeError"):
        study("size", wards(), lambda: lock, rounds=1)
    kept = small(rounds=1, seeds=1).save(tmp_path / "kept")
    (kept / "code" / "study.pickle").write_bytes(b"\x80\x05cno_such_module\nthing\n.")
    for file in RunFolder.open(kept).units[0].folder.iterdir():
        file.unlink()

    with pytest.raises(ExperimentError, match="No module named 'no_such_module'"):
        execute(RunFolder.open(kept))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"designs": []}, r"study: designs must be names or recipes; got \[\]"),
        ({"designs": [3]}, "study: a design must be a name, a recipe, or a table"),
        ({"designs": ["sise"]}, "unknown design 'sise'.*Did you mean 'size'"),
        ({"data": "digits"}, "study: data must be a FederatedData or a table; got 'digits'"),
        ({"data": {"dataset": "mine.py:load"}}, "study: data must not name a file"),
        ({"model": "mine.py:make"}, "study: model must not name a file"),
        ({"model": 3}, "study: model must be a function"),
        ({"seeds": 0}, "study: seeds must be their number"),
        ({"seeds": [1, 1]}, "study: seeds: needs at least one seed, each once"),
        ({"rounds": "many"}, "study: rounds must be a whole number"),
        ({"training": {"stepz": 3}}, "study: unknown key 'training.stepz'.*Did you mean 'steps'"),
        ({"server": {"max_norm": object()}}, "study: values must be numbers, texts"),
        ({"panels": {"a": 3}}, r"study: panels\['a'\] must be a dict"),
        ({"device": "gpu"}, "study: device must be one of auto, cpu, cuda"),
        ({"progress": "yes"}, "study: progress must be True or False; got 'yes'. Pass False"),
        ({"designs": ["size", "uniform"], "cohort_size": 90}, "^study: design 'uniform': "),
        (
            {"designs": [{"recipe": "size", "estimator": Regression(features=np.ones((6, 2)))}]},
            "study: features of an estimator must be a word",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    given = {"designs": ["size"], "data": wards(), "model": Net, "rounds": 1, "training": TRAINING}

    with pytest.raises((ExperimentError, DesignError), match=sentence):
        study(**{"cohort_size": 2, "seeds": 1, "device": "cpu", **given, **changes})

    assert list(tmp_path.iterdir()) == []


def test_a_data_file_is_a_data_set_of_an_experiment_file(tmp_path: Path) -> None:
    data = wards()
    data.save(tmp_path / "wards.data")
    loaded = FederatedData.load(tmp_path / "wards.data")
    text = (
        SMALL.partition("[data]")[0]
        + """
[data]
dataset = "wards.data"
partition = "natural"
[training]
steps = 1
[[design]]
recipe = "size"
"""
    )
    file = write(tmp_path, text)
    assert [part.tolist() for part in loaded.train] == [part.tolist() for part in data.train]
    assert [part.tolist() for part in loaded.test] == [part.tolist() for part in data.test]
    assert np.array_equal(loaded.dataset.x, data.dataset.x)

    folder = RunFolder.create(
        tmp_path / "run", read_experiment(file), source=file, device="cpu", command=["run"]
    )
    (tmp_path / "wards.data").unlink()
    go_on(folder.path)

    assert (folder.path / "code" / "wards.data").is_file()
    assert folder.progress().state == "complete"
