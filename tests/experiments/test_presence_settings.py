"""Experiments with presence by the round: the tables, the runs and what the folder keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort import study
from fedcohort.experiments import RunFolder, read_experiment, read_results
from fedcohort.experiments.settings import PRESENCE
from fedcohort.experiments.units import PlannedRun
from fedcohort.simulation import Coins, Cyclic, Devices, Markov, load_dataset
from fedcohort.simulation.devices import chances
from small_runs import SMALL, go_on, small_run, tables, write

PRESENT = '\n[devices]\nkind = "equal"\n[devices.presence]\n'
CLASSES = PRESENT + 'kind = "classes"\npattern = "sine"\nperiod = 4\nabsent_below = 0.1\n'


def devices_of(path: Path, seed: int = 0) -> tuple[Devices, Any]:
    (panel,) = read_experiment(path).panels
    data = panel.data.federation(load_dataset("digits"), seed)
    found = panel.devices.devices(data, seed, path.parent)
    assert found is not None
    return found, data


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('kind = "given"\nchance = 0.25', lambda data: Coins(np.full(10, 0.25))),
        (
            'kind = "classes"\nmost = 0.5\nprocess = "markov"\ncome = 0.2',
            lambda data: Markov(chances.class_chances(data, seed=3, most=0.5), come=0.2),
        ),
        (
            'kind = "skewed-classes"\nmean = 0.3\nseed = 8\nprocess = "cyclic"\ncycle = 6',
            lambda data: Cyclic(chances.skewed_class_chances(data, seed=8, mean=0.3), cycle=6),
        ),
        (
            'kind = "sizes"\npower = -1.0\npattern = "staircase"\nlow = 0.2',
            lambda data: Coins(
                chances.size_chances(data, power=-1.0), pattern="staircase", low=0.2
            ),
        ),
        (
            'kind = "lowest-class"\nspread = 0.5',
            lambda data: Coins(chances.lowest_class_chances(data, spread=0.5)),
        ),
        (
            'kind = "class-turns"\nturn = 3',
            lambda data: Coins(chances.class_turn_chances(data, turn=3)),
        ),
        (
            'kind = "log-normal"\npattern = "sine"\nhigh = 0.9\nlow = 0.1\nperiod = 24',
            lambda data: Coins(
                chances.log_normal_chances(data, seed=3),
                pattern="sine",
                high=0.9,
                low=0.1,
                period=24,
            ),
        ),
    ],
)
def test_a_table_gives_the_simulators_record(tmp_path: Path, table: str, expected: Any) -> None:
    found, data = devices_of(write(tmp_path, SMALL + PRESENT + table), seed=3)

    assert found.availability is not None
    for one, other in zip(found.availability.parts(), expected(data).parts(), strict=True):
        np.testing.assert_array_equal(one, other)  # type: ignore[arg-type]


def test_all_kinds_are_tried_above() -> None:
    assert len(PRESENCE.kinds) == 7


def test_designs_of_a_seed_meet_the_same_clients_and_the_folder_keeps_the_chances(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, SMALL + CLASSES)
    results = read_results(small_run(tmp_path, SMALL + CLASSES))

    for seed in (0, 1):
        devices, _ = devices_of(path, seed)
        times = devices.availability
        assert isinstance(times, Coins)
        kept = [each["chance"] for each in results.devices.to_pylist() if each["seed"] == seed]
        assert kept == times.mean_chance().tolist()
        for label in ("multinomial", "similarity"):
            planned = PlannedRun("small", label, seed)
            for line in results.of("cohorts", planned).to_pylist():
                here = devices.available(0.0, round_=line["round"], seed=seed)
                assert here[line["client"]]


def test_an_interrupted_run_with_presence_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = small_run(tmp_path / "whole", SMALL + CLASSES)
    broken = small_run(tmp_path / "broken", SMALL + CLASSES, rounds=3)
    assert RunFolder.open(broken).progress().state == "interrupted"

    go_on(broken)

    expected, found = tables(whole), tables(broken)
    assert set(expected) == set(found)
    for name, content in expected.items():
        assert content.equals(found[name]), name


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (PRESENT + 'kind = "class"', "devices.presence.kind must be one of given, classes"),
        (PRESENT + 'kind = "given"\nmost = 1', "unknown key 'devices.presence.most'"),
        (PRESENT + 'kind = "given"\nchance = 2', "devices.presence.chance must be a number from 0"),
        (
            PRESENT + 'kind = "given"\ncycle = 5',
            "cycle is not a setting of process = 'coins'. Leave it out.",
        ),
        (
            PRESENT + 'kind = "given"\nprocess = "markov"\npattern = "sine"',
            "pattern is not a setting of process = 'markov'. Leave it out.",
        ),
        (
            PRESENT + 'kind = "class-turns"\nprocess = "cyclic"',
            "process must be 'coins' with class-turns",
        ),
        (PRESENT + 'kind = "given"\nlow = 0.5\nhigh = 0.2', "low must be at most high, 0.2"),
        (
            CLASSES.replace('kind = "equal"', 'kind = "generated"\nawake = 0.5'),
            "devices.presence needs devices without hours",
        ),
        (PRESENT + 'kind = "given"\nchance = [0.5]', "one for each of the 10 clients; got 1"),
    ],
)
def test_a_mistake_is_refused_before_anything_runs(
    tmp_path: Path, table: str, message: str
) -> None:
    path = write(tmp_path, SMALL + table)

    assert refused(run("run", path, "--out", tmp_path / "out"), message)
    assert not (tmp_path / "out" / "units" / "000").exists()


def test_importance_rate_and_partitions_reach_the_runs(tmp_path: Path) -> None:
    text = SMALL.replace("steps = 2", "steps = 2\nlr_root = 10")
    clients = 'partition = "dirichlet-clients"\nalpha = 0.3\nn_clients = 10'
    start, end = text.index("partition ="), text.index("[training]")
    text = f'{text[:start]}{clients}\n{text[end:]}\n[server]\nimportance = "equal"\n'
    results = read_results(small_run(tmp_path, text))
    (panel,) = results.folder.experiment.panels

    assert panel.training.lr_root == 10
    laws = results.of("laws", PlannedRun("small", "multinomial", 0)).to_pylist()
    chance = 1 - 0.9**3  # three draws of ten clients that count alike
    assert [each["inclusion"] for each in laws] == pytest.approx([chance] * 10, rel=1e-9)


def test_parts_with_alphas_of_their_own_can_be_written_in_a_file(tmp_path: Path) -> None:
    start, end = SMALL.index("partition ="), SMALL.index("[training]")
    parts = 'partition = "dirichlet-parts"\nalphas = [0.1, 10.0]\nclients_per_part = 4'
    (panel,) = read_experiment(write(tmp_path, f"{SMALL[:start]}{parts}\n{SMALL[end:]}")).panels

    assert panel.data.federation(load_dataset("digits"), 0).n_clients == 8


def test_a_study_takes_presence_and_importance() -> None:
    found = study(
        "multinomial",
        {"dataset": "digits", "partition": "iid", "n_clients": 5},
        rounds=2,
        seeds=1,
        cohort_size=2,
        training={"steps": 1, "batch_size": 5, "lr": 0.1},
        server={"importance": "equal"},
        devices={"kind": "equal", "presence": {"kind": "given", "chance": [1, 1, 0, 0, 0]}},
        device="cpu",
        progress=False,
    )

    cohorts = found.results.tables["cohorts"].to_pylist()
    assert {each["client"] for each in cohorts} <= {0, 1}
