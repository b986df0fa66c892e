"""Experiments with devices: what is drawn is kept, and older run folders are still read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort import Multinomial, SimilarityClustered
from fedcohort.errors import ExperimentError
from fedcohort.experiments import RunFolder, read_experiment, read_results
from fedcohort.experiments.tables import COST, DEVICES
from fedcohort.experiments.units import PlannedRun
from fedcohort.simulation import Devices, Run, Simulation, load_dataset, read_devices
from small_runs import SMALL, go_on, small_run, tables, write

GENERATED = """
[devices]
kind = "generated"
speed = 20.0
awake = 0.4
day = 6.0
jitter = 0.2
"""
FILE = '\n[devices]\nkind = "file"\nfile = "phones/all.csv"\njitter = 0.1\n'
RESULTS = Path(__file__).parents[2] / "results"


def phones(folder: Path, n_clients: int = 10) -> Path:
    """Write a file of devices: client i is fast as i + 1, and there from i to i + 30."""
    path = folder / "phones" / "all.csv"
    path.parent.mkdir(exist_ok=True)
    lines = [f"{i},{i + 1},{1000 * (i + 1)},{500 * (i + 1)},{i},{i + 30}" for i in range(n_clients)]
    path.write_text("\n".join(["client,speed,down,up,start,end", *lines]) + "\n")
    return path


def test_a_run_with_devices_is_that_of_the_simulator(tmp_path: Path) -> None:
    results = read_results(small_run(tmp_path, SMALL + GENERATED))
    (panel,) = results.folder.experiment.panels
    (rates,) = panel.candidates(panel.design[0].label)

    for seed in (0, 1):
        dataset = load_dataset("digits")
        data = panel.data.federation(dataset, seed)
        devices = Devices.generated(10, seed, speed=20.0, awake=0.4, day=6.0, jitter=0.2)
        runs = [
            Run(r, data, seed, devices=devices) for r in (Multinomial(3), SimilarityClustered(3))
        ]
        options = panel.server.options("cpu", rates.server_lr)
        source = panel.model.source(dataset, tmp_path)
        simulation = Simulation(runs, source, panel.training.local(rates), options)
        for label, history in zip(("multinomial", "similarity"), simulation.run(6), strict=True):
            lines = results.of("rounds", PlannedRun("small", label, seed)).to_pylist()
            assert [line["distinct_clients"] for line in lines] == [
                each.distinct_clients for each in history.rounds
            ]
            for line, each in zip(lines, history.rounds, strict=True):
                assert {name: line[name] for name in COST} == {
                    name: getattr(each.cost, name) for name in COST
                }
    drawn = results.tables["rounds"]["distinct_clients"].to_pylist()
    assert 0 in drawn  # somebody was away
    assert max(drawn) > 0


def test_the_folder_keeps_what_was_drawn(tmp_path: Path) -> None:
    """Also the intervals in which clients are there, and those of a file."""
    path = phones(tmp_path)
    results = read_results(small_run(tmp_path, SMALL + FILE))
    read = read_devices(path, 10)

    assert results.devices.schema.equals(DEVICES)
    for seed in (0, 1):
        lines = [line for line in results.devices.to_pylist() if line["seed"] == seed]
        assert [line["client"] for line in lines] == list(range(10))
        for name in ("speed", "down", "up"):
            assert [line[name] for line in lines] == getattr(read, name).tolist()
        assert [(line["start"], line["end"], line["day"]) for line in lines] == [
            (i, i + 30, None) for i in range(10)
        ]
    assert (results.folder.path / "devices" / "phones" / "all.csv").read_text() == path.read_text()


@pytest.mark.parametrize(("seed", "same"), [("", False), ("seed = 7\n", True)])
def test_generated_devices_differ_between_seeds_unless_they_are_held(
    seed: str, same: bool, tmp_path: Path
) -> None:
    results = read_results(small_run(tmp_path, f"{SMALL}{GENERATED}{seed}", rounds=1))

    lines = results.devices.to_pylist()
    speeds = [
        {line["client"]: line["speed"] for line in lines if line["seed"] == s} for s in (0, 1)
    ]
    made = [Devices.generated(10, 7 if same else s, speed=20.0).speed for s in (0, 1)]
    assert (speeds[0] == speeds[1]) is same
    for found, expected in zip(speeds, made, strict=True):
        assert found == dict(enumerate(expected.tolist()))


@pytest.mark.parametrize("table", [GENERATED, FILE])
def test_an_interrupted_run_with_devices_ends_as_if_it_had_not_been(
    table: str, tmp_path: Path
) -> None:
    """The original file is gone by then, and so is the table of devices."""
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
        phones(tmp_path / name)
    whole = small_run(tmp_path / "whole", SMALL + table)
    broken = small_run(tmp_path / "broken", SMALL + table, rounds=3)
    shutil.rmtree(tmp_path / "broken" / "phones")
    (broken / "devices.parquet").unlink()
    assert RunFolder.open(broken).progress().state == "interrupted"

    go_on(broken)

    assert RunFolder.open(broken).progress().state == "complete"
    expected, found = tables(whole), tables(broken)
    assert set(expected) == set(found)
    for name, content in expected.items():
        assert content.equals(found[name]), name


def test_equal_devices_have_no_table_and_can_be_slower(
    ran: Callable[..., Path], tmp_path: Path
) -> None:
    plain = read_results(ran(home=tmp_path / "plain"))
    slow = read_results(small_run(tmp_path, SMALL + '[devices]\nkind = "equal"\nspeed = 100.0\n'))

    assert not (plain.folder.path / "devices.parquet").exists()
    assert plain.devices.num_rows == slow.devices.num_rows == 0
    work = [r.tables["rounds"]["client_seconds"].to_numpy() for r in (plain, slow)]
    np.testing.assert_allclose(10 * work[0], work[1], rtol=1e-12)
    loss = [r.tables["rounds"]["loss"] for r in (plain, slow)]
    assert loss[0].equals(loss[1])


def test_devices_are_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small_run(tmp_path, SMALL + GENERATED, rounds=1)

    for kind in ("--csv", "--parquet"):
        assert run(capsys, "export", path, kind, "--out", tmp_path / "x").code == 0

    found = pq.read_table(tmp_path / "x" / "devices.parquet")
    assert found.equals(read_results(path).devices)
    assert (tmp_path / "x" / "devices.csv").read_text().count("\n") == found.num_rows + 1
    header = (tmp_path / "x" / "rounds.csv").read_text().splitlines()[0]
    assert '"simulated_seconds"' in header


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (FILE, "device file phones/all.csv: is not in "),
        (FILE.replace("phones", "../phones"), "must lie beside or below the experiment file"),
    ],
)
def test_a_file_that_cannot_be_taken_along_is_refused(
    table: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, SMALL + table)

    result = run(capsys, "run", file, "--out", tmp_path / "out")

    assert refused(result, message)
    assert not (tmp_path / "out").exists()


def test_a_bad_file_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phones(tmp_path, n_clients=9)
    file = write(tmp_path, SMALL + FILE)

    result = run(capsys, "run", file, "--out", tmp_path / "out")

    assert refused(result, "phones/all.csv: needs a line for each of the 10 clients; 1 are missing")
    assert not (tmp_path / "out").exists()


def test_a_panel_can_have_devices_of_its_own(tmp_path: Path) -> None:
    text = SMALL + '\n[[panel]]\nlabel = "a"\n[[panel]]\nlabel = "b"\ndevices.kind = "generated"\n'
    results = read_results(small_run(tmp_path, text, rounds=1))

    assert set(results.devices["panel"].to_pylist()) == {"b"}


def test_a_table_of_before_is_read_and_its_costs_are_not_there(ran: Callable[..., Path]) -> None:
    path = ran()
    (file,) = path.glob("units/*/rounds.parquet")
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.drop_columns(list(COST)), file)
    (file.parent / "checksums.json").unlink()  # of before, too

    found = read_results(path).tables["rounds"]

    assert found["loss"].equals(table["loss"])
    assert all(found[name].null_count == found.num_rows > 0 for name in COST)
    assert RunFolder.open(path).progress().state == "complete"


OLD = sorted({path.parents[2] for path in RESULTS.rglob("units/*/rounds.parquet")})


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_run_folders_that_come_with_the_project_are_read(path: Path) -> None:
    results = read_results(path)

    rounds = results.tables["rounds"]
    assert rounds.num_rows > 0
    assert (results.devices.num_rows > 0) == results.folder.has_devices
    if "bytes_down" not in pq.read_schema(next(path.glob("units/*/rounds.parquet"))).names:
        assert np.isnan(results.column("rounds", results.runs[0], "bytes_down")).all()


def test_what_is_said_of_devices_is_kept(tmp_path: Path) -> None:
    experiment = read_experiment(write(tmp_path, SMALL + GENERATED))

    again = type(experiment).of(experiment.as_dict())

    assert again == experiment
    with pytest.raises(ExperimentError, match=r"devices\.day must be a number above 0; got 0\.0"):
        read_experiment(write(tmp_path, SMALL + GENERATED), changes=["devices.day=0.0"])
