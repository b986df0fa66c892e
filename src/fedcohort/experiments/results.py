"""What a run folder holds, read for reports, exports and a resume."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedcohort._display import short_repr
from fedcohort.errors import ExperimentError
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.tables import DEVICES, FEDERATIONS, SCHEMAS, read_table
from fedcohort.experiments.units import PlannedRun


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
        return short_repr(self, folder=str(self.folder.path), runs=len(self.runs), rounds=rounds)

    @cached_property
    def _slices(self) -> dict[str, dict[PlannedRun, pa.Table]]:
        return {name: _by_run(table) for name, table in self.tables.items()}

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs in the experiment's order, without those that try grids."""
        units = [unit for unit in self.folder.units if unit.candidate is None]
        return [run for unit in units for run in unit.runs]

    def of(self, name: str, run: PlannedRun) -> pa.Table:
        """Return a run's part of a table, in the order of rounds."""
        found = self._slices[name].get(run)
        return SCHEMAS[name].empty_table() if found is None else found

    def column(self, name: str, run: PlannedRun, column: str) -> NDArray[np.float64]:
        """Return a column of a run's part as numbers; NaN where there is none."""
        return np.asarray(
            self.of(name, run)[column].to_numpy(zero_copy_only=False), dtype=np.float64
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
    """Read a run folder; what a run has not reached yet is missing from the tables."""
    folder = RunFolder.open(path)
    if not folder.federations.exists():
        raise ExperimentError(f"{path}: has no results yet. Run: {folder.resume_command}")
    read = partial(read_table, way_out=folder.resume_command)
    tables = {}
    for name, schema in SCHEMAS.items():
        units = [each for each in folder.units if each.candidate is None]
        files = [folder.table(each, name) for each in units if folder.has_table(each, name)]
        tables[name] = pa.concat_tables([schema.empty_table(), *(read(f, schema) for f in files)])
    federations = read(folder.federations, FEDERATIONS)
    has_devices = folder.devices.exists()
    devices = read(folder.devices, DEVICES) if has_devices else DEVICES.empty_table()
    return Results(folder, tables, federations, devices)


def _by_run(table: pa.Table) -> dict[PlannedRun, pa.Table]:
    """Cut a table into its runs; the lines of a run stand together."""
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
        key = PlannedRun(*(part[name][0].as_py() for name in ("panel", "design", "seed")))
        found[key] = part
    return found
