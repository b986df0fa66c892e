"""The experiment files that come with the project say what the paper's experiments are."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.experiments import Panel, read_experiment
from fedcohort.experiments.own_code import check_parts
from fedcohort.experiments.settings import Cnn, Dirichlet, Mlp, OneClass
from fedcohort.simulation import Dataset

PRESETS = Path(__file__).parents[2] / "experiments"
NAMES = sorted(path.stem for path in PRESETS.glob("*.toml"))
#: The paper's clients: how many have how many samples.
SIZES = {100: 10, 250: 30, 500: 30, 750: 20, 1000: 10}
THREE = ["multinomial", "size", "similarity"]


@dataclass(frozen=True)
class Row:
    """A line of the paper's table."""

    preset: str
    panel: str
    alpha: float | None
    m: int
    steps: int
    lr: float
    rounds: int
    designs: list[str]
    mu: float = 0.0


ROWS = [
    Row("figure1", "figure1", None, 10, 50, 0.01, 200, [*THREE, "target"]),
    Row("figure2", "alpha = 0.001", 0.001, 10, 100, 0.05, 1000, THREE),
    Row("figure2", "alpha = 0.01", 0.01, 10, 100, 0.05, 1000, THREE),
    Row("figure2", "alpha = 0.1", 0.1, 10, 100, 0.05, 1000, THREE),
    Row("figure2", "alpha = 10", 10.0, 10, 100, 0.1, 1000, THREE),
    Row(
        *("similarity", "similarity", 0.01, 10, 100, 0.05, 1000),
        designs=[*THREE, "similarity l2", "similarity l1"],
    ),
    Row("local-work", "N = 10", 0.01, 10, 10, 0.1, 2000, THREE),
    Row("local-work", "N = 500", 0.01, 10, 500, 0.05, 500, THREE),
    Row("cohort-size", "m = 5", 0.01, 5, 100, 0.05, 1000, THREE),
    Row("cohort-size", "m = 20", 0.01, 20, 100, 0.05, 1000, THREE),
    Row("fedprox", "fedprox", 0.01, 10, 100, 0.05, 1000, THREE, mu=0.1),
]


def panels(preset: str) -> list[Panel]:
    return read_experiment(PRESETS / f"{preset}.toml").panels


def stand_in(n: int, test: int, shape: tuple[int, ...]) -> Dataset:
    """Return a data set of ten classes with n training and ``test`` test samples each."""
    y, test_y = np.repeat(np.arange(10), n), np.repeat(np.arange(10), test)
    x = np.zeros((len(y), *shape), dtype=np.uint8)
    return Dataset(x, y, np.zeros((len(test_y), *shape), np.uint8), test_y, n_classes=10)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_valid_and_its_designs_can_be_made(name: str) -> None:
    experiment = read_experiment(PRESETS / f"{name}.toml")

    check_parts(experiment, PRESETS)
    assert experiment.title


def test_every_line_of_the_papers_table_is_a_panel_of_a_preset() -> None:
    trained = {(row.preset, row.panel) for row in ROWS}

    for name in {row.preset for row in ROWS}:
        assert {panel.label for panel in panels(name)} == {p for n, p in trained if n == name}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.preset}, {row.panel}")
def test_a_panel_says_what_the_paper_says(row: Row) -> None:
    (panel,) = [panel for panel in panels(row.preset) if panel.label == row.panel]
    training = panel.training

    assert (panel.cohort_size, panel.rounds) == (row.m, row.rounds)
    assert (training.steps, training.epochs, training.lr) == (row.steps, None, row.lr)
    assert (training.batch_size, training.mu) == (50, row.mu)
    assert (training.momentum, training.weight_decay, training.lr_decay) == (0.0, 0.0, 1.0)
    assert panel.server.server_lr == 1.0
    assert [entry.label for entry in panel.design] == row.designs
    if row.alpha is None:
        assert isinstance(panel.data, OneClass)
        assert (panel.data.dataset, panel.model) == ("mnist", Mlp.of({"name": "mlp", "hidden": 50}))
    else:
        assert isinstance(panel.data, Dirichlet)
        assert (panel.data.dataset, panel.model) == ("cifar10", Cnn(name="cnn"))
        assert panel.data.alpha == row.alpha


def test_figure_1_has_ten_clients_for_each_digit() -> None:
    (panel,) = panels("figure1")

    data = panel.data.federation(stand_in(5000, 800, (1, 1, 1)), 0)

    counts = data.class_counts()
    assert counts.shape == (100, 10)
    assert (counts.max(axis=1) == 500).all()
    assert (counts.sum(axis=1) == 500).all()
    assert ((counts > 0).sum(axis=0) == 10).all()
    assert [len(samples) for samples in data.test] == [80] * 100


@pytest.mark.parametrize("name", ["figure2", "similarity", "partition"])
def test_cifar_clients_are_as_unbalanced_as_the_papers(name: str) -> None:
    dataset = stand_in(500, 100, (1, 1, 1))
    for panel in panels(name):
        data = panel.data.federation(dataset, 0)

        sizes, clients = np.unique([len(part) for part in data.train], return_counts=True)
        assert dict(zip(sizes.tolist(), clients.tolist(), strict=True)) == SIZES
        assert [5 * len(part) for part in data.test] == [len(part) for part in data.train]


def test_the_partitions_shown_are_those_of_figure_2() -> None:
    shown = {panel.label: panel.data for panel in panels("partition")}
    trained = {panel.label: panel.data for panel in panels("figure2")}

    assert [panel.rounds for panel in panels("partition")] == [0, 0, 0, 0]
    for label, data in trained.items():
        assert replace(data, shuffle_clients=False) == shown[label]


def test_the_numbering_of_clients_is_all_that_differs() -> None:
    by_class, shuffled = panels("numbering")

    assert not by_class.data.shuffle_clients
    data = replace(by_class.data, shuffle_clients=True)
    assert replace(by_class, label="shuffled", data=data) == shuffled
    assert shuffled.training.steps == 50


def test_the_digits_fit_the_data_that_come_with_scikit_learn() -> None:
    from fedcohort.simulation import load_dataset

    (panel,) = panels("digits")

    assert panel.data.federation(load_dataset("digits"), 0).n_clients == 100
    assert len(panel.seeds) == 5
