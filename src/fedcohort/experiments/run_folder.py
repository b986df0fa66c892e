"""The folder of a run: configuration, machine, tables, checkpoints, and its lock."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

import pyarrow.parquet as pq
import torch

from fedcohort._display import short_repr
from fedcohort._version import __version__
from fedcohort._whole_file import reason_of, write_whole
from fedcohort.errors import ExperimentError, FedcohortError, WriteError
from fedcohort.experiments.data_settings import EqualDevices
from fedcohort.experiments.own_code import part_files
from fedcohort.experiments.settings import Experiment
from fedcohort.experiments.tables import SCHEMAS, is_whole, was_written
from fedcohort.experiments.units import Unit, check_units, plan_units

PACKAGES = ("numpy", "scipy", "torch", "pyarrow", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of what it computes with."""
    found = {"python": platform.python_version(), "fedcohort": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine(device: str) -> dict[str, str]:
    """Describe the machine; ``device`` is what trains."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "device": device,
    }
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


try:
    import fcntl
except ImportError:  # pragma: no cover - elsewhere there is no such lock
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, owner: str) -> Iterator[int]:
    """Hold the lock at ``path``; refuse if another process holds it. Yield its file descriptor.

    The system releases the lock when the process and all that inherited the descriptor have
    ended, even if they are killed.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = reason_of(error)
        raise ExperimentError(
            f"{owner}: cannot be written ({reason}). Copy it to where you may write, or choose "
            f"another folder."
        ) from error
    try:
        if fcntl is not None and not _taken(descriptor):
            pid = _holder(descriptor)
            raise ExperimentError(
                f"{owner}: process {pid or '?'} is running in it. Wait for it, or choose "
                f"another folder."
            )
        with suppress(OSError):  # a full disk: the lock holds without the number
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Take the lock. :func:`is_locked` in another process holds it for a moment.

    If the holder is dead, wait longer: its workers are about to end.
    """
    begin = time.monotonic()
    while True:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        seconds = 0.1 if _is_alive(_holder(descriptor)) else 10
        if time.monotonic() - begin > seconds:
            return False
        time.sleep(0.02)


def _holder(descriptor: int) -> str:
    """Return the number of the process that took the lock last."""
    return os.pread(descriptor, 20, 0).decode(errors="replace").strip()


def _is_alive(pid: str) -> bool:
    """Whether a process runs; also if that cannot be known."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, OSError):
        return True
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock."""
    if fcntl is None or not path.exists():
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


#: The version of run.json and the tables; folders with another one are refused.
SCHEMA = 1
HEAD = "run.json"
#: Tables of a unit, each with those that are written after it.
LATER = {"rounds": ("cohorts", "rows", "laws", "trees"), "laws": ("trees",)}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an experiment is: rounds of all its runs, and seconds of computing."""

    done: int
    total: int
    seconds: float
    state: str


@final
class RunFolder:
    """An opened run folder; made with :meth:`create` or :meth:`open`."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path, self.head = path, head
        #: The table of who holds what, and of what clients train on; none if all are equal.
        self.federations, self.devices = path / "federations.parquet", path / "devices.parquet"
        try:
            self.experiment = Experiment.of(head["experiment"])
            self.units = [Unit.of_dict(unit) for unit in head["units"]]
            self.device = str(head["machine"]["device"])
            check_units(self.units, self.experiment)
        except (KeyError, IndexError, TypeError, ValueError, FedcohortError) as error:
            raise ExperimentError(
                f"{path / HEAD}: does not hold a run ({type(error).__name__}). Put back the file "
                f"that was written, or run experiment.toml again into another folder."
            ) from error

    def __repr__(self) -> str:
        return short_repr(self, path=str(self.path), experiment=self.experiment.name)

    @classmethod
    def create(
        cls, path: Path, experiment: Experiment, *, source: Path, device: str, command: list[str]
    ) -> RunFolder:
        """Make a new run folder; refuse a path that holds something else."""
        head = {
            "schema": SCHEMA,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(command),
            "file": str(source),
            "versions": versions(),
            "machine": machine(device),
            "experiment": experiment.as_dict(),
            "units": [unit.as_dict() for unit in plan_units(experiment, device)],
        }
        content = _as_json(head, source)
        files = [(source, Path("experiment.toml")), *part_files(experiment, source.parent)]
        try:
            check_new(path)
            (path / "units").mkdir(parents=True)
            for file, place in files:
                (path / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, path / place)
            write_whole(path / HEAD, content)
        except (OSError, WriteError) as error:
            with suppress(OSError):
                if not (path / HEAD).exists():
                    shutil.rmtree(path)
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise ExperimentError(
                f"{path}: cannot be written ({reason}). Choose another folder with --out."
            ) from error
        return cls(path, head)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run folder; refuse other folders and other versions."""
        try:
            head = json.loads((path / HEAD).read_text(encoding="utf-8"))
        except OSError as error:
            reason = reason_of(error)
            raise ExperimentError(
                f"{path}: is not a run folder ({HEAD}: {reason}). See: fedcohort runs"
            ) from error
        except ValueError as error:
            raise ExperimentError(
                f"{path / HEAD}: is damaged ({error}). Its tables under units/ are untouched; put "
                f"back the file, or run experiment.toml again into another folder."
            ) from error
        found = head.get("schema") if isinstance(head, dict) else None
        if found != SCHEMA:
            raise ExperimentError(
                f"{path}: was written with schema {found!r}; this version reads schema {SCHEMA}. "
                f"Nothing was changed: use the fedcohort that its {HEAD} names, or run its "
                f"experiment.toml again into another folder."
            )
        return cls(path, head)

    def discard_unless_begun(self) -> None:
        """Remove the folder if nothing was computed, so that the next try can use its name."""
        if not self.has_begun:
            shutil.rmtree(self.path, ignore_errors=True)

    @property
    def has_begun(self) -> bool:
        """Whether the folder holds anything that was computed."""
        return any(path.is_file() for path in (self.path / "units").rglob("*"))

    @property
    def is_merged(self) -> bool:
        """Whether the folder was made by merging others; then it is never resumed."""
        return "sources" in self.head

    def check_resumable(self) -> None:
        """Refuse to compute in a merged folder: its units come from other folders."""
        if self.is_merged and (state := self.progress().state) != "complete":
            raise ExperimentError(
                f"{self.path}: was merged and is {state}, so it cannot be resumed. Merge its parts "
                f"again into another folder: {self.resume_command}"
            )

    @property
    def resume_command(self) -> str:
        """The command that resumes the run, or merges its parts again."""
        if self.is_merged:
            return str(self.head["command"])
        return f"fedcohort resume {shlex.quote(str(self.path))}"

    @property
    def has_devices(self) -> bool:
        """Whether clients differ, so that there is a table of devices."""
        panels = self.experiment.panels
        return any(not isinstance(panel.devices, EqualDevices) for panel in panels)

    def unit_folder(self, unit: Unit) -> Path:
        """Return the folder of a unit's tables and checkpoint."""
        return self.path / "units" / f"{unit.number:03d}"

    def table(self, unit: Unit, name: str) -> Path:
        """Return the path of a unit's table."""
        return self.unit_folder(unit) / f"{name}.parquet"

    def checkpoint(self, unit: Unit) -> Path:
        """Return the path of a unit's checkpoint."""
        return self.unit_folder(unit) / "checkpoint.npz"

    def diverged(self, unit: Unit) -> Path:
        """Return the path of the file that says why a candidate was given up."""
        return self.unit_folder(unit) / "diverged.txt"

    def failed(self, unit: Unit) -> Path:
        """Return the path of the file that says why a unit failed; it is there until a retry."""
        return self.unit_folder(unit) / "failed.txt"

    def rounds_of(self, unit: Unit) -> int:
        """Return how many rounds each run of the unit has."""
        return self.experiment.panel(unit.runs[0].panel).rounds

    def has_table(self, unit: Unit, name: str) -> bool:
        """Whether a unit's table is there, or must be because it was written before.

        A running process may be about to write it. Folders of older versions have no sums: there,
        a later table shows that this one was written.
        """
        path = self.table(unit, name)
        if path.exists():
            return True
        if is_locked(self.path / "lock"):
            return False
        later = any(self.table(unit, each).exists() for each in LATER.get(name, ()))
        return later or was_written(path)

    def is_done(self, unit: Unit) -> bool:
        """Whether all tables of a unit are there and whole, or it was given up."""
        return self._is_done(unit, self._done(unit)[0])

    def _is_done(self, unit: Unit, done: int) -> bool:
        if self.diverged(unit).exists():
            return True
        has_all = done == len(unit.runs) * self.rounds_of(unit)
        return has_all and all(is_whole(self.table(unit, name)) for name in SCHEMAS)

    def progress(self) -> Progress:
        """Return how far the run is, from what is in the folder."""
        done = [(unit, *self._done(unit)) for unit in self.units]
        counted = [each for each in done if not self.diverged(each[0]).exists()]
        return Progress(
            done=sum(rounds for _, rounds, _ in counted),
            total=sum(len(unit.runs) * self.rounds_of(unit) for unit, _, _ in counted),
            seconds=sum(seconds for _, _, seconds in done),
            state=self._state([(unit, rounds) for unit, rounds, _ in done]),
        )

    def _state(self, done: list[tuple[Unit, int]]) -> str:
        """Return the state of the run; ``done`` are its units and the rounds that each has."""
        shared = [self.federations, *([self.devices] if self.has_devices else [])]
        tables = [*self.path.glob("units/*/*.parquet"), *shared]
        if is_locked(self.path / "lock"):
            return "running"
        if any(path.exists() and not is_whole(path) for path in tables):
            return "damaged"
        if all(path.exists() for path in shared) and all(self._is_done(*each) for each in done):
            return "complete"
        return "failed" if any(self.failed(unit).exists() for unit in self.units) else "interrupted"

    def _done(self, unit: Unit) -> tuple[int, float]:
        """Return the rounds that a unit has done, over all its runs, and their seconds."""
        names = ["draw_seconds", "train_seconds", "measure_seconds"]
        try:
            table = pq.read_table(self.table(unit, "rounds"), columns=names, partitioning=None)
        except (OSError, ValueError):
            return 0, 0.0
        draw, train, measure = (table[name].to_numpy().sum() for name in names)
        # All runs of a unit train at once.
        return table.num_rows, float(draw + train / len(unit.runs) + measure)


def _as_json(head: dict[str, Any], source: Path) -> bytes:
    try:
        return json.dumps(head, indent=1).encode()
    except TypeError as error:  # TOML has dates and times
        raise ExperimentError(
            f"{source}: values must be numbers, texts, truth values, lists or tables; got "
            f"another ({error}). Write a date as a text."
        ) from error


def check_new(path: Path) -> None:
    """Refuse a folder that holds a run or anything else."""
    if (path / HEAD).exists():
        raise ExperimentError(
            f"{path}: holds a run already. Choose another folder with --out, or resume with: "
            f"fedcohort resume {shlex.quote(str(path))}"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ExperimentError(f"{path}: must be a new or empty folder. Choose another with --out.")
