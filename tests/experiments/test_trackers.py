"""Trackers: the numbers of a run, for real, in files below its folder."""

import importlib
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from command_line import refused, run
from fedcohort.errors import FedcohortError, MissingExtraError
from fedcohort.experiments import Observer, Results, RunFolder, execute, read_results
from fedcohort.experiments.tables import COST
from fedcohort.experiments.trackers import make_tracker, scalars
from fedcohort.experiments.units import PlannedRun
from fedcohort.simulation import Quality, Round
from small_runs import SMALL, make_folder, write

#: Eight rounds, measured in every other; one checkpoint before the end, after four; a grid.
TEXT = (
    SMALL.replace("checkpoint_every = 2", "checkpoint_every = 4")
    .replace("rounds = 6", "rounds = 8")
    .replace("[training]", "[server]\nmeasure_every = 2\noracle_every = 3\n[training]")
    .replace("lr = 0.1", "lr = [0.1, 0.2]")
    .replace('recipe = "similarity"', 'recipe = "similarity"\nlabel = "it\'s 50 %, a/b"')
)
RUNS = [
    PlannedRun("small", design, seed)
    for seed in (0, 1)
    for design in ("multinomial", "it's 50 %, a/b")
]
Told = dict[str, list[tuple[int, float]]]


class Failing(Observer):
    """Ends a run within a round, as a kill would: nothing more is written, told or saved."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def advanced(self, work: int, text: str, worker: int) -> None:
        self.left -= "choosing" not in text
        if not self.left:
            raise KeyboardInterrupt


class Stopping(Observer):
    """Ends a run after a round, as Ctrl-C does."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def advanced(self, work: int, text: str, worker: int) -> None:
        self.left -= "choosing" not in text

    def should_stop(self) -> bool:
        return self.left == 0


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep MLflow from telling its makers."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")


def follow(path: Path, tracker: str, observer: Observer | None = None, *, workers: int = 1) -> None:
    """Execute a run with a tracker, as the command does."""
    folder = RunFolder.open(path)
    sink = make_tracker(tracker, path, folder.experiment.name)
    try:
        execute(folder, workers=workers, observer=observer, tracker=sink)
    except KeyboardInterrupt:
        if observer is None:
            raise
    finally:
        sink.close()


def expected(results: Results, planned: PlannedRun) -> Told:
    """Return what the tables say of a run, by name and round."""
    told: Told = {}
    names = ("distinct_clients", "distinct_classes", "loss", "accuracy", "squared_error", *COST)
    for line in results.of("rounds", planned).to_pylist():
        for name in names:
            if line[name] is not None:
                told.setdefault(name, []).append((line["round"], line[name]))
    return told


def of_tensorboard(path: Path, planned: PlannedRun) -> Told:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (place,) = {
        file.parent
        for file in (path / "tensorboard").rglob(f"seed-{planned.seed}/events*")
        if file.parent.parent.name.startswith(planned.design[:2])
    }
    found = module.EventAccumulator(str(place), size_guidance={"scalars": 0})
    found.Reload()
    return {
        name: sorted((event.step, event.value) for event in found.Scalars(name))
        for name in found.Tags()["scalars"]
    }


def of_mlflow(path: Path, planned: PlannedRun) -> Told:
    client = mlflow().tracking.MlflowClient(f"sqlite:///{path / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "small"]
    (found,) = [
        each
        for each in client.search_runs([experiment.experiment_id])
        if each.info.run_name.endswith(f"seed-{planned.seed}")
        and f"/{planned.design[:2]}" in each.info.run_name
    ]
    return {
        name: sorted(
            (metric.step, metric.value)
            for metric in client.get_metric_history(found.info.run_id, name)
        )
        for name in found.data.metrics
    }


def mlflow() -> Any:
    for name in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(name, reason="for tests only")
    return importlib.import_module("mlflow")


READERS: dict[str, Callable[[Path, PlannedRun], Told]] = {
    "tensorboard": of_tensorboard,
    "mlflow": of_mlflow,
}


@pytest.fixture(params=READERS)
def tracker(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "mlflow":
        mlflow()
    else:
        pytest.importorskip(name, reason="for tests only")
    return name


def equal(found: Told, wanted: Told) -> bool:
    """Whether all is told once, in 32 bits."""
    return found.keys() == wanted.keys() and all(
        [step for step, _ in found[name]] == [step for step, _ in wanted[name]]
        and all(
            math.isclose(a, b, rel_tol=1e-6)
            for (_, a), (_, b) in zip(found[name], wanted[name], strict=True)
        )
        for name in wanted
    )


def test_a_tracker_is_told_what_the_tables_say(tracker: str, tmp_path: Path) -> None:
    path = make_folder(tmp_path, TEXT)

    follow(path, tracker)

    results = read_results(path)
    for planned in RUNS:
        wanted = expected(results, planned)
        assert len(wanted) == 5 + len(COST)
        assert equal(READERS[tracker](path, planned), wanted)


def next_second() -> None:
    """Wait: TensorBoard reads files in the order of the seconds in their names."""
    now = int(time.time())
    while int(time.time()) == now:
        time.sleep(0.02)


# After a kill in the fourth round its checkpoint is written and the tracker has not been told;
# after one in the sixth the tracker has been told more than the checkpoint knows.
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounds"), [(Stopping, 3), (Failing, 4), (Failing, 6)])
def test_a_run_that_goes_on_tells_every_round_once(
    kind: Callable[[int], Observer],
    rounds: int,
    tracker: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    path = make_folder(tmp_path, TEXT)
    if tracker == "mlflow":
        shutil.copy(request.getfixturevalue("database"), path)

    follow(path, tracker, kind(rounds))
    next_second()
    follow(path, tracker)

    results = read_results(path)
    for planned in RUNS:
        assert equal(READERS[tracker](path, planned), expected(results, planned))


@pytest.mark.slow
def test_the_rounds_of_workers_are_told_once_also_if_one_goes_on(tmp_path: Path) -> None:
    path = make_folder(tmp_path, TEXT)

    follow(path, "tensorboard", Failing(4))
    next_second()
    follow(path, "tensorboard", workers=2)

    results = read_results(path)
    for planned in RUNS:
        assert equal(READERS["tensorboard"](path, planned), expected(results, planned))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty database of MLflow, which takes seconds to make."""
    home = tmp_path_factory.mktemp("database")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        make_tracker("mlflow", home, "small").close()
    return home / "mlflow.db"


def test_the_command_takes_a_tracker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="for tests only")
    path = tmp_path / "run"

    result = run(capsys, "run", write(tmp_path), "--out", path, "--tracker", "tensorboard")
    again = run(capsys, "resume", path, "--tracker", "tensorboard")

    assert (result.code, again.code) == (0, 0)
    loss = of_tensorboard(path, PlannedRun("small", "multinomial", 0))["loss"]
    assert [step for step, _ in loss] == [*range(6)]


def test_an_unknown_tracker_gets_a_suggestion_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path)

    result = run(capsys, "run", file, "--out", tmp_path / "run", "--tracker", "mlfow")

    assert refused(result, "--tracker: must be one of tensorboard, mlflow, wandb; got 'mlfow'.")
    assert "Did you mean 'mlflow'?" in result.err
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_tracker_names_the_install_command_and_makes_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(module: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("fedcohort._lazy.import_module", missing)
    file = write(tmp_path)
    with pytest.raises(MissingExtraError, match=f"Run: pip install {name}$"):
        make_tracker(name, tmp_path, "x")
    monkeypatch.undo()
    monkeypatch.setattr(
        "fedcohort.experiments.trackers._needed", lambda package: raise_missing(package)
    )

    result = run(capsys, "run", file, "--out", tmp_path / "run", "--tracker", name)

    assert refused(result, name)
    assert list(tmp_path.iterdir()) == [file]


def raise_missing(package: str) -> ModuleType:
    raise MissingExtraError(f"--tracker {package}: needs {package}.")


def test_mlflow_without_its_database_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slim package, which has no SQLAlchemy, is enough to import it."""
    module = mlflow()

    def broken(*_: object) -> None:
        raise module.exceptions.MlflowException("unsupported URI 'sqlite:///x/mlflow.db'")

    monkeypatch.setattr(module.tracking, "MlflowClient", broken)

    with pytest.raises(FedcohortError, match="pip install mlflow"):
        make_tracker("mlflow", tmp_path, "x")


def test_trackers_are_told_only_what_was_measured() -> None:
    bare = Round(3, [1, 2], [1, 1], [0.5, 0.5], 0.0, distinct_classes=1)
    measured = replace(bare, quality=Quality(1.5, 0.25, 0.0))

    assert scalars(bare) == {"distinct_clients": 2.0, "distinct_classes": 1.0}
    assert scalars(measured) == {**scalars(bare), "loss": 1.5, "accuracy": 0.25}
