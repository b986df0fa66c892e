"""Results of a run folder: its tables, and summaries of its designs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedcohort._arguments import as_whole, brief, checked_choice, checked_kind
from fedcohort._display import short_repr
from fedcohort.errors import ExperimentError
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.settings import Experiment, Panel
from fedcohort.experiments.tables import DEVICES, FEDERATIONS, SCHEMAS, read_table
from fedcohort.experiments.units import PlannedRun, all_runs, baseline_of

#: Final values are means over the last rounds: 50, as in the paper, or a quarter of shorter runs.
WINDOW = 50
#: Curves are exponential means. Their half-life, in rounds, is this part of the window.
HALF_LIFE = 1 / 10
CONFIDENCE = 0.95

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Results:
    """The tables of a run folder, all units together (those that try grids left out).

    Attributes
    ----------
    tables
        ``rounds``, ``cohorts``, ``rows``, ``laws``, ``trees``: see ``tables.SCHEMAS``.
    federations, devices
        Who holds what (``tables.FEDERATIONS``), and what clients train on (``tables.DEVICES``;
        empty where all are equal).
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
        known = {run for unit in units for run in unit.runs}
        return [run for run in all_runs(self.folder.experiment) if run in known]

    def of(self, name: str, run: PlannedRun) -> pa.Table:
        """Return a run's part of a table, in the order of rounds."""
        error = ExperimentError
        checked_choice("Results", "name", name, self._slices, error=error)
        way_out = "Pass one of results.runs."
        checked_kind("Results", "run", run, PlannedRun, way_out=way_out, error=error)
        found = self._slices[name].get(run)
        return SCHEMAS[name].empty_table() if found is None else found

    def column(self, name: str, run: PlannedRun, column: str) -> Numbers:
        """Return a column of a run's part as numbers; NaN if missing."""
        table = self.of(name, run)
        checked_choice("Results", "column", column, table.column_names, error=ExperimentError)
        found = table[column].to_numpy(zero_copy_only=False)
        return np.asarray(found, dtype=np.float64)

    def class_counts(self, panel: str, seed: int) -> NDArray[np.int64]:
        """Return the samples of every client and class, shape (n_clients, n_classes)."""
        own = self.folder.experiment.panel(panel)
        if as_whole(seed) not in own.seeds:
            raise ExperimentError(
                f"Results: seed must be one of the panel's, {own.seeds[0]} to {own.seeds[-1]}; got "
                f"{brief(seed)}. See experiment.panels."
            )
        table = self.federations
        here = table.filter((pc.field("panel") == panel) & (pc.field("seed") == seed))
        clients, classes, samples = (here[name].to_numpy() for name in table.column_names[2:])
        counts = np.zeros((clients.max(initial=-1) + 1, classes.max(initial=-1) + 1), np.int64)
        counts[clients, classes] = samples
        return counts


def read_results(path: str | Path) -> Results:
    """Read a run folder; what a run has not reached yet is missing from the tables."""
    folder = RunFolder.open(path)
    if not folder.federations.exists():
        raise ExperimentError(f"{path}: has no results yet. Run: {folder.resume_command}")
    read = partial(read_table, way_out=folder.resume_command)
    tables = {}
    units = [each for each in folder.units if each.candidate is None]
    for name, schema in SCHEMAS.items():
        files = [each.table(name) for each in units if folder.has_table(each, name)]
        table = pa.concat_tables([schema.empty_table(), *(read(f, schema) for f in files)])
        tables[name] = _in_order(table, folder.experiment) if folder.is_merged else table
    federations = read(folder.federations, FEDERATIONS)
    if not folder.devices.exists():
        return Results(folder, tables, federations)
    return Results(folder, tables, federations, read(folder.devices, DEVICES))


def _in_order(table: pa.Table, experiment: Experiment) -> pa.Table:
    """Put the runs of merged units into the experiment's order."""
    found = _by_run(table)
    return pa.concat_tables(
        [table.slice(0, 0), *(found[r] for r in all_runs(experiment) if r in found)]
    )


def _by_run(table: pa.Table) -> dict[PlannedRun, pa.Table]:
    """Cut a table into its runs; the lines of a run stand together."""
    columns = [table[key].combine_chunks() for key in ("panel", "design", "seed")]
    # A run ends where one of its three values changes.
    ends = np.unique([end for each in columns for end in pc.run_end_encode(each).run_ends.tolist()])
    return {
        PlannedRun(*(each[start].as_py() for each in columns)): table.slice(start, end - start)
        for start, end in pairwise([0, *ends.astype(int).tolist()])
    }


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A quantity that was measured in some ``rounds``, from 0, of every seed.

    ``rounds`` has shape (points,), ``values`` has shape (seeds, points).
    """

    rounds: NDArray[np.int64]
    values: Numbers

    def smoothed(self, half_life: float) -> Curve:
        """Average all measurements so far; a weight halves with every ``half_life`` rounds of age.

        The weights sum to 1 from the first measurement on. So the mean never jumps as a window does
        when it drops its first rounds, and constant values stay as they are.
        """
        means = np.empty_like(self.values)
        total, weight = np.zeros(len(self.values)), 0.0
        fading = 0.5 ** (np.diff(self.rounds, prepend=self.rounds[:1]) / half_life)
        for place, kept in enumerate(fading.tolist()):
            total, weight = kept * total + self.values[:, place], kept * weight + 1
            means[:, place] = total / weight
        return Curve(self.rounds, means)

    def first_below(self, level: float) -> Numbers:
        """Return the rounds until each seed is at most ``level``; NaN if it never is."""
        hit = self.values <= level
        reached = hit.any(axis=1)
        at = self.rounds[hit.argmax(axis=1)] + 1.0 if len(self.rounds) else np.zeros(len(hit))
        return np.where(reached, at, math.nan)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval. With one value, the interval is infinite."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Return whether a difference is larger than the spread over seeds."""
        return self.low > 0 or self.high < 0


def interval(values: Numbers) -> Interval:
    """Return the mean and its 95 % interval by Student's t."""
    from scipy.stats import t

    n, mean = len(values), float(np.mean(values)) if len(values) else math.nan
    if n < 2:
        return Interval(mean, -math.inf, math.inf)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half)


@dataclass(frozen=True, slots=True, eq=False)
class DesignSummary:
    """One design of a panel. Arrays have one value per seed, in the panel's order of seeds.

    Attributes
    ----------
    final_loss, final_accuracy, worst_accuracy, classes, clients, share
        Means over the last ``window`` rounds: loss, accuracy (also that of the worst tenth of
        clients), distinct classes and clients, and these clients as a share of the draws that were
        answered. NaN if the design diverged in a seed.
    rounds_needed
        Rounds until the smoothed loss reaches the panel's level; NaN if it never does.
    jump
        Mean absolute change of the loss between measurements over the last ``window`` rounds.
    difference
        Final loss minus the baseline's, paired by seed; None for the baseline itself.
    diverged
        The first round in which training broke down; NaN if there was none.
    lost
        The share of updates that did not arrive or were not finite.
    scaled
        The share of updates that were scaled down to ``max_norm``.
    variance, floor
        The variance V of the aggregate and its noise floor, both over multinomial sampling's V:
        ratios of sums over the second half of the rounds. NaN if they were not measured.
    above_floor
        :math:`(V - floor) / (V_{MD} - floor_{MD})` of the same sums: the share of the variance
        that is left of what an estimator can remove. NaN if multinomial sampling has nothing above
        its floor. Floors are estimates, so it can be a little below 0.
    """

    label: str
    final_loss: Numbers
    final_accuracy: Numbers
    worst_accuracy: Numbers
    classes: Numbers
    clients: Numbers
    share: Numbers
    rounds_needed: Numbers
    jump: Numbers
    difference: Interval | None
    diverged: Numbers
    lost: float
    scaled: float
    variance: Numbers
    floor: Numbers
    above_floor: Numbers

    @property
    def divergence(self) -> str:
        """State in how many seeds it diverged, and the first such round; empty if it never did."""
        first = self.diverged[~np.isnan(self.diverged)]
        if not len(first):
            return ""
        some = "" if len(self.diverged) == 1 else f" in {len(first)} of {len(self.diverged)} seeds"
        return f"diverged{some}, from round {int(first.min()) + 1} on"


@dataclass(frozen=True, slots=True, eq=False)
class PanelSummary:
    """One panel: every design compared with multinomial sampling (or the first design).

    Attributes
    ----------
    seeds, rounds
        Seeds and rounds that all its designs have finished.
    window, half_life
        Rounds of final values, and the half-life of smoothed curves in rounds.
    baseline, level
        The label of the design that the others are compared with, and its mean final loss, the
        level to reach for ``rounds_needed``.
    """

    label: str
    seeds: list[int]
    rounds: int
    window: int
    baseline: str
    level: float
    designs: list[DesignSummary]

    @property
    def half_life(self) -> int:
        """Return the half-life of the panel's smoothed curves, in rounds."""
        return half_life_of(self.rounds)


def common_rounds(results: Results, panel: Panel) -> tuple[list[int], int]:
    """Return the seeds with the most rounds done by all designs, and this number of rounds."""
    done = {}
    for seed in panel.seeds:
        runs = [PlannedRun(panel.label, entry.label, seed) for entry in panel.design]
        done[seed] = min((results.of("rounds", run).num_rows for run in runs), default=0)
    # Drop seeds with fewer rounds: a seed that has just begun would shorten all others.
    longest = max(done.values())
    return [seed for seed, rounds in done.items() if rounds == longest > 0], longest


def curve(results: Results, panel: Panel, design: str, column: str) -> Curve:
    """Return a column of the table of rounds, for common seeds and the rounds that measured it.

    ``distinct_share`` is the distinct clients over the draws that were answered. The curve ends
    where a seed diverges.
    """
    return _DesignRuns(results, panel, design).curve(column)


class _DesignRuns:
    """A design's runs in a panel: the seeds and rounds that all designs have finished."""

    def __init__(self, results: Results, panel: Panel, design: str) -> None:
        self.seeds, self.rounds = common_rounds(results, panel)
        self._runs = [PlannedRun(panel.label, design, seed) for seed in self.seeds]
        self._results = results

    def _columns(self, name: str) -> list[Numbers]:
        if name == "distinct_share":
            return [self._distinct_share(run) for run in self._runs]
        return [self._results.column("rounds", run, name) for run in self._runs]

    def _distinct_share(self, run: PlannedRun) -> Numbers:
        """Return each round's distinct clients over its draws that were answered; 0 if none was."""
        distinct = self._results.column("rounds", run, "distinct_clients")
        rounds = self._results.column("cohorts", run, "round").astype(np.int64)
        counts = self._results.column("cohorts", run, "count")
        return distinct / np.maximum(np.bincount(rounds, counts, len(distinct)), 1)

    @cached_property
    def _diverged(self) -> list[NDArray[np.bool_]]:
        return [each == 1 for each in self._columns("diverged")]

    @property
    def first_diverged(self) -> Numbers:
        """Each seed's first round in which training broke down; NaN if there was none."""
        marks = self._diverged
        return np.array([float(np.argmax(each)) if each.any() else math.nan for each in marks])

    def total(self, name: str) -> float:
        """Return the sum of a column over all seeds."""
        return sum(float(np.nansum(each)) for each in self._columns(name))

    def curve(self, name: str) -> Curve:
        """Return a column, for the rounds that measured it; see :func:`curve`."""
        pairs = zip(self._diverged, self._columns(name), strict=True)
        values = [np.where(broken, math.nan, own)[: self.rounds] for broken, own in pairs]
        matrix = np.array(values) if values else np.empty((0, 0))
        measured = np.flatnonzero(~np.isnan(matrix).any(axis=0))
        return Curve(measured, matrix[:, measured])

    def late(self, name: str) -> Numbers:
        """Return a column's measurements in the last ``window_of`` rounds, one row per seed.

        There are none if a seed diverged.
        """
        if any(each.any() for each in self._diverged):
            return np.empty((len(self.seeds), 0))
        found = self.curve(name)
        return found.values[:, found.rounds >= self.rounds - window_of(self.rounds)]

    def final(self, name: str) -> Numbers:
        """Return each seed's mean of :meth:`late`."""
        return _mean(self.late(name))

    def late_sums(self, *names: str) -> list[Numbers]:
        """Sum columns over the rounds of the second half that measured all of them, seed by seed.

        NaN if there are none, or if the design diverged in a seed.
        """
        if any(each.any() for each in self._diverged):
            return [np.full(len(self.seeds), math.nan)] * len(names)
        curves = [self.curve(name) for name in names]
        shared = reduce(np.intersect1d, [each.rounds for each in curves])
        shared = shared[shared >= self.rounds / 2]
        parts = [each.values[:, np.isin(each.rounds, shared)] for each in curves]
        return [each.sum(axis=1) if len(shared) else _mean(each) for each in parts]


def window_of(rounds: int) -> int:
    """Return the number of rounds in final values."""
    return max(1, min(WINDOW, rounds // 4))


def half_life_of(rounds: int) -> int:
    """Return the half-life of smoothed curves, in rounds: 5, or less in runs below 200 rounds."""
    return max(1, round(HALF_LIFE * window_of(rounds)))


def summarise(results: Results, panel: Panel) -> PanelSummary | None:
    """Summarise a panel. Return None if no round is done."""
    seeds, rounds = common_rounds(results, panel)
    if not seeds:
        return None
    window, baseline = window_of(rounds), baseline_of(panel)
    reference = _DesignRuns(results, panel, baseline).final("loss")
    level = float(np.mean(reference))
    designs = []
    for label in (entry.label for entry in panel.design):
        own = _DesignRuns(results, panel, label)
        loss, lost = own.final("loss"), own.total("failed_clients")
        answers = own.total("distinct_clients")
        designs.append(
            DesignSummary(
                label,
                final_loss=loss,
                final_accuracy=own.final("accuracy"),
                worst_accuracy=own.final("worst_accuracy"),
                classes=own.final("distinct_classes"),
                clients=own.final("distinct_clients"),
                share=own.final("distinct_share"),
                rounds_needed=own.curve("loss").smoothed(half_life_of(rounds)).first_below(level),
                jump=_mean(np.abs(np.diff(own.late("loss"), axis=1))),
                difference=interval(loss - reference) if label != baseline else None,
                diverged=own.first_diverged,
                lost=lost / max(lost + answers, 1.0),
                scaled=own.total("scaled_clients") / max(answers, 1.0),
                **_variances(own),
            )
        )
    return PanelSummary(panel.label, seeds, rounds, window, baseline, level, designs)


def _variances(runs: _DesignRuns) -> dict[str, Numbers]:
    """Return ``variance``, ``floor`` and ``above_floor`` of a design."""
    names = ("design_variance", "multinomial_variance", "design_floor", "multinomial_floor")
    # V does not need a floor: older runs have none.
    variance = _ratio(*runs.late_sums(*names[:2]))
    own, multinomial, floor, its_floor = runs.late_sums(*names)
    return {
        "variance": variance,
        "floor": _ratio(floor, multinomial),
        "above_floor": _ratio(own - floor, multinomial - its_floor),
    }


def _ratio(part: Numbers, whole: Numbers) -> Numbers:
    """Divide; NaN where ``whole`` is not positive."""
    found: Numbers = np.full(len(whole), math.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found


def _mean(values: Numbers) -> Numbers:
    """Average over measurements; NaN if there are none."""
    return values.mean(axis=1) if values.shape[1] else np.full(len(values), math.nan)
