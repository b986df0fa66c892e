"""Tiny experiments, run in this process or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: Ten clients with a digit each.
DATA = """
[data]
dataset = "digits"
partition = "one-class"
clients_per_class = 1
train_size = 20
test_size = 5
"""
TRAINING = """
[training]
steps = 2
batch_size = 10
lr = 0.1
"""
#: One unit of two designs and two seeds.
SMALL = f"""
rounds = 6
seeds = [0, 1]
cohort_size = 3
checkpoint_every = 2
{DATA}{TRAINING}
[[design]]
recipe = "multinomial"

[[design]]
recipe = "similarity"
"""
#: The same in two units, since they train differently.
TWO_UNITS = f"""{SMALL}
[[panel]]
label = "slow"
training.lr = 0.01

[[panel]]
label = "fast"
rounds = 5
"""
TIMES = ("draw_seconds", "train_seconds", "measure_seconds")


def emptied(table: pa.Table, *names: str) -> pa.Table:
    """Return a table as an older version wrote it, read today: nothing in these columns."""
    import pyarrow as pa

    for name in names:
        nothing = pa.nulls(table.num_rows, table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), name, nothing)
    return table


def write(folder: Path, text: str = SMALL, name: str = "small.toml") -> Path:
    """Write an experiment file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def make_folder(folder: Path, text: str = SMALL, *, name: str = "small") -> Path:
    """Make the run folder of an experiment, of which nothing has run."""
    from fedcohort.experiments import RunFolder, read_experiment

    file = write(folder, text, f"{name}.toml")
    experiment = read_experiment(file)
    made = RunFolder.create(
        folder / "run", experiment, source=file, device="cpu", command=["fedcohort", "run"]
    )
    return made.path


def go_on(path: Path, *, rounds: int | None = None) -> None:
    """Execute a run folder; stop it after so many rounds."""
    from fedcohort.experiments import Observer, RunFolder, execute

    class Stopping(Observer):
        done = 0

        def advanced(self, work: int, text: str, worker: int) -> None:
            self.done += 1

        def should_stop(self) -> bool:
            return rounds is not None and self.done >= rounds

    try:
        execute(RunFolder.open(path), observer=Stopping())
    except KeyboardInterrupt:
        if rounds is None:
            raise


def small_run(
    folder: Path, text: str = SMALL, *, rounds: int | None = None, name: str = "small"
) -> Path:
    """Run an experiment, whole or only its first rounds."""
    path = make_folder(folder, text, name=name)
    go_on(path, rounds=rounds)
    return path


def tables(path: Path) -> dict[str, pa.Table]:
    """Read every table of a run folder by its place in it, times left out."""
    import pyarrow.parquet as pq

    found = {}
    for file in sorted(path.rglob("*.parquet")):
        table = pq.read_table(file, partitioning=None)
        kept = [name for name in table.column_names if name not in TIMES]
        found[str(file.relative_to(path))] = table.select(kept)
    return found


def whole_folder(path: Path) -> dict[str, object]:
    """Return what every file of a run folder holds; of times, machine and log only their place."""
    found: dict[str, object] = {**contents(path), **tables(path)}
    for name in [each for each in found if each.endswith(("log.txt", "checksums.json"))]:
        found[name] = "there"
    head = json.loads((path / "run.json").read_text())
    kept = ("schema", "experiment", "units")
    units = [{k: v for k, v in unit.items() if k != "source"} for unit in head["units"]]
    found["run.json"] = {**{key: head[key] for key in kept}, "units": units}
    found.pop("lock", None)  # a merged folder has none
    return found


def without_times(path: Path) -> dict[str, pa.Table]:
    """Return all tables of a run folder, its units together."""
    from fedcohort.experiments import read_results

    results = read_results(path)
    tables = {**results.tables, "federations": results.federations}
    return {
        name: table.select([each for each in table.column_names if each not in TIMES])
        for name, table in tables.items()
    }


def contents(path: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def truncate(path: Path) -> None:
    """Leave the first half of a file, as a copy that broke off does."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start ``fedcohort`` as a process of its own, both outputs in pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedcohort", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
    )
