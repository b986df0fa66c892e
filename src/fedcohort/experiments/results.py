"""What a run folder holds, read for reports, exports and a resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from logging import getLogger
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcohort._display import short_repr
from fedcohort.errors import ExperimentError, FedcohortError, SimulationError, WriteError
from fedcohort.experiments.own_code import place_in
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.tables import DEVICES, FEDERATIONS, SCHEMAS, read_table
from fedcohort.experiments.units import Trial


@dataclass(frozen=True, eq=False)
class Results:
    """The tables of a run folder, all units together (those that try grids left out).

    Attributes
    ----------
    folder
        The run folder.
    tables
        ``rounds``, ``cohorts``, ``rows``, ``laws``, ``trees``: see ``tables.SCHEMAS``.
    federations
        Who holds what: see ``tables.FEDERATIONS``.
    devices
        What clients train on: see ``tables.DEVICES``; empty where all are equal.
    """

    folder: RunFolder
    tables: dict[str, pa.Table]
    federations: pa.Table
    devices: pa.Table = field(default_factory=DEVICES.empty_table)

    def __repr__(self) -> str:
        rounds = self.tables["rounds"].num_rows
        return short_repr(self, folder=str(self.folder.path), runs=len(self.trials), rounds=rounds)

    @cached_property
    def _slices(self) -> dict[str, dict[Trial, pa.Table]]:
        return {name: _by_trial(table) for name, table in self.tables.items()}

    @property
    def trials(self) -> list[Trial]:
        """All runs, in the order of the experiment."""
        return [t for unit in self.folder.units if unit.candidate is None for t in unit.trials]

    def of(self, name: str, trial: Trial) -> pa.Table:
        """Return a run's part of a table, in the order of rounds."""
        found = self._slices[name].get(trial)
        return SCHEMAS[name].empty_table() if found is None else found

    def column(self, name: str, trial: Trial, column: str) -> NDArray[np.float64]:
        """Return a column of a run's part as numbers; NaN where there is none."""
        return np.asarray(
            self.of(name, trial)[column].to_numpy(zero_copy_only=False), dtype=np.float64
        )

    def class_counts(self, panel: str, seed: int) -> NDArray[np.int64]:
        """Return the samples of every client and class, shape (n_clients, n_classes)."""
        table = self.federations
        here = (table["panel"].to_numpy(zero_copy_only=False) == panel) & (
            table["seed"].to_numpy() == seed
        )
        clients, classes, samples = (
            table[name].to_numpy()[here] for name in ("client", "class", "samples")
        )
        counts = np.zeros((clients.max(initial=-1) + 1, classes.max(initial=-1) + 1), np.int64)
        counts[clients, classes] = samples
        return counts


def read_results(path: Path) -> Results:
    """Read a run folder; what a run has not reached yet is simply not there."""
    folder = RunFolder.open(path)
    tables = {}
    for name, schema in SCHEMAS.items():
        parts = [schema.empty_table()]
        for unit in folder.units:
            file = folder.table(unit, name)
            if unit.candidate is None and (file.exists() or folder.must_have(unit, name)):
                parts.append(read_table(file, schema, way_out=folder.resume_command))
        tables[name] = pa.concat_tables(parts)
    federations = folder.federations
    if not federations.exists():
        raise ExperimentError(f"{path}: has no results yet. Run: {folder.resume_command}")
    whole = read_table(federations, FEDERATIONS, way_out=folder.resume_command)
    devices = DEVICES.empty_table()
    if folder.devices.exists():
        devices = read_table(folder.devices, DEVICES, way_out=folder.resume_command)
    return Results(folder, tables, whole, devices)


def _by_trial(table: pa.Table) -> dict[Trial, pa.Table]:
    """Cut a table, which has every run's lines together, into the runs."""
    if not table.num_rows:
        return {}
    table = table.combine_chunks()
    codes = [table[key].combine_chunks().dictionary_encode() for key in ("panel", "design")]
    numbers = [np.asarray(code.indices) for code in codes] + [table["seed"].to_numpy()]
    change = np.zeros(table.num_rows, dtype=bool)
    for column in numbers:
        change[1:] |= column[1:] != column[:-1]
    starts = [0, *np.flatnonzero(change).tolist()]
    found = {}
    for start, end in zip(starts, [*starts[1:], table.num_rows], strict=True):
        part = table.slice(start, end - start)
        key = Trial(*(part[name][0].as_py() for name in ("panel", "design", "seed")))
        found[key] = part
    return found


log = getLogger(__name__)


@contextmanager
def saying_why(folder: RunFolder) -> Iterator[None]:
    """Turn what stops a run into one sentence; what is nobody's but ours passes through."""
    try:
        yield
    except WriteError as error:
        log.error("stopped: %s", error)
        raise ExperimentError(
            f"{error.place}: the run stopped, and what it had done is kept. Make room, then "
            f"go on with: {folder.resume_command}"
        ) from error
    except SimulationError as error:
        log.error("stopped: %s", error)
        raise ExperimentError(_stopped(folder, str(error))) from error
    except FedcohortError:
        raise
    except Exception as error:
        if _is_out_of_memory(error):
            log.error("stopped: %s", error)
            why = "it needs more memory than there is. Lower cohort_size, batch_size or the model."
            raise ExperimentError(_stopped(folder, why)) from error
        place = place_in(folder.path / "code", error)
        if place is None:
            raise
        log.exception("stopped")
        why = f"{place} raises {type(error).__name__}: {error}. Mend it."
        if folder.has_begun:
            why = f"code/{why} Then: {folder.resume_command}"
        raise ExperimentError(_stopped(folder, why)) from error


def _is_out_of_memory(error: Exception) -> bool:
    """Whether numpy or torch, which has no class of its own on the CPU, wants more memory."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, ValueError))
        and any(each in text for each in ("allocate memory", "out of memory", "array is too big"))
    )


def _stopped(folder: RunFolder, why: str) -> str:
    """Say why a run stopped, and what is left of it."""
    if folder.has_begun:
        return f"{folder.path}: the run stopped, and what it had done is kept: {why}"
    return f"{folder.path}: the run stopped with nothing to keep: {why}"
