"""Trackers: send the numbers of a run to other tools while it runs."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, final

from fedcohort._arguments import did_you_mean
from fedcohort._lazy import import_extra
from fedcohort.errors import ExperimentError, MissingExtraError
from fedcohort.experiments.tables import COST
from fedcohort.experiments.units import PlannedRun
from fedcohort.simulation import Round


class Tracker(ABC):
    """Log every round of every run once. A resumed run continues in the same place."""

    def __init__(self) -> None:
        self._told: dict[PlannedRun, int] = {}

    def follow(self, run: PlannedRun, rounds: Sequence[Round]) -> None:
        """Log the rounds of a run that are not logged yet."""
        told = self._told.get(run)
        if told is None:
            told = self._known(run)
        for each in rounds[told:]:
            self._log(run, each)
        self._told[run] = max(told, len(rounds))

    @abstractmethod
    def _known(self, run: PlannedRun) -> int:
        """Find or create the run. Return how many of its rounds are logged already."""

    @abstractmethod
    def _log(self, run: PlannedRun, round_: Round) -> None:
        """Log one round."""

    @abstractmethod
    def close(self) -> None:
        """Write all pending data."""


#: A number that every round logs.
ALWAYS = "distinct_clients"


def scalars(round_: Round) -> dict[str, float]:
    """Return the numbers of a round to log."""
    values = {
        ALWAYS: float(round_.distinct_clients),
        "distinct_classes": float(round_.distinct_classes),
    }
    if round_.quality is not None:
        values |= {"loss": round_.quality.loss, "accuracy": round_.quality.accuracy}
    if round_.yardstick is not None:
        values["squared_error"] = round_.yardstick.squared_error
    if round_.cost is not None:
        values |= {name: float(getattr(round_.cost, name)) for name in COST}
    return values


@final
class TensorBoard(Tracker):
    """Write event files below ``tensorboard/``, one folder per run."""

    def __init__(self, folder: Path, experiment: str) -> None:
        super().__init__()
        _needed("tensorboard")
        self._torch = import_module("torch.utils.tensorboard")
        self._events = import_module("tensorboard.backend.event_processing.event_accumulator")
        self._folder = folder / "tensorboard"
        self._writers: dict[PlannedRun, Any] = {}

    def _known(self, run: PlannedRun) -> int:
        place = self._folder.joinpath(*_names(run))
        known = 0
        if place.exists():
            events = self._events.EventAccumulator(str(place), size_guidance={"scalars": 0})
            events.Reload()
            if ALWAYS in events.Tags()["scalars"]:
                known = 1 + max(event.step for event in events.Scalars(ALWAYS))
        self._writers[run] = self._torch.SummaryWriter(place)
        return known

    def _log(self, run: PlannedRun, round_: Round) -> None:
        for name, value in scalars(round_).items():
            self._writers[run].add_scalar(name, value, round_.round_)

    def close(self) -> None:
        """Write all pending data."""
        for writer in self._writers.values():
            writer.close()


@final
class MlFlow(Tracker):
    """Write to a database ``mlflow.db`` in the folder, with one MLflow run per run."""

    def __init__(self, folder: Path, experiment: str) -> None:
        super().__init__()
        # The user chose local files, so send no telemetry.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        module = _needed("mlflow")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._metric = module.entities.Metric
        try:
            self._client = module.tracking.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = (
                self._client.create_experiment(experiment) if found is None else found.experiment_id
            )
        except module.exceptions.MlflowException as error:
            raise MissingExtraError(
                f"--tracker mlflow: cannot use a database ({str(error).splitlines()[0]}). "
                f"Run: pip install mlflow"
            ) from error
        self._runs: dict[PlannedRun, str] = {}

    def _known(self, run: PlannedRun) -> int:
        name = "/".join(_names(run))
        found = self._client.search_runs(
            [self._experiment], f"tags.`mlflow.runName` = '{name}'", max_results=1
        )
        there = found[0] if found else self._client.create_run(self._experiment, run_name=name)
        self._runs[run] = str(there.info.run_id)
        told = self._client.get_metric_history(self._runs[run], ALWAYS) if found else []
        return 1 + max((metric.step for metric in told), default=-1)

    def _log(self, run: PlannedRun, round_: Round) -> None:
        now = int(1000 * time.time())
        metrics = [
            self._metric(name, value, timestamp=now, step=round_.round_)
            for name, value in scalars(round_).items()
        ]
        self._client.log_batch(self._runs[run], metrics=metrics)

    def close(self) -> None:
        """Write all pending data."""
        for each in self._runs.values():
            self._client.set_terminated(each)


@final
class WeightsAndBiases(Tracker):
    """Log to Weights & Biases, one W&B run per run. ``WANDB_MODE=offline`` keeps the data here."""

    def __init__(self, folder: Path, experiment: str) -> None:
        super().__init__()
        self._module, self._folder, self._experiment = _needed("wandb"), folder, experiment
        self._runs: dict[PlannedRun, Any] = {}

    def _known(self, run: PlannedRun) -> int:
        names = _names(run)
        self._runs[run] = self._module.init(
            project="fedcohort",
            group=self._experiment,
            name="/".join(names),
            id="-".join([self._experiment, *names]),
            resume="allow",
            dir=str(self._folder),
            reinit="create_new",
        )
        return int(self._runs[run].step)

    def _log(self, run: PlannedRun, round_: Round) -> None:
        self._runs[run].log(scalars(round_), step=round_.round_)

    def close(self) -> None:
        """Write all pending data."""
        for each in self._runs.values():
            each.finish()


TRACKERS: dict[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MlFlow,
    "wandb": WeightsAndBiases,
}


def make_tracker(name: str, folder: Path, experiment: str) -> Tracker:
    """Make a tracker by name for the run in this folder."""
    if name not in TRACKERS:
        raise ExperimentError(
            f"--tracker: must be one of {', '.join(TRACKERS)}; got {name!r}."
            f"{did_you_mean(name, TRACKERS)}"
        )
    return TRACKERS[name](folder, experiment)


def _needed(package: str) -> ModuleType:
    try:
        return import_extra(package, extra="sim", owner=f"--tracker {package}")
    except MissingExtraError:
        raise MissingExtraError(
            f"--tracker {package}: needs {package}, which is not installed. "
            f"Run: pip install {package}"
        ) from None


def _names(run: PlannedRun) -> list[str]:
    """Return the parts of a run's name. Each part is a valid file name."""
    parts = [run.panel, run.design, f"seed-{run.seed}"]
    return ["".join(c if c.isalnum() or c in "._-=" else "-" for c in part) for part in parts]
