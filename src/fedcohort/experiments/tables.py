"""The tables that runs fill, and Parquet files with checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedcohort._whole_file import replace_whole, write_whole
from fedcohort.designs import Design
from fedcohort.errors import ExperimentError
from fedcohort.similarity import GroupTree
from fedcohort.simulation import Devices, FederatedData, History, Intervals
from fedcohort.simulation.engine.evaluation import ClientQuality
from fedcohort.simulation.history import COLUMNS, columns_of

if TYPE_CHECKING:
    from fedcohort.experiments.units import PlannedRun

#: The file beside tables that holds the SHA-256 of each.
SUMS = "checksums.json"
TEXT, WHOLE, NUMBER = pa.string(), pa.int64(), pa.float64()
TYPES = {int: WHOLE, float: NUMBER, bool: pa.bool_()}
RUN = [("panel", TEXT), ("design", TEXT), ("seed", WHOLE)]
CLIENT = ("client", WHOLE)

#: Every table of a unit, with its columns; all begin with the run's.
SCHEMAS: dict[str, pa.Schema] = {
    # One line per run and round; null where nothing was measured, or where the design has no
    # formula for its variance. Costs, failures, divergence and noise floors are null in runs of
    # older versions.
    "rounds": pa.schema([*RUN, *((name, TYPES[kind]) for name, (_, kind) in COLUMNS.items())]),
    # The clients that answered: their counts and weights.
    "cohorts": pa.schema([*RUN, ("round", WHOLE), CLIENT, ("count", WHOLE), ("weight", NUMBER)]),
    # The distribution that holds most of each client, in the rounds where it was noted.
    "rows": pa.schema([*RUN, ("round", WHOLE), CLIENT, ("row", WHOLE)]),
    # Every client after the last round: what the law of the run's next design gives it (bias:
    # its expected weight minus its importance), and the model's loss and accuracy on its own
    # samples. Bias, loss and accuracy are null in runs of older versions.
    "laws": pa.schema(
        [
            *(*RUN, CLIENT, ("inclusion", NUMBER), ("weight_variance", NUMBER)),
            *(("bias", NUMBER), ("loss", NUMBER), ("accuracy", NUMBER)),
        ]
    ),
    # Its tree: merge t makes node n_clients + t; smaller nodes are clients.
    "trees": pa.schema(
        [*RUN, ("merge", WHOLE), ("left", WHOLE), ("right", WHOLE), ("height", NUMBER)]
    ),
}

#: The clients' data: one line per panel, seed, client and class with samples.
FEDERATIONS = pa.schema(
    [("panel", TEXT), ("seed", WHOLE), CLIENT, ("class", WHOLE), ("samples", WHOLE)]
)
#: When a client is there.
WHEN = ("start", "end", "day", "chance")
#: The clients' devices: one line per panel, seed, client and interval of availability.
DEVICES = pa.schema(
    [
        ("panel", TEXT),
        ("seed", WHOLE),
        CLIENT,
        *((name, NUMBER) for name in ("speed", "down", "up")),
        # In simulated seconds, again after every day where there is one; null: always there.
        # The share of rounds in which it is there; null: it does not go by rounds.
        *((name, NUMBER) for name in WHEN),
    ]
)
#: The columns that say what a round cost.
COST = tuple(name for name, (part, _) in COLUMNS.items() if part == "cost")


def history_tables(runs: Sequence[PlannedRun], histories: Sequence[History]) -> dict[str, pa.Table]:
    """Return the tables ``rounds``, ``cohorts`` and ``rows`` of runs, up to their last round."""
    parts: dict[str, list[pa.Table]] = {"rounds": [], "cohorts": [], "rows": []}
    for run, history in zip(runs, histories, strict=True):
        rounds = history.rounds
        numbers = np.array([each.round_ for each in rounds], dtype=np.int64)
        parts["rounds"].append(_table("rounds", run, columns_of(rounds)))
        lengths = [len(each.clients) for each in rounds]
        drawn = {
            "round": np.repeat(numbers, lengths),
            "client": [client for each in rounds for client in each.clients],
            "count": [count for each in rounds for count in each.counts],
            "weight": [weight for each in rounds for weight in each.weights],
        }
        parts["cohorts"].append(_table("cohorts", run, drawn))
        noted = [each for each in rounds if each.rows is not None]
        shared = {
            "round": np.repeat([each.round_ for each in noted], [len(e.rows or ()) for e in noted]),
            "client": [client for each in noted for client in range(len(each.rows or ()))],
            "row": [row for each in noted for row in each.rows or ()],
        }
        parts["rows"].append(_table("rows", run, shared))
    return {name: pa.concat_tables(tables) for name, tables in parts.items()}


def law_tables(
    runs: Sequence[PlannedRun], designs: Sequence[Design], qualities: Sequence[ClientQuality]
) -> dict[str, pa.Table]:
    """Return the tables ``laws`` and ``trees`` of the runs' next designs and final models."""
    laws, trees = [], []
    for run, design, quality in zip(runs, designs, qualities, strict=True):
        n_clients = design.population.n_clients
        columns = {
            "client": np.arange(n_clients),
            "inclusion": design.inclusion_probability(),
            "weight_variance": design.weight_variance(),
            "bias": design.bias(),
            "loss": _or_null(quality.loss),
            "accuracy": _or_null(quality.accuracy),
        }
        laws.append(_table("laws", run, columns))
        # Every design on a tree keeps it and its leaves, a user's own too.
        tree, leaves = getattr(design, "tree", None), getattr(design, "leaves", None)
        whole = tree.whole if isinstance(tree, GroupTree) else None
        if whole is not None and leaves is not None:
            merges, n_leaves = whole.merges, len(leaves)
            names = np.concatenate([leaves, n_clients + np.arange(len(merges))])
            nodes = {
                "merge": np.arange(len(merges)),
                "left": names[merges[:, 0]],
                "right": names[merges[:, 1]],
                "height": whole.heights,
            }
            if n_leaves > 1:
                trees.append(_table("trees", run, nodes))
    empty = SCHEMAS["trees"].empty_table()
    return {"laws": pa.concat_tables(laws), "trees": pa.concat_tables([empty, *trees])}


def _or_null(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values, NUMBER, from_pandas=True)  # NaN becomes null


def federation_table(panel: str, seed: int, data: FederatedData) -> pa.Table:
    """Return the number of samples of each client and class."""
    counts = data.class_counts()
    clients, classes = np.nonzero(counts)
    columns = {"client": clients, "class": classes, "samples": counts[clients, classes]}
    return _filled(FEDERATIONS, {"panel": panel, "seed": seed}, columns)


def device_table(panel: str, seed: int, devices: Devices) -> pa.Table:
    """Return what every client trains on, and when it is there."""
    times = devices.availability
    client = np.arange(devices.n_clients)
    when: dict[str, Any] = {}
    if isinstance(times, Intervals):
        order = np.lexsort((times.start, times.client))
        client = times.client[order]
        days = [times.day] * len(client)
        when = {"start": times.start[order], "end": times.end[order], "day": days}
    elif times is not None:
        when = {"chance": times.mean_chance()}
    when = {name: when.get(name, [None] * len(client)) for name in WHEN}
    rates = {name: getattr(devices, name)[client] for name in ("speed", "down", "up")}
    columns = {"client": client, **rates, **when}
    return _filled(DEVICES, {"panel": panel, "seed": seed}, columns)


def write_table(path: Path, table: pa.Table) -> None:
    """Write CSV or Parquet by the path's suffix; the file is whole or not there.

    In CSV a value that was not measured is empty.
    """
    replace_whole(path, lambda temporary: _write(temporary, table, as_csv=path.suffix == ".csv"))


def _write(path: Path, table: pa.Table, *, as_csv: bool = False) -> None:
    if as_csv:
        pacsv.write_csv(table, path)
    else:
        pq.write_table(table, path, compression="zstd")


def keep_table(path: Path, table: pa.Table) -> None:
    """Write a table of a run folder atomically, and its SHA-256 into ``SUMS``.

    Write the new sum first and keep the last one: if the process dies, one of both fits the file.
    """

    def write(temporary: Path) -> None:
        _write(temporary, table)
        known = _sums(path.parent)
        new = [_sum(temporary), *known.get(path.name, [])[:1]]
        write_whole(path.parent / SUMS, json.dumps({**known, path.name: new}, indent=1).encode())

    replace_whole(path, write)


def read_table(path: Path, schema: pa.Schema, *, way_out: str) -> pa.Table:
    """Read what :func:`keep_table` wrote; refuse a missing or damaged file."""
    try:
        return _read(path, schema)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ExperimentError(
            f"{path}: is damaged or missing ({reason}). Run: {way_out}"
        ) from error


def is_whole(path: Path) -> bool:
    """Whether a table is there, as it was written, and can be read to its end."""
    try:
        _read(path)
    except (OSError, pa.ArrowException):
        return False
    return True


def was_written(path: Path) -> bool:
    """Whether ``SUMS`` names a table, which may be missing."""
    return path.name in _sums(path.parent)


def _read(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Read a table and check its sum; folders of older versions have no sums."""
    if not path.is_file():
        raise OSError("there is no such file")
    has_sums = (path.parent / SUMS).exists()
    if has_sums and _sum(path) not in _sums(path.parent).get(path.name, []):
        raise OSError(f"it is not as it was written: see {SUMS}")
    return pq.read_table(path, schema=schema, partitioning=None)


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _sums(folder: Path) -> dict[str, list[str]]:
    """Return the sums of the tables in a folder; none if they cannot be read."""
    try:
        found = json.loads((folder / SUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    lists = isinstance(found, dict) and all(isinstance(each, list) for each in found.values())
    return found if lists else {}


def _table(name: str, run: PlannedRun, columns: Mapping[str, Any]) -> pa.Table:
    return _filled(SCHEMAS[name], asdict(run), columns)


def _filled(schema: pa.Schema, same: Mapping[str, Any], columns: Mapping[str, Any]) -> pa.Table:
    """Return a table of these columns, and of values that are the same in every line."""
    n = len(columns[schema.names[-1]])
    whole = {**{name: [value] * n for name, value in same.items()}, **columns}
    arrays = [pa.array(whole[each.name], each.type, from_pandas=False) for each in schema]
    return pa.table(arrays, schema=schema)
