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
from threading import RLock
from typing import Any, final

from fedcohort._arguments import brief
from fedcohort._lazy import import_extra
from fedcohort._whole_file import make_folder
from fedcohort.errors import ExperimentError
from fedcohort.experiments.run_folder import HEAD, RunFolder
from fedcohort.experiments.runner import Begun, Ledger, Message, Outcome, Saved, UnitRunner
from fedcohort.experiments.units import Unit, needed_by
from fedcohort.experiments.workers import PAUSE, forwarding
from fedcohort.simulation import Dataset, FederatedData

#: Names of files below a folder, and their contents.
Files = Mapping[str, bytes]


@dataclass(slots=True)
class _Task:
    """A task in flight; ``slot`` is the worker that observers see, once it begins."""

    unit: Unit
    number: int
    slot: int | None = None


@contextmanager
def ray_tasks(
    ledger: Ledger, address: str, *, data: Callable[[str], Dataset | FederatedData]
) -> Iterator[RayTasks]:
    """Join a cluster; yield a crew of its tasks.

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
    import_extra("aiohttp", extra="ray", owner="--ray, to ship code,")
    ray: Any = import_extra("ray", extra="ray", owner="--ray")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
    options: dict[str, Any] = {"address": address, "log_to_driver": False}
    if address == "local":
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    code = {"py_modules": [str(Path(__file__).parents[1])]}
    try:
        if address.startswith("ray://"):
            raise ValueError("a client's address: name the cluster's own, on one of its nodes")
        ray.init(runtime_env=code, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
        raise ExperimentError(
            f"--ray: cannot join {brief(address)} ({reason}). Start a cluster with: ray start "
            f"--head; or pass local."
        ) from error
    try:
        kind = "GPU" if ledger.folder.device == "cuda" else "CPU"
        n_slots = int(ray.cluster_resources().get(kind, 0))
        if n_slots < 1:
            raise ExperimentError(
                f"--ray: the cluster at {address} has no {kind}, which a unit needs. Add a node "
                f"that has one."
            )
        yield RayTasks(ray, ledger, min(n_slots, len(ledger.left)), data)
    finally:
        ray.shutdown()


@final
class RayTasks:
    """Tasks that run the units of a ledger, a crew. Ray has its own queue of tasks."""

    def __init__(
        self,
        ray: Any,
        ledger: Ledger,
        size: int,
        data: Callable[[str], Dataset | FederatedData],
    ) -> None:
        self._ray, self._ledger, self.size, self.room = ray, ledger, size, len(ledger.left)
        self._tasks: dict[Any, _Task] = {}
        self._begun = 0
        self._desk = self._new_desk()
        self._shared = ray.put(self._shared_files())
        panels = {run.panel for unit in ledger.left for run in unit.runs}
        names = {ledger.folder.experiment.panel(panel).data.dataset for panel in panels}
        self._shipped = {name: ray.put(data(name)) for name in names}

    def begin(self, unit: Unit) -> None:
        """Hand a unit to Ray, which decides when and where it runs."""
        folder = self._ledger.folder
        gpus = 1 if folder.device == "cuda" else 0
        remote = self._ray.remote(_attempt).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        self._begun += 1
        unit.begin()
        files = {
            f"{each.folder.relative_to(folder.path)}/{name}": content
            for each in [unit, *needed_by(unit, folder.units)]
            for name, content in each.files().items()
        }
        where = _Place(self._begun, unit.number, str(folder.path), self._ledger.is_tracked)
        ref = remote.remote(where, self._shared, files, self._shipped, self._desk)
        self._tasks[ref] = _Task(unit, self._begun)

    def ended(self) -> list[tuple[Unit, Outcome, int]]:
        """Handle what tasks have sent; return those that have ended."""
        done, _ = self._ray.wait(list(self._tasks), timeout=PAUSE)
        by_number = {task.number: task for task in self._tasks.values()}
        for number, message in self._ray.get(self._desk.collect.remote()):
            if (task := by_number.get(number)) is None:
                continue  # of a lost task
            if isinstance(message, Begun):
                task.slot = self._free_slot()
            self._ledger.handle(message, task.slot or 0)
        outcomes = [(self._tasks.pop(ref), self._outcome(ref)) for ref in done]
        return [(task.unit, outcome, task.slot or 0) for task, outcome in outcomes]

    def stop(self) -> None:
        """Let tasks end after their round, with a checkpoint; cancel those that have not begun."""
        self._ray.get(self._desk.stop.remote())
        for ref, task in self._tasks.items():
            if task.slot is None:
                self._ray.cancel(ref)

    def _outcome(self, ref: Any) -> Outcome:
        """Return how a task has ended."""
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(ref)
        except errors.TaskCancelledError:
            return Outcome(is_stopped=True)
        except (errors.RayTaskError, errors.RuntimeEnvSetupError) as error:
            return Outcome(error=RuntimeError(f"a Ray task failed:\n{error}"))
        except errors.RayError as error:  # its worker or its node died
            return Outcome(crash=f"was lost ({type(error).__name__})")
        return outcome

    def _free_slot(self) -> int:
        taken = {task.slot for task in self._tasks.values()}
        return next((k for k in range(self.size) if k not in taken), self.size - 1)

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
        paths = [home / HEAD, home / "experiment.toml", *own]
        kept = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
        return {str(path.relative_to(home)): path.read_bytes() for path in kept}


class _Desk:
    """The actor that tasks report to; the driver collects what they sent."""

    def __init__(self) -> None:
        self._sent: list[tuple[int, Message]] = []
        self._is_stopping = False

    def post(self, task: int, messages: list[Message]) -> bool:
        """Take what a task has sent; return whether it must stop after its round."""
        self._sent += [(task, message) for message in messages]
        return self._is_stopping

    def collect(self) -> list[tuple[int, Message]]:
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
            here = isinstance(message, Saved)
            line.send(Saved(unit.number, unit.files()) if here else message)

        runner = UnitRunner(
            folder,
            notify,
            lambda: line.is_stopping,
            tracked=place.tracked,
            load=lambda data_set, code: ray.get(data[data_set]),
        )
        with forwarding(line.send):
            outcome = runner.run(unit)
        line.flush()
        if isinstance(outcome.error, ExperimentError):  # its way out is the user's folder
            told = ExperimentError(str(outcome.error).replace(name, place.path))
            told.__cause__ = outcome.error.__cause__
            outcome = Outcome(error=told)
        return outcome


@dataclass
class _Line:
    """A task's line to the desk: it collects rounds for a moment and sends them together."""

    desk: Any
    task: int
    get: Callable[[Any], Any]
    is_stopping: bool = False
    _waiting: list[Message] = field(default_factory=list)
    _last: float = 0.0
    _turn: Any = field(default_factory=RLock)

    def send(self, message: Message) -> None:
        """Send a message; a round or a line of the log may wait for the next one."""
        with self._turn:  # designs that are built in threads log too
            self._waiting.append(message)
            at_once = isinstance(message, Begun | Saved)
            if at_once or time.monotonic() - self._last > PAUSE / 2:
                self.flush()

    def flush(self) -> None:
        """Send all that waits."""
        with self._turn:
            self.is_stopping = self.get(self.desk.post.remote(self.task, self._waiting))
            self._waiting, self._last = [], time.monotonic()
