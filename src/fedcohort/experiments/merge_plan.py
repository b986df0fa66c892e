"""What a merged run folder holds: the experiment of all parts, and every run once."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from fedcohort.errors import ExperimentError
from fedcohort.experiments.experiment_file import read_experiment
from fedcohort.experiments.results import Results
from fedcohort.experiments.settings import Experiment, Panel
from fedcohort.experiments.tables import SCHEMAS
from fedcohort.experiments.training_settings import Rates
from fedcohort.experiments.tuning import chosen_rates, worded_rates
from fedcohort.experiments.units import (
    PlannedRun,
    Unit,
    all_runs,
    baseline_of,
    tuned_designs,
)

#: Columns that differ between two runs that compute the same.
TIMES = ("draw_seconds", "train_seconds", "measure_seconds")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of a source folder, and those of its runs that are taken."""

    results: Results
    unit: Unit
    runs: tuple[PlannedRun, ...]


def merged_experiment(parts: Sequence[Results]) -> Experiment:
    """Return the experiment of all parts; refuse different values in what they share."""
    first = parts[0]
    for other in parts[1:]:
        _check_same(first, other, "", *(_shared(each.folder.experiment) for each in (first, other)))
    order = _order(parts)
    labels = _ordered((p.label for e in order for p in e.panels), _labels(parts))
    panels = [_merged_panel(parts, order, label) for label in labels]
    return replace(first.folder.experiment, panels=panels)


def _shared(experiment: Experiment) -> dict[str, Any]:
    return experiment.as_dict("panels")


def _labels(parts: Sequence[Results]) -> list[str]:
    return [panel.label for part in parts for panel in part.folder.experiment.panels]


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
    """Return each value of ``found`` once, in the order of ``order`` where it is there."""
    first = [value for value in dict.fromkeys(order) if value in found]
    return list(dict.fromkeys([*first, *found]))


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
    return next(p.tuning_seed for p in panels if judge in (entry.label for entry in p.design))


def _panels(parts: Sequence[Results]) -> Iterator[tuple[Results, Panel]]:
    for part in parts:
        for panel in part.folder.experiment.panels:
            yield part, panel


def _check_same(
    first: Results, other: Results, place: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    """Refuse another configuration, and name the first difference."""
    here, there = dict(_leaves(one)), dict(_leaves(two))
    differ = [key for key in {**here, **there} if here.get(key) != there.get(key)]
    if differ:
        more = f" ({len(differ) - 1} more differ)" if len(differ) > 1 else ""
        raise ExperimentError(
            f"{other.folder.path}: is another experiment than {first.folder.path}: {place}"
            f"{differ[0]} is {there.get(differ[0])!r}, and there {here.get(differ[0])!r}{more}. "
            f"Merge runs of one experiment file."
        )


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its dotted key."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield before + key, value


def check_choices(parts: Sequence[Results], experiment: Experiment) -> None:
    """Refuse different choices from one grid."""
    chosen: dict[tuple[str, str], tuple[Results, str]] = {}
    for part, own in _panels(parts):
        panel = experiment.panel(own.label)
        for entry in own.design if panel.is_grid else []:
            text = worded_rates(panel, chosen_rates(part.folder, own, entry.label))
            key = (own.label, entry.label if panel.tune == "each" else "")
            first, known = chosen.setdefault(key, (part, text))
            if text != known:
                raise ExperimentError(
                    f"{part.folder.path}: panel {own.label!r}, design {entry.label!r}: {text} was "
                    f"chosen from the grid, but {known} in {first.folder.path}. Give all parts one "
                    f"value with --set, or one tune_seed, and run them again."
                )


def trial_pieces(parts: Sequence[Results], experiment: Experiment) -> list[Piece]:
    """Return the units that tried the grids, each trial once, in the experiment's order."""
    wanted = {
        PlannedRun(panel.label, entry.label, panel.tuning_seed)
        for panel in experiment.panels
        for entry in tuned_designs(panel)
    }
    places = {panel.label: place for place, panel in enumerate(experiment.panels)}
    found: list[tuple[tuple[int, int], Piece]] = []
    seen: set[tuple[PlannedRun, Rates]] = set()
    for part in parts:
        for unit in part.folder.units:
            point = unit.candidate
            if point is None:
                continue
            runs = [run for run in unit.runs if run in wanted and (run, point) not in seen]
            seen |= {(run, point) for run in runs}
            if runs:
                panel = experiment.panel(runs[0].panel)
                grid = list(
                    dict.fromkeys(p for e in panel.design for p in panel.candidates(e.label))
                )
                place = places[panel.label], grid.index(point)
                found.append((place, Piece(part, unit, tuple(runs))))
    return [piece for _, piece in sorted(found, key=lambda pair: pair[0])]


def run_pieces(parts: Sequence[Results], experiment: Experiment) -> list[Piece]:
    """Return the units of runs, each run once, in the experiment's order."""
    places = {run: place for place, run in enumerate(all_runs(experiment))}
    pieces: list[Piece] = []
    homes: dict[PlannedRun, Results] = {}
    for part in parts:
        for unit in part.folder.units:
            if unit.candidate is not None:
                continue
            for run in unit.runs:
                _check_equal(homes.get(run, part), part, run)
            new = tuple(run for run in unit.runs if run not in homes)
            homes |= dict.fromkeys(new, part)
            pieces += [Piece(part, unit, new)] if new else []
    return sorted(pieces, key=lambda piece: places[piece.runs[0]])


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


def check_gaps(parts: Sequence[Results], experiment: Experiment, found: set[PlannedRun]) -> None:
    """Refuse parts without a run for every design and seed of a panel."""
    missing = [run for run in all_runs(experiment) if run not in found]
    if missing:
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


def merged_clients(parts: Sequence[Results], name: str, experiment: Experiment) -> pa.Table:
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
