"""Units as tasks of a Ray cluster; the run folder stays with the driver.

A task works in a temporary folder of its node. At every checkpoint it sends the unit's files back
to the driver through an actor on the driver's node, so that a unit whose worker or node is lost
begins again from there, on any node, or later without Ray.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, final

from fedcohort._arguments import brief
from fedcohort._lazy import import_extra
from fedcohort._whole_file import make_folder, write_whole
from fedcohort.errors import ExperimentError
from fedcohort.experiments.run_folder import HEAD, RunFolder
from fedcohort.experiments.runner import Begun, Ledger, Message, Outcome, Saved, UnitRunner
from fedcohort.experiments.tables import SUMS
from fedcohort.experiments.units import Unit, needed_by
from fedcohort.experiments.workers import PAUSE, Forward
from fedcohort.simulation import Dataset, FederatedData

#: Names of files below a folder, and their contents.
Files = Mapping[str, bytes]
#: What a task sends: progress, lines of the log, the files of its unit.
Sent = Message | logging.LogRecord | Files


@dataclass(slots=True)
class _Task:
    """A task in flight; ``slot`` is the worker that observers see, once it begins."""

    unit: Unit
    number: int
    slot: int | None = None


@final
class RayTasks:
    """Runs the units of a ledger as tasks of a Ray cluster.

    Parameters
    ----------
    ledger
        Decides what begins, and what follows from an end.
    address
        Of a running cluster, as ``127.0.0.1:6379`` or ``auto``; ``local`` starts one here that
        ends with the run.
    data
        Returns a data set by its name. Each is shipped once.
    """

    def __init__(
        self, ledger: Ledger, address: str, *, data: Callable[[str], Dataset | FederatedData]
    ) -> None:
        import_extra("aiohttp", extra="ray", owner="--ray, to ship code,")
        self._ray: Any = import_extra("ray", extra="ray", owner="--ray")
        self._ledger, self._address, self._data = ledger, address, data
        self._tasks: dict[Any, _Task] = {}
        self._begun = 0

    def run(self) -> None:
        """Run all units, until the observer stops them."""
        with self._connected():
            self._size = self._n_slots()
            self._ledger.start(self._size)
            self._desk = self._new_desk()
            self._shared = self._ray.put(self._shared_files())
            self._shipped = {name: self._ray.put(self._data(name)) for name in self._data_names()}
            is_stopping = False
            self._submit()
            while self._tasks:
                done, _ = self._ray.wait(list(self._tasks), timeout=PAUSE)
                self._receive()
                for ref in done:
                    self._settle(ref)
                if not is_stopping and self._ledger.should_stop():
                    is_stopping = True
                    self._stop()
                self._submit()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Join the cluster; ship this package to its nodes."""
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
        options: dict[str, Any] = {"address": self._address, "log_to_driver": False}
        if self._address == "local":
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        code = {"py_modules": [str(Path(__file__).parents[1])]}
        try:
            if self._address.startswith("ray://"):
                raise ValueError("a client's address: name the cluster's own, on one of its nodes")
            self._ray.init(runtime_env=code, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[
                :200
            ]
            raise ExperimentError(
                f"--ray: cannot join {brief(self._address)} ({reason}). Start a cluster with: ray "
                f"start --head; or pass local."
            ) from error
        try:
            yield
        finally:
            self._ray.shutdown()

    def _n_slots(self) -> int:
        """Return how many units can run at a time; refuse a cluster that can run none."""
        kind = "GPU" if self._ledger.folder.device == "cuda" else "CPU"
        n = int(self._ray.cluster_resources().get(kind, 0))
        if n < 1:
            raise ExperimentError(
                f"--ray: the cluster at {self._address} has no {kind}, which a unit needs. Add a "
                f"node that has one."
            )
        return min(n, len(self._ledger.left))

    def _new_desk(self) -> Any:
        """Start the actor that tasks report to, on this node: it ends with the driver."""
        place = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self._ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = self._ray.remote(_Desk)
        return actor.options(num_cpus=0, scheduling_strategy=place).remote()

    def _shared_files(self) -> Files:
        """Return what every unit needs of the run folder."""
        home = self._ledger.folder.path
        own = [each for name in ("code", "devices") for each in (home / name).rglob("*")]
        return _files(home, [home / HEAD, home / "experiment.toml", *own])

    def _data_names(self) -> set[str]:
        """Return the data sets of the units that are left."""
        folder = self._ledger.folder
        panels = {run.panel for unit in self._ledger.left for run in unit.runs}
        return {folder.experiment.panel(panel).data.dataset for panel in panels}

    def _submit(self) -> None:
        """Hand every unit that may begin to Ray, which decides when and where it runs."""
        folder = self._ledger.folder
        gpus = 1 if folder.device == "cuda" else 0
        remote = self._ray.remote(_attempt).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        while (unit := self._ledger.take()) is not None:
            self._begun += 1
            unit.begin()
            units = [unit, *needed_by(unit, folder.units)]
            files = _files(folder.path, [path for each in units for path in each.folder.iterdir()])
            where = _Place(self._begun, unit.number, str(folder.path), self._ledger.is_tracked)
            ref = remote.remote(where, self._shared, files, self._shipped, self._desk)
            self._tasks[ref] = _Task(unit, self._begun)

    def _receive(self) -> None:
        """Handle what tasks have sent, unless they are lost."""
        by_number = {task.number: task for task in self._tasks.values()}
        for number, message in self._ray.get(self._desk.collect.remote()):
            if (task := by_number.get(number)) is None:
                continue
            if isinstance(message, Message):
                if isinstance(message, Begun):
                    task.slot = self._free_slot()
                self._ledger.handle(message, task.slot or 0)
            elif isinstance(message, logging.LogRecord):
                logging.getLogger(message.name).handle(message)
            else:
                _keep(task.unit, message)

    def _free_slot(self) -> int:
        taken = {task.slot for task in self._tasks.values()}
        return next((k for k in range(self._size) if k not in taken), self._size - 1)

    def _settle(self, ref: Any) -> None:
        """Give the outcome of a task that has ended to the ledger."""
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(ref)
        except errors.TaskCancelledError:
            outcome = Outcome(is_stopped=True)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            outcome = Outcome(error=RuntimeError(f"a Ray task failed:\n{error}"))
        except errors.RayError as error:  # its worker or its node died
            outcome = Outcome(crash=f"was lost ({type(error).__name__})")
        task = self._tasks.pop(ref)
        if outcome == Outcome():
            task.unit.checkpoint.unlink(missing_ok=True)
        self._ledger.settle(task.unit, outcome, task.slot or 0)

    def _stop(self) -> None:
        """Let tasks end after their round, with a checkpoint; cancel those that have not begun."""
        self._ray.get(self._desk.stop.remote())
        for ref, task in self._tasks.items():
            if task.slot is None:
                self._ray.cancel(ref)


class _Desk:
    """The actor that tasks report to; the driver collects what they sent."""

    def __init__(self) -> None:
        self._sent: list[tuple[int, Sent]] = []
        self._is_stopping = False

    def post(self, task: int, messages: list[Sent]) -> bool:
        """Take what a task has sent; return whether it must stop after its round."""
        self._sent += [(task, message) for message in messages]
        return self._is_stopping

    def collect(self) -> list[tuple[int, Sent]]:
        """Return the messages since the last call."""
        found, self._sent = self._sent, []
        return found

    def stop(self) -> None:
        """Ask all tasks to stop."""
        self._is_stopping = True


@dataclass(frozen=True, slots=True)
class _Place:
    """A task: its number, its unit's, the path of the run folder, whether rounds are tracked."""

    task: int
    unit: int
    path: str
    tracked: bool


def _attempt(
    place: _Place, shared: Files, files: Files, data: Mapping[str, Any], desk: Any
) -> Outcome:
    """Run a unit on a node, from its last checkpoint."""
    ray: Any = import_extra("ray", extra="ray", owner="--ray")
    with TemporaryDirectory(prefix="fedcohort-") as name:
        home = Path(name)
        for file, content in {**shared, **files}.items():
            make_folder((home / file).parent)
            (home / file).write_bytes(content)
        folder = RunFolder.open(home)
        unit = next(each for each in folder.units if each.number == place.unit)
        line = _Line(desk, place.task, ray.get)

        def notify(message: Message) -> None:
            if isinstance(message, Saved):
                line.send(_files(unit.folder, list(unit.folder.iterdir())), at_once=True)
            else:
                line.send(message)

        handler, package = Forward(line.send), logging.getLogger("fedcohort")
        package.addHandler(handler)
        package.setLevel(logging.INFO)
        runner = UnitRunner(
            folder,
            notify,
            lambda: line.is_stopping,
            tracked=place.tracked,
            load=lambda data_set, code: ray.get(data[data_set]),
        )
        try:
            outcome = runner.run(unit)
        finally:
            package.removeHandler(handler)
        line.send(_files(unit.folder, list(unit.folder.iterdir())), at_once=True)
        if isinstance(outcome.error, ExperimentError):  # its way out is the user's folder
            told = ExperimentError(str(outcome.error).replace(name, place.path))
            told.__cause__ = outcome.error.__cause__
            outcome = Outcome(error=told)
        return outcome


@dataclass
class _Line:
    """A task's line to the desk: it collects messages for a moment and sends them together."""

    desk: Any
    task: int
    get: Callable[[Any], Any]
    is_stopping: bool = False
    _waiting: list[Sent] = field(default_factory=list)
    _last: float = 0.0
    _turn: Any = field(default_factory=Lock)

    def send(self, message: Sent, *, at_once: bool = False) -> None:
        """Send a message, soon."""
        with self._turn:  # designs that are built in threads log too
            self._waiting.append(message)
            now = time.monotonic()
            if at_once or now - self._last > PAUSE / 2:
                self.is_stopping = self.get(self.desk.post.remote(self.task, self._waiting))
                self._waiting, self._last = [], now


def _files(home: Path, paths: list[Path]) -> dict[str, bytes]:
    """Read files, by their places below ``home``."""
    kept = (path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(home)): path.read_bytes() for path in kept}


def _keep(unit: Unit, files: Files) -> None:
    """Write what a task has sent of its unit, in the order in which it was written there."""
    for name in sorted(files, key=lambda name: (name != unit.checkpoint.name, name != SUMS)):
        write_whole(unit.folder / name, files[name])
