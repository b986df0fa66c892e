"""Merging run folders of one experiment into one, with the source of every unit."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fedcohort._whole_file import make_folder, reason_of, write_whole
from fedcohort.errors import ExperimentError, WriteError
from fedcohort.experiments.merge_plan import (
    Piece,
    check_choices,
    check_gaps,
    merged_clients,
    merged_experiment,
    run_pieces,
    trial_pieces,
)
from fedcohort.experiments.results import Results, read_results
from fedcohort.experiments.run_folder import HEAD, SCHEMA, RunFolder, check_new
from fedcohort.experiments.settings import Experiment
from fedcohort.experiments.tables import SCHEMAS, SUMS, keep_table, read_table
from fedcohort.experiments.units import PlannedRun, Unit

#: Folders that keep a user's own files, and files of a unit that are copied beside its tables.
OWN_FILES, OF_UNIT = ("code", "devices"), (SUMS, "diverged.txt")
#: What the head of a run folder says of where its units were computed.
PROVENANCE = ("created", "command", "file", "versions", "machine")


def merge_runs(
    paths: Sequence[Path], out: Path, *, command: Sequence[str] = ()
) -> tuple[RunFolder, list[str]]:
    """Merge complete run folders of one experiment into a new folder.

    Parameters
    ----------
    paths
        Two or more run folders that differ in seeds, panels, designs or machines.
    out
        The new folder. It appears whole, or not at all.
    command
        What the folder says that it was made by.

    Returns
    -------
    RunFolder, list of str
        The new folder, and what differs between the sources without changing the experiment:
        versions and machines.

    Raises
    ------
    ExperimentError
        If a folder is not complete, if the configurations differ in what they share, if a run is
        in two folders with different results, or if runs are missing.
    """
    parts = [_complete(path) for path in _distinct(paths)]
    try:
        check_new(out)
    except OSError as error:
        raise ExperimentError(f"{out}: cannot be used ({reason_of(error)}).") from error
    experiment = merged_experiment(parts)
    check_choices(parts, experiment)
    runs = run_pieces(parts, experiment)
    check_gaps(parts, experiment, {run for piece in runs for run in piece.runs})
    pieces = [*trial_pieces(parts, experiment), *runs]
    _check_own_files(parts)
    clients = {name: merged_clients(parts, name, experiment) for name in ("federations", "devices")}
    head = _head(parts, experiment, pieces, command)
    folder = RunFolder(out, head)
    _write(folder, parts, pieces, clients)
    return folder, list(_notes(parts))


def worded_sources(folder: RunFolder) -> list[str]:
    """Describe where the units of a merged folder were computed, a line for each source."""
    lines = []
    for number, source in enumerate(folder.head.get("sources", [])):
        units = [str(unit.number) for unit in folder.units if unit.source == number]
        facts = {**source["machine"], **source["versions"]}
        told = ", ".join(f"{key} {value}" for key, value in facts.items())
        lines.append(
            f"{source['folder']}: units {', '.join(units) or 'none'}; {source['created']}; "
            f"{source['command']}; {told}"
        )
    return lines


def _distinct(paths: Sequence[Path]) -> list[Path]:
    """Refuse fewer than two folders, and a folder that is given twice."""
    resolved = [path.resolve() for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise ExperimentError(f"merge: {path} is given twice. Name every folder once.")
    if len(paths) < 2:
        raise ExperimentError(f"merge: needs at least two run folders; got {len(paths)}. Add more.")
    return list(paths)


def _complete(path: Path) -> Results:
    """Read a run folder; refuse it unless all its runs are done."""
    folder = RunFolder.open(path)
    state = folder.progress().state
    if state != "complete":
        raise ExperimentError(
            f"{path}: must be complete to be merged; it is {state}. Run: {folder.resume_command}"
        )
    return read_results(path)


def _check_own_files(parts: Sequence[Results]) -> None:
    """Refuse a file of the user's own that differs between parts."""
    known: dict[Path, Path] = {}
    for place, path in _own_files(parts):
        first = known.setdefault(place, path)
        if first.read_bytes() != path.read_bytes():
            raise ExperimentError(
                f"{path}: differs from {first}. Merge runs of the same code and device files."
            )


def _own_files(parts: Sequence[Results]) -> Iterator[tuple[Path, Path]]:
    """Yield the user's own files that run folders keep, each with its place in the folder."""
    for part in parts:
        for own in OWN_FILES:
            for path in sorted((part.folder.path / own).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path.relative_to(part.folder.path), path


def _head(
    parts: Sequence[Results],
    experiment: Experiment,
    pieces: Sequence[Piece],
    command: Sequence[str],
) -> dict[str, Any]:
    """Return the head of the merged folder: every unit names its source."""
    sources: list[dict[str, Any]] = []
    first = {}
    for part in parts:
        first[id(part)] = len(sources)
        sources += part.folder.head.get("sources") or [_source(part.folder)]
    units = [
        Unit(number, piece.runs, piece.unit.candidate, first[id(piece.results)] + _own(piece.unit))
        for number, piece in enumerate(pieces)
    ]
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "file": sources[0]["file"],
        "versions": _joined(sources, "versions"),
        "machine": _joined(sources, "machine"),
        "experiment": experiment.as_dict(),
        "units": [unit.as_dict() for unit in units],
        "sources": sources,
    }


def _own(unit: Unit) -> int:
    """Return the number of a unit's source among those of its folder."""
    return 0 if unit.source is None else unit.source


def _source(folder: RunFolder) -> dict[str, Any]:
    told = {key: folder.head.get(key, "") for key in PROVENANCE}
    return {"folder": str(folder.path), **told}


def _joined(sources: Sequence[Mapping[str, Any]], key: str) -> dict[str, str]:
    """Return all values of all sources by name."""
    names = dict.fromkeys(name for source in sources for name in source[key])
    return {
        name: ", ".join(dict.fromkeys(s[key][name] for s in sources if name in s[key]))
        for name in names
    }


def _notes(parts: Sequence[Results]) -> Iterator[str]:
    """Name what differs between the sources without changing the experiment."""
    for key in ("versions", "machine"):
        heads = [(part.folder.path, part.folder.head.get(key, {})) for part in parts]
        for name in dict.fromkeys(name for _, values in heads for name in values):
            found = {path: values.get(name, "none") for path, values in heads}
            if len(set(found.values())) > 1:
                told = "; ".join(f"{value} in {path}" for path, value in found.items())
                yield f"{name} differs: {told}"
    files = [part.folder.path / "experiment.toml" for part in parts]
    texts = [file.read_bytes() if file.is_file() else b"" for file in files]
    for file, text in zip(files[1:], texts[1:], strict=True):
        if text != texts[0]:
            yield f"{file} differs from {files[0]}, which is kept"


def _write(
    folder: RunFolder,
    parts: Sequence[Results],
    pieces: Sequence[Piece],
    clients: Mapping[str, pa.Table],
) -> None:
    """Write everything beside the folder, then give it its name."""
    path = folder.path
    temporary = path.with_name(f".{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    try:
        make_folder(temporary / "units")
        made = RunFolder(temporary, folder.head)
        for unit, piece in zip(made.units, pieces, strict=True):
            _write_unit(made.unit_folder(unit), piece)
        keep_table(made.federations, clients["federations"])
        if made.has_devices:
            keep_table(made.devices, clients["devices"])
        _write_files(temporary, parts)
        write_whole(temporary / HEAD, json.dumps(folder.head, indent=1).encode())
        if path.exists():
            path.rmdir()
        temporary.rename(path)
    except (OSError, WriteError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise ExperimentError(
            f"{path}: cannot be written ({reason}). Choose another folder with --out."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_files(target: Path, parts: Sequence[Results]) -> None:
    """Copy the experiment file and the user's own files, and join the logs."""
    given = parts[0].folder.path / "experiment.toml"
    for place, path in [(Path(given.name), given), *_own_files(parts)]:
        if path.is_file():
            make_folder((target / place).parent)
            shutil.copyfile(path, target / place)
    logs = [part.folder.path / "log.txt" for part in parts]
    texts = [f"{log}:\n{log.read_text(errors='replace')}" for log in logs if log.is_file()]
    write_whole(target / "log.txt", "".join(texts).encode())


def _write_unit(target: Path, piece: Piece) -> None:
    """Copy a unit's tables; if only some of its runs are taken, their part of each table."""
    folder, unit = piece.results.folder, piece.unit
    make_folder(target)
    whole = piece.runs == unit.runs
    for name in SCHEMAS:
        source = folder.table(unit, name)
        if source.is_file() and whole:
            shutil.copyfile(source, target / source.name)
        elif source.is_file():
            table = read_table(source, SCHEMAS[name], way_out=folder.resume_command)
            keep_table(target / source.name, table.filter(_is_one_of(piece.runs)))
    for name in OF_UNIT:
        source = folder.unit_folder(unit) / name
        if source.is_file() and (whole or name != SUMS):
            shutil.copyfile(source, target / name)


def _is_one_of(runs: Iterable[PlannedRun]) -> pc.Expression:
    """Return the condition that a line is of one of these runs."""
    each = (
        (pc.field("panel") == run.panel)
        & (pc.field("design") == run.design)
        & (pc.field("seed") == run.seed)
        for run in runs
    )
    return reduce(or_, each)
