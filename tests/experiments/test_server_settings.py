"""Server optimisers and memories of the difference estimator in experiment files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Difference, Multinomial
from fedcohort.errors import ExperimentError
from fedcohort.experiments import Experiment, RunFolder, read_experiment, read_results
from fedcohort.experiments.settings import Rates
from fedcohort.experiments.tuning import candidate_losses, chosen_rates
from fedcohort.optimizers import SGD, Adagrad, Adam, ServerOptimizer, Yogi
from fedcohort.simulation import Options, Run, Simulation, load_dataset
from small_runs import SMALL, go_on, make_folder, small_run, tables, write

#: Designs with servers of their own, one with a grid of its own.
OWN = f"""tune = "each"
{SMALL}
[[design]]
label = "momentum"
recipe = "multinomial"
server = {{ momentum = 0.9, damped = true }}

[[design]]
label = "adam"
recipe = "multinomial"
estimator = "difference"
keep = "int8"
server = {{ optimizer = "adam", server_lr = [0.01, 0.1] }}
"""


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder.open(small_run(tmp_path_factory.mktemp("servers"), OWN))


def test_a_design_tries_its_own_grid_and_the_others_their_one_point(own_servers: RunFolder) -> None:
    (panel,) = own_servers.experiment.panels
    tried = {
        (unit.candidate, tuple(run.design for run in unit.runs))
        for unit in own_servers.units
        if unit.candidate is not None
    }
    losses = candidate_losses(own_servers, panel, "adam")

    plain = ("multinomial", "similarity", "momentum")
    assert tried == {
        (Rates(0.1, 0.0, 1.0), plain),
        (Rates(0.1, 0.0, 0.01), ("adam",)),
        (Rates(0.1, 0.0, 0.1), ("adam",)),
    }
    assert chosen_rates(own_servers, panel, "adam") == min(losses, key=lambda p: losses[p])
    assert chosen_rates(own_servers, panel, "momentum").server_lr == 1.0


@pytest.mark.parametrize("design", ["momentum", "adam"])
def test_a_design_trains_as_the_simulator_does_with_its_server(
    own_servers: RunFolder, design: str
) -> None:
    (panel,) = own_servers.experiment.panels
    results, data = read_results(own_servers.path), panel.data.federation(load_dataset("digits"), 1)
    rates = chosen_rates(own_servers, panel, design)
    server = SGD(momentum=0.9, damped=True) if design == "momentum" else Adam(lr=1.0)
    run = Run(
        Multinomial(3),
        data,
        1,
        estimator="plain" if design == "momentum" else Difference(keep="int8"),
        optimizer=server,
        server_lr=rates.server_lr,
    )
    source = panel.model.source(data.dataset, own_servers.path)
    alone = Simulation([run], source, panel.training.local(rates), Options(device="cpu"))
    expected = [each.quality.loss for each in alone.run(6)[0].rounds if each.quality]

    (planned,) = (each for each in results.runs if (each.design, each.seed) == (design, 1))
    np.testing.assert_allclose(results.column("rounds", planned, "loss"), expected, rtol=1e-4)


def test_a_stop_changes_nothing(own_servers: RunFolder, tmp_path: Path) -> None:
    """With an optimiser's state and a memory of int8 rows."""
    path = make_folder(tmp_path, OWN)

    for rounds in (3, 9, 20):
        go_on(path, rounds=rounds)
    go_on(path)

    assert tables(path) == tables(own_servers.path)


@pytest.mark.parametrize("kind", [SGD, Adagrad, Adam, Yogi])
def test_the_default_rate_is_the_optimisers_own(
    kind: type[ServerOptimizer], tmp_path: Path
) -> None:
    server = f'{{ optimizer = "{kind.__name__.lower()}" }}'
    lines = f'[[design]]\nlabel = "own"\nrecipe = "size"\nserver = {server}'
    (panel,) = read_experiment(write(tmp_path, f"{SMALL}\n{lines}\n")).panels

    assert [each.server_lr for each in panel.candidates("own")] == [kind().lr]


def test_a_design_may_bound_norms_by_itself(tmp_path: Path) -> None:
    designs = "".join(
        f'[[design]]\nrecipe = "multinomial"\nlabel = "{bound}"\nmax_norm = {bound}\n'
        for bound in ("2.5", "'auto'")
    )
    designs += "[server]\nmax_norm = 7.0\n"
    (panel,) = read_experiment(write(tmp_path, SMALL + designs)).panels
    settings = [each.selector_settings(panel.server, Multinomial(2)) for each in panel.design]

    assert [each["max_norm"] for each in settings[-3:]] == [7.0, 2.5, "auto"]


def test_the_resolved_experiment_is_the_same(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, OWN))

    assert Experiment.of(experiment.as_dict()) == experiment


def test_the_label_names_the_server_and_the_memory(tmp_path: Path) -> None:
    lines = 'estimator = "difference"\nkeep = "rank"\nserver = { momentum = 0.5 }\n'
    (panel,) = read_experiment(
        write(tmp_path, f'{SMALL}\n[[design]]\nrecipe = "size"\n{lines}')
    ).panels

    assert panel.design[-1].label == "size + difference rank + sgd momentum=0.5"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('optimizer = "adam", momentum = 0.9', "momentum is not a setting of optimizer = 'adam'"),
        ("beta1 = 0.5", "beta1 is not a setting of optimizer = 'sgd'"),
        ('optimizer = "adams"', "Did you mean 'adam'"),
        ("momentum = 1.0", "momentum must be a number of at least 0 and below 1"),
        ("nesterov = true", "momentum must be above 0 for damped and nesterov"),
        ("server_lr = -1", "server_lr must be a number of at least 0"),
        ("server_lr = [0.1, 1.0]", "a list for server_lr of one design needs tune = 'each'"),
        ("measure_every = 2", "unknown key"),
    ],
)
def test_a_mistake_gets_one_sentence(lines: str, sentence: str, tmp_path: Path) -> None:
    text = f'{SMALL}\n[[design]]\nrecipe = "size"\nserver = {{ {lines} }}\n'

    with pytest.raises(ExperimentError) as found:
        read_experiment(write(tmp_path, text))

    assert sentence in str(found.value)
    assert "\n" not in str(found.value)
