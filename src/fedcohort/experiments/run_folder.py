"""The folder of a run: configuration, machine, tables, checkpoints, its lock and its log."""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

import torch

from fedcohort._arguments import checked_choice, checked_kind, checked_path
from fedcohort._display import short_repr
from fedcohort._lock import is_locked
from fedcohort._version import __version__
from fedcohort._whole_file import make_folder, reason_of, write_whole
from fedcohort.errors import ExperimentError, FedcohortError, WriteError
from fedcohort.experiments.checked_table import NAME, checked_texts
from fedcohort.experiments.own_code import part_files
from fedcohort.experiments.settings import EqualDevices, Experiment
from fedcohort.experiments.tables import is_whole, was_written
from fedcohort.experiments.units import LANES, Part, Unit, check_units, plan_units

PACKAGES = ("numpy", "scipy", "torch", "pyarrow", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of its numerical dependencies."""
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


class _QuietFile(logging.FileHandler):
    """A log that ignores a full disk."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line if possible."""
        with suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        """Close the file, even if the rest of it cannot be written."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Drop the line."""


class _Once(logging.Filter):
    """Drop repeated messages: designs are built in every round and say the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass warnings and new messages."""
        if record.levelno > logging.INFO:
            return True
        message = record.getMessage()
        is_new = message not in self._said
        self._said.add(message)
        return is_new


def logging_to(path: Path) -> AbstractContextManager[None]:
    """Write the package's log into a file."""
    handler = _QuietFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(_Once())
    return logging_by(handler)


@contextmanager
def logging_by(handler: logging.Handler) -> Iterator[None]:
    """Pass the package's log to a handler."""
    package = logging.getLogger("fedcohort")
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()


#: The version of run.json and the tables; folders with another one are refused.
SCHEMA = 1
HEAD = "run.json"
#: Tables of a unit, each with those that are written after it.
LATER = {"rounds": ("cohorts", "rows", "laws", "trees"), "laws": ("trees",)}


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an experiment: rounds of all its runs, and seconds of computing."""

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
            self.units = [Unit.of_dict(unit, self.experiment, path) for unit in head["units"]]
            self.device = str(head["machine"]["device"])
            #: The share of the experiment's units that the folder has; None for all of them.
            self.part = Part(**head["part"]) if "part" in head else None
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
        cls,
        path: str | Path,
        experiment: Experiment,
        *,
        source: str | Path,
        device: str,
        command: Sequence[str],
        part: Part | None = None,
        name: str | None = None,
    ) -> RunFolder:
        """Make a new run folder, of all units or of a part; refuse a path that holds another.

        If the folder holds this part already, it is opened, so that one command begins a part and
        goes on with it. ``name`` is what messages call the file ``source``; by default its path.
        """
        path, source = _checked_path("path", path), _checked_path("source", source)
        way_out, error = "Pass what read_experiment gave.", ExperimentError
        checked_kind(
            "RunFolder", "experiment", experiment, Experiment, way_out=way_out, error=error
        )
        checked_choice("RunFolder", "device", device, LANES, error=error)
        command = checked_texts("RunFolder", "command", command, "sys.argv")
        given = str(source) if name is None else name
        named = NAME.checked("RunFolder", "name", given, error=ExperimentError)
        if part is not None:
            checked_kind("RunFolder", "part", part, Part, way_out="Pass Part(1, 2).", error=error)
        if part is not None and (path / HEAD).exists():
            return cls._of_part(path, experiment, device, part)
        units = plan_units(experiment, device, path)
        head = {
            "schema": SCHEMA,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(command),
            "file": named,
            "versions": versions(),
            "machine": machine(device),
            "experiment": experiment.as_dict(),
            **({} if part is None else {"part": asdict(part)}),
            "units": [unit.as_dict() for unit in (part.chosen(units) if part else units)],
        }
        content = _as_json(head, source)
        with new_folder(path) as new:
            make_folder(new / "units")
            keep_files(experiment, source, new, "experiment.toml")
            write_whole(new / HEAD, content)
        return cls(path, head)

    @classmethod
    def _of_part(cls, path: Path, experiment: Experiment, device: str, part: Part) -> RunFolder:
        """Open the folder of a part; refuse another part and another experiment."""
        found = cls.open(path)
        held = (found.part, found.experiment.as_dict(), found.device)
        if held != (part, experiment.as_dict(), device):
            of = "another experiment" if found.part == part else found.part or "a whole run"
            raise ExperimentError(
                f"{path}: must hold {part} of this experiment on {device}; it holds {of} on "
                f"{found.device}. Choose another folder with --out."
            )
        return found

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run folder; refuse other folders and other versions."""
        path = _checked_path("path", path)
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

    @contextmanager
    def discarded_unless_begun(self) -> Iterator[None]:
        """After an error remove the folder if it is empty, so that the next try has its name."""
        try:
            yield
        except FedcohortError as error:
            # With free disk space, resume can continue.
            if not isinstance(error.__cause__, WriteError) and not self.has_begun:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    @property
    def has_begun(self) -> bool:
        """Whether the folder holds anything that was computed."""
        return any(path.is_file() for path in (self.path / "units").rglob("*"))

    @property
    def is_merged(self) -> bool:
        """Whether the folder was made by merging others; then it is never resumed."""
        return "sources" in self.head

    def worded_sources(self) -> list[str]:
        """Describe where the units of a merged folder were computed, a line for each source."""
        lines = []
        for number, source in enumerate(self.head.get("sources", [])):
            units = [str(unit.number) for unit in self.units if unit.source == number]
            facts = {**source["machine"], **source["versions"]}
            told = ", ".join(f"{key} {value}" for key, value in facts.items())
            lines.append(
                f"{source['folder']}: units {', '.join(units) or 'none'}; {source['created']}; "
                f"{source['command']}; {told}"
            )
        return lines

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
        return any(
            not isinstance(panel.devices, EqualDevices) or panel.devices.presence is not None
            for panel in panels
        )

    def has_table(self, unit: Unit, name: str) -> bool:
        """Whether a unit's table is there, or must be because it was written before.

        A running process may be about to write it. Folders of older versions have no sums: there,
        a later table shows that this one was written.
        """
        way_out, error = "Pass one of folder.units.", ExperimentError
        checked_kind("RunFolder", "unit", unit, Unit, way_out=way_out, error=error)
        path = unit.table(name)
        if path.exists():
            return True
        if is_locked(self.path / "lock"):
            return False
        later = any(unit.table(each).exists() for each in LATER.get(name, ()))
        return later or was_written(path)

    def progress(self) -> Progress:
        """Return the progress of the run, read from the folder."""
        done = {unit: unit.progress() for unit in self.units}
        counted = [unit for unit in self.units if not unit.ended("diverged")]
        return Progress(
            done=sum(done[unit][0] for unit in counted),
            total=sum(len(unit.runs) * unit.rounds for unit in counted),
            seconds=sum(seconds for _, seconds in done.values()),
            state=self._state(),
        )

    def _state(self) -> str:
        shared = [self.federations, *([self.devices] if self.has_devices else [])]
        tables = [*self.path.glob("units/*/*.parquet"), *shared]
        if is_locked(self.path / "lock"):
            return "running"
        if any(path.exists() and not is_whole(path) for path in tables):
            return "damaged"
        if all(path.exists() for path in shared) and all(unit.is_done for unit in self.units):
            return "complete"
        return "failed" if any(unit.ended("failed") for unit in self.units) else "interrupted"


def _as_json(head: dict[str, Any], source: Path) -> bytes:
    try:
        return json.dumps(head, indent=1).encode()
    except TypeError as error:  # TOML has dates and times
        raise ExperimentError(
            f"{source}: values must be numbers, texts, truth values, lists or tables; got "
            f"another ({error}). Write a date as a text."
        ) from error


def _checked_path(name: str, path: object) -> Path:
    return checked_path("RunFolder", name, path, error=ExperimentError)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling to fill, then rename it; ``path`` must be new or empty."""
    temporary = path.resolve().with_name(f".{path.resolve().name}.part")
    try:
        check_new(path)
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
        make_folder(temporary)
        yield temporary
        if path.exists():
            path.rmdir()
        temporary.rename(path.resolve())
    except (OSError, WriteError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = reason_of(cause) if isinstance(cause, OSError) else str(error)
        raise ExperimentError(
            f"{path}: cannot be written ({reason}). Choose another folder with --out."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def keep_files(experiment: Experiment, source: Path, folder: Path, name: str) -> None:
    """Copy an experiment file, under this name, and the user's own files that it names."""
    for file, place in [(source, Path(name)), *part_files(experiment, source.parent)]:
        make_folder((folder / place).parent)
        shutil.copyfile(file, folder / place)


def check_new(path: Path) -> None:
    """Refuse a folder that holds a run or anything else."""
    if (path / HEAD).exists():
        raise ExperimentError(
            f"{path}: holds a run already. Choose another folder with --out, or resume with: "
            f"fedcohort resume {shlex.quote(str(path))}"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ExperimentError(f"{path}: must be a new or empty folder. Choose another with --out.")
