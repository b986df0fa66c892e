"""Merge run folders of one experiment into one: every run once, with the source of its unit."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fedcohort._arguments import brief, checked_path, is_list
from fedcohort._whole_file import make_folder, reason_of, write_whole
from fedcohort.errors import ExperimentError
from fedcohort.experiments.checked_table import checked_texts
from fedcohort.experiments.experiment_file import leaves, read_experiment
from fedcohort.experiments.results import Results, read_results
from fedcohort.experiments.run_folder import HEAD, SCHEMA, RunFolder, check_new, new_folder
from fedcohort.experiments.settings import Experiment, Panel, Rates
from fedcohort.experiments.tables import SCHEMAS, keep_table, read_table
from fedcohort.experiments.tuning import chosen_rates, worded_rates
from fedcohort.experiments.units import PlannedRun, Unit, all_runs, all_trials, baseline_of

#: Folders that keep a user's own files.
OWN_FILES = ("code", "devices")
#: Keys in the head of a run folder that describe where its units were computed.
PROVENANCE = ("created", "command", "file", "versions", "machine")

#: Columns that differ between two runs that compute the same.
TIMES = ("draw_seconds", "train_seconds", "measure_seconds")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of a source folder, and those of its runs that are taken."""

    results: Results
    unit: Unit
    runs: tuple[PlannedRun, ...]


def merge_runs(
    paths: Sequence[str | Path], out: str | Path, *, command: Sequence[str] = ()
) -> tuple[RunFolder, list[str]]:
    """Merge complete run folders of one experiment into a new folder.

    Parameters
    ----------
    paths
        Run folders that differ in seeds, panels, designs, parts or machines.
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
    command = checked_texts("merge", "command", command, "sys.argv")
    out = checked_path("merge", "out", out, error=ExperimentError)
    parts = [_complete(path) for path in _distinct(paths)]
    try:
        check_new(out)
    except OSError as error:
        raise ExperimentError(f"{out}: cannot be used ({reason_of(error)}).") from error
    experiment = _merged_experiment(parts)
    _check_choices(parts, experiment)
    pieces = _pieces(parts, experiment)
    _check_gaps(parts, experiment, pieces)
    _check_own_files(parts)
    clients = {
        name: _merged_clients(parts, name, experiment) for name in ("federations", "devices")
    }
    head = _head(parts, experiment, pieces, out, command)
    folder = RunFolder(out, head)
    _write(folder, parts, pieces, clients)
    return folder, list(_notes(parts))


def _distinct(paths: object) -> list[Path]:
    """Refuse no folders, and a folder that is given twice."""
    if not is_list(paths):
        raise ExperimentError(f"merge: needs a list of run folders; got {brief(paths)}. Pass one.")
    found = [checked_path("merge", "paths", path, error=ExperimentError) for path in paths]
    resolved = [path.resolve() for path in found]
    for path, real in zip(found, resolved, strict=True):
        if resolved.count(real) > 1:
            raise ExperimentError(f"merge: {path} is given twice. Name every folder once.")
    if not found:
        raise ExperimentError("merge: needs run folders; got none. Name the parts of a run.")
    return found


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
    out: Path,
    command: Sequence[str],
) -> dict[str, Any]:
    """Return the head of the merged folder: every unit names its source."""
    sources: list[dict[str, Any]] = []
    first = {}
    for part in parts:
        first[id(part)] = len(sources)
        head, folder = part.folder.head, str(part.folder.path)
        told = {key: head.get(key, "") for key in PROVENANCE}
        sources += head.get("sources") or [{"folder": folder, **told}]
    units = [
        Unit.planned(
            number,
            piece.runs,
            experiment,
            out,
            candidate=piece.unit.candidate,
            source=first[id(piece.results)] + (piece.unit.source or 0),
        )
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
    """Write the merged folder; it appears whole, or not at all."""
    with new_folder(folder.path) as temporary:
        make_folder(temporary / "units")
        made = RunFolder(temporary, folder.head)
        for unit, piece in zip(made.units, pieces, strict=True):
            _write_unit(unit, piece)
        keep_table(made.federations, clients["federations"])
        if made.has_devices:
            keep_table(made.devices, clients["devices"])
        _write_files(temporary, parts)
        write_whole(temporary / HEAD, json.dumps(folder.head, indent=1).encode())


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


def _write_unit(target: Unit, piece: Piece) -> None:
    """Copy a unit's tables; if only some of its runs are taken, their part of each table."""
    unit = piece.unit
    if piece.runs == unit.runs:
        target.copy(unit)
        return
    target.begin()
    if unit.ended("diverged"):
        shutil.copyfile(unit.record("diverged"), target.record("diverged"))
    for name, schema in SCHEMAS.items():
        source = unit.table(name)
        if source.is_file():
            table = read_table(source, schema, way_out=piece.results.folder.resume_command)
            keep_table(target.table(name), table.filter(_is_one_of(piece.runs)))


def _is_one_of(runs: Iterable[PlannedRun]) -> pc.Expression:
    """Return the condition that a line is of one of these runs."""
    each = (
        (pc.field("panel") == run.panel)
        & (pc.field("design") == run.design)
        & (pc.field("seed") == run.seed)
        for run in runs
    )
    return reduce(or_, each)


def _merged_experiment(parts: Sequence[Results]) -> Experiment:
    """Return the experiment of all parts; refuse different values in what they share."""
    first = parts[0]
    for other in parts[1:]:
        both = (each.folder.experiment.as_dict("panels") for each in (first, other))
        _check_same(first, other, "", *both)
    order = _order(parts)
    own = [panel.label for _, panel in _panels(parts)]
    labels = _ordered((panel.label for each in order for panel in each.panels), own)
    panels = [_merged_panel(parts, order, label) for label in labels]
    return replace(first.folder.experiment, panels=panels)


def _order(parts: Sequence[Results]) -> list[Experiment]:
    """Return experiments in whose order panels, designs and seeds appear: first the file's."""
    own = [part.folder.experiment for part in parts]
    with suppress(ExperimentError):
        given = read_experiment(parts[0].folder.path / "experiment.toml")
        if len(given.panels) == 1:  # without a label it is named after the file, here a copy
            given = replace(given, panels=[replace(given.panels[0], label=own[0].panels[0].label)])
        return [given, *own]
    return own


def _ordered(order: Iterable[T], found: Sequence[T]) -> list[T]:
    """Return each value of ``found`` once, in the order of ``order``, which has all of them."""
    return [value for value in dict.fromkeys(order) if value in found]


def _merged_panel(parts: Sequence[Results], order: Sequence[Experiment], label: str) -> Panel:
    """Return a panel with the designs and seeds of all parts that have it."""
    homes = [(part, panel) for part, panel in _panels(parts) if panel.label == label]
    first, panel = homes[0]
    designs = {entry.label: (first, entry) for entry in panel.design}
    # The baseline may have tried its grid with another seed: its choices are compared instead.
    own = ("seeds", "design", *(["tune_seed"] if panel.tune == "baseline" else []))
    for part, other in homes[1:]:
        where = f"panel {label!r}: "
        _check_same(first, part, where, *(e.as_dict(*own) for e in (panel, other)))
        for entry in other.design:
            home, known = designs.setdefault(entry.label, (part, entry))
            place = f"{where}design {entry.label!r}: "
            _check_same(home, part, place, known.as_dict(), entry.as_dict())
    given = [each for e in order for each in e.panels if each.label == label]
    names = _ordered((entry.label for each in given for entry in each.design), list(designs))
    seeds = [seed for _, each in homes for seed in each.seeds]
    try:
        merged = replace(
            panel,
            seeds=_ordered((seed for each in given for seed in each.seeds), seeds),
            design=[designs[name][1] for name in names],
        )
    except ExperimentError as error:  # the seed that tuned one part is a seed of another
        raise ExperimentError(f"merge: panel {label!r}: {error}") from error
    return replace(merged, tune_seed=_tuning_seed([each for _, each in homes], merged))


def _tuning_seed(panels: Sequence[Panel], merged: Panel) -> int | None:
    """Return the seed that tried the grid; by default it depends on the seeds of a part."""
    if not merged.is_grid or not merged.design or merged.tune == "each":
        return merged.tune_seed
    judge = baseline_of(merged)
    seed = next(p.tuning_seed for p in panels if judge in (entry.label for entry in p.design))
    return merged.tune_seed if seed == merged.tuning_seed else seed


def _panels(parts: Sequence[Results]) -> Iterator[tuple[Results, Panel]]:
    for part in parts:
        for panel in part.folder.experiment.panels:
            yield part, panel


def _check_same(
    first: Results, other: Results, place: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    """Refuse another configuration, and name the first difference."""
    here, there = ({".".join(keys): value for keys, value in leaves(each)} for each in (one, two))
    differ = [key for key in {**here, **there} if here.get(key) != there.get(key)]
    if differ:
        more = f" ({len(differ) - 1} more differ)" if len(differ) > 1 else ""
        raise ExperimentError(
            f"{other.folder.path}: is another experiment than {first.folder.path}: {place}"
            f"{differ[0]} is {there.get(differ[0])!r}, and there {here.get(differ[0])!r}{more}. "
            f"Merge runs of one experiment file."
        )


def _check_choices(parts: Sequence[Results], experiment: Experiment) -> None:
    """Refuse different choices from one grid."""
    chosen: dict[tuple[str, str], tuple[Results, str]] = {}
    for part, own in _panels(parts):
        panel = experiment.panel(own.label)
        ran = {run.design for run in part.runs if run.panel == own.label}  # a share has a few
        for entry in (each for each in own.design if panel.is_grid and each.label in ran):
            text = worded_rates(panel, chosen_rates(part.folder, own, entry.label))
            key = (own.label, entry.label if panel.tune == "each" else "")
            first, known = chosen.setdefault(key, (part, text))
            if text != known:
                raise ExperimentError(
                    f"{part.folder.path}: panel {own.label!r}, design {entry.label!r}: {text} was "
                    f"chosen from the grid, but {known} in {first.folder.path}. Give all parts one "
                    f"value with --set, or one tune_seed, and run them again."
                )


def _pieces(parts: Sequence[Results], experiment: Experiment) -> list[Piece]:
    """Return the units, each trial and each run once, in the experiment's order."""
    planned = [*all_trials(experiment), *((run, None) for run in all_runs(experiment))]
    places = {key: place for place, key in enumerate(planned)}
    found: dict[int, Piece] = {}
    homes: dict[tuple[PlannedRun, Rates | None], Results] = {}
    for part in parts:
        for unit in part.folder.units:
            keys = [key for run in unit.runs if (key := (run, unit.candidate)) in places]
            if unit.candidate is None:
                for key in keys:
                    _check_equal(homes.get(key, part), part, key[0])
            if new := [key for key in keys if key not in homes]:
                homes |= dict.fromkeys(new, part)
                found[places[new[0]]] = Piece(part, unit, tuple(run for run, _ in new))
    return [found[place] for place in sorted(found)]


def _check_equal(first: Results, other: Results, run: PlannedRun) -> None:
    """Refuse a run that is in two folders, unless it is the same bit for bit."""
    if first is other:
        return
    for name in SCHEMAS:
        one, two = (each.of(name, run) for each in (first, other))
        kept = [column for column in one.column_names if column not in TIMES]
        if not one.select(kept).equals(two.select(kept)):
            raise ExperimentError(
                f"{other.folder.path}: panel {run.panel!r}, design {run.design!r}, seed {run.seed} "
                f"is also in {first.folder.path}, with other {name}. Leave one of the folders out, "
                f"or run one of them again without it."
            )


def _check_gaps(parts: Sequence[Results], experiment: Experiment, pieces: Sequence[Piece]) -> None:
    """Refuse parts without a run for every design and seed of a panel."""
    found = {run for piece in pieces if piece.unit.candidate is None for run in piece.runs}
    missing = [run for run in all_runs(experiment) if run not in found]
    if missing:
        of = {part.folder.part.of for part in parts if part.folder.part is not None}
        held = [each.folder.part for each in parts]
        if len(of) == 1 and None not in held:
            (n,) = of
            there = {each.number for each in held if each and not each.only_trials}
            numbers = ", ".join(str(k) for k in range(1, n + 1) if k not in there)
            raise ExperimentError(
                f"merge: of {n} parts, these are missing: {numbers}. Run each with --part K/{n}, "
                f"and merge its folder too."
            )
        run = missing[0]
        seeds = [e.seed for e in missing if (e.panel, e.design) == (run.panel, run.design)]
        options = {"panels": run.panel, "designs": run.design, "seeds": ",".join(map(str, seeds))}
        given = [text for key, value in options.items() for text in (f"--{key}", value)]
        file = str(parts[0].folder.head.get("file", "FILE.toml"))
        plural = "seed" if len(seeds) == 1 else "seeds"
        more = "" if len(missing) == len(seeds) else f", and {len(missing) - len(seeds)} more runs"
        raise ExperimentError(
            f"merge: panel {run.panel!r} has no design {run.design!r} with {plural} "
            f"{options['seeds']}{more}. Run what is missing and merge its folder too: "
            f"{shlex.join(['fedcohort', 'run', file, *given])} --out DIR"
        )


def _merged_clients(parts: Sequence[Results], name: str, experiment: Experiment) -> pa.Table:
    """Return what clients hold or train on; refuse parts that differ for a panel and seed."""
    found: dict[tuple[str, int], tuple[Results, pa.Table]] = {}
    for part, panel in _panels(parts):
        table: pa.Table = getattr(part, name)
        for seed in panel.seeds:
            own = table.filter((pc.field("panel") == panel.label) & (pc.field("seed") == seed))
            first, known = found.setdefault((panel.label, seed), (part, own))
            if not known.equals(own):
                raise ExperimentError(
                    f"{part.folder.path}: panel {panel.label!r}, seed {seed}: its {name} differ "
                    f"from those of {first.folder.path}. Use the same data set on all machines."
                )
    empty = getattr(parts[0], name).schema.empty_table()
    keys = [(panel.label, seed) for panel in experiment.panels for seed in panel.seeds]
    return pa.concat_tables([empty, *(found[key][1] for key in keys)])
