"""Units of work: runs that train together, where their state is, and how they are planned.

All of a unit's state is in its folder: tables, a checkpoint while it is not done, a record of an
end without tables. So any process can resume it, and whatever runs it leaves the same files.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from fedcohort._arguments import WholeNeed, brief, checked_choice
from fedcohort._display import counted
from fedcohort._fields import Record, declared, flag
from fedcohort._whole_file import make_folder, write_whole
from fedcohort.errors import ExperimentError
from fedcohort.experiments.settings import DesignEntry, Experiment, Panel, Rates
from fedcohort.experiments.tables import SCHEMAS, SUMS, is_whole


@dataclass(frozen=True, slots=True)
class Lanes:
    """How many clients train together on a device.

    A round costs a fixed part and a part per client. Seeds are gathered up to ``enough`` clients:
    with more, the fixed part hardly matters. The designs of one seed are divided above ``most``.
    """

    enough: int
    most: int


#: On one CPU core, 20 clients of the smallest model take 1.2 times the time per client of 160;
#: 10 clients of MNIST's take no more than 160. Small units can be shared among cores.
LANES = {"cpu": Lanes(20, 64), "cuda": Lanes(512, 512)}


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run: its panel, the label of its design, its seed."""

    panel: str
    design: str
    seed: int


#: Ends of a unit that have a file with the reason. ``diverged``: a candidate of a grid diverges
#: with all designs; the unit is done. ``failed``: too many crashes; the next try removes the file.
Recorded = Literal["diverged", "failed"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Runs that train together, and the folder of their state.

    Attributes
    ----------
    number
        From 0; the name of the unit's folder.
    runs
        The runs.
    rounds
        How many rounds each run has.
    folder
        The tables, the checkpoint and the record of the unit's end.
    candidate
        The point of a grid that the unit tries, or None.
    source
        In a merged folder: the number of the folder that the unit comes from.
    """

    number: int
    runs: tuple[PlannedRun, ...]
    rounds: int
    folder: Path
    candidate: Rates | None = None
    source: int | None = None

    @classmethod
    def planned(
        cls,
        number: int,
        runs: tuple[PlannedRun, ...],
        experiment: Experiment,
        path: Path,
        *,
        candidate: Rates | None = None,
        source: int | None = None,
    ) -> Unit:
        """Make the unit with this number in the run folder at ``path``."""
        panel, folder = experiment.panel(runs[0].panel), path / "units" / f"{number:03d}"
        rounds = panel.rounds if candidate is None else panel.tune_rounds or panel.rounds
        return cls(number, runs, rounds, folder, candidate, source)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; run folders call the runs ``trials``."""
        runs = [asdict(run) for run in self.runs]
        found = {"number": self.number, "trials": runs, "candidate": self.candidate}
        return found if self.source is None else {**found, "source": self.source}

    @classmethod
    def of_dict(cls, values: dict[str, Any], experiment: Experiment, path: Path) -> Unit:
        """Read what :meth:`as_dict` returned."""
        candidate = values["candidate"]
        return cls.planned(
            values["number"],
            tuple(PlannedRun(**run) for run in values["trials"]),
            experiment,
            path,
            candidate=None if candidate is None else Rates(*candidate),
            source=values.get("source"),
        )

    @property
    def checkpoint(self) -> Path:
        """The path of the state to resume from."""
        return self.folder / "checkpoint.state"

    def table(self, name: str) -> Path:
        """Return the path of a table."""
        checked_choice("Unit", "name", name, SCHEMAS, error=ExperimentError)
        return self.folder / f"{name}.parquet"

    def begin(self) -> None:
        """Make the folder, and remove the record of an earlier failure."""
        make_folder(self.folder)
        self.record("failed").unlink(missing_ok=True)

    def record_end(self, end: Recorded, why: str) -> None:
        """Record that the unit diverged or failed. Whole tables are the record of all others."""
        make_folder(self.folder)
        write_whole(self.record(end), f"{why}\n".encode())

    def ended(self, end: Recorded) -> bool:
        """Return whether the folder records this end."""
        return self.record(end).exists()

    def record(self, end: Recorded) -> Path:
        """Return the path of the file that records this end."""
        return self.folder / f"{end}.txt"

    def files(self) -> dict[str, bytes]:
        """Read the unit's state: all files of its folder."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return {path.name: path.read_bytes() for path in found if path.is_file()}

    def mirror(self, files: Mapping[str, bytes]) -> None:
        """Make the folder hold what :meth:`files` read elsewhere.

        Write the checkpoint before the tables and remove it after them, as a run does: whenever
        this process dies, the folder can be resumed.
        """
        for name in sorted(files, key=lambda name: (name != self.checkpoint.name, name != SUMS)):
            write_whole(self.folder / name, files[name])
        for path in [each for each in self.folder.iterdir() if each.name not in files]:
            path.unlink()

    def copy(self, done: Unit) -> None:
        """Copy what a done unit of another folder has left."""
        self.begin()
        # The sums come last: a table without them is whole if it can be read to its end.
        for path in (done.record("diverged"), *map(done.table, SCHEMAS), done.folder / SUMS):
            if path.is_file():
                shutil.copyfile(path, self.folder / path.name)

    @property
    def is_done(self) -> bool:
        """Whether all tables are there and whole, or the unit diverged."""
        if self.ended("diverged"):
            return True
        has_all = self.progress()[0] == len(self.runs) * self.rounds
        return has_all and all(is_whole(self.table(name)) for name in SCHEMAS)

    def progress(self) -> tuple[int, float]:
        """Return the rounds that are done, over all runs, and their seconds of computing."""
        names = ["draw_seconds", "train_seconds", "measure_seconds"]
        try:
            table = pq.read_table(self.table("rounds"), columns=names, partitioning=None)
        except (OSError, ValueError):
            return 0, 0.0
        draw, train, measure = (table[name].to_numpy().sum() for name in names)
        # All runs of a unit train at once.
        return table.num_rows, float(draw + train / len(self.runs) + measure)


def plan_units(experiment: Experiment, device: str, path: Path = Path()) -> list[Unit]:
    """Divide an experiment into units: first those that try grids, then the runs themselves.

    ``path`` is the run folder.

    A grid is tried by the designs of :func:`tuned_designs`, a unit for every point. Neighbours that
    train alike are in one unit until ``LANES`` clients train together. The plan depends on nothing
    else, so that results are the same with any number of workers.
    """
    lanes = LANES[device]
    found: list[tuple[tuple[PlannedRun, ...], Rates | None]] = []
    for panel in experiment.panels:
        for point, entries in trials(panel).items():
            for designs in _divided(panel, entries, lanes.most):
                labels = [entry.label for entry in designs]
                runs = tuple(PlannedRun(panel.label, each, panel.tuning_seed) for each in labels)
                found.append((runs, point))
    found.extend((runs, None) for runs in _together(experiment, lanes))
    return [
        Unit.planned(number, runs, experiment, path, candidate=candidate)
        for number, (runs, candidate) in enumerate(found)
    ]


@dataclass(frozen=True, slots=True)
class Part(Record):
    """A share of an experiment's units, in a folder of its own: the ``number``-th, from 1.

    It has every ``of``-th unit, and the trials of grids that these need; so it waits for no other
    part. With ``only_trials`` it has every ``of``-th trial and nothing else.
    """

    _error = ExperimentError

    number: int = declared(WholeNeed(least=1, most=10**6))
    of: int = declared(WholeNeed(least=1, most=10**6))
    only_trials: bool = flag(False)

    def _check(self) -> None:
        if self.number > self.of:
            raise ExperimentError(
                f"Part: number must be at most {self.of}, of which it is one; got {self.number}. "
                f"Parts count from 1."
            )

    @classmethod
    def read(cls, text: str, *, only_trials: bool = False) -> Part:
        """Read ``3/16``."""
        try:
            number, _, of = text.partition("/") if isinstance(text, str) else ("", "", "")
            return cls(int(number), int(of), only_trials)
        except ValueError as error:  # ours too
            raise ExperimentError(
                f"--part: must be K/N with K from 1 to N, as 3/16; got {brief(text)}. Write it so."
            ) from error

    def __str__(self) -> str:
        kind = "trials" if self.only_trials else "part"
        return f"{kind} {self.number}/{self.of}"

    def chosen(self, units: Sequence[Unit]) -> list[Unit]:
        """Return the part's units; refuse more parts than there are units."""
        shared = shared_units(units, only_trials=self.only_trials)
        if self.of > len(shared):
            what = counted(len(shared), "trial" if self.only_trials else "unit")
            raise ExperimentError(
                f"{self}: the experiment has {what} of work to share. Use at most that many parts."
            )
        own = shared[self.number - 1 :: self.of]
        needed = {each.number for unit in own for each in (unit, *needed_by(unit, units))}
        return [unit for unit in units if unit.number in needed]


def shared_units(units: Sequence[Unit], *, only_trials: bool) -> list[Unit]:
    """Return the units that parts share: the trials of grids, or the runs themselves."""
    return [unit for unit in units if (unit.candidate is not None) == only_trials]


def tuned_designs(panel: Panel) -> list[DesignEntry]:
    """Return the designs that try the panel's grid; none if it has no grid."""
    if not panel.design or not panel.is_grid:
        return []
    return panel.design if panel.tune == "each" else [panel.entry(baseline_of(panel))]


def all_runs(experiment: Experiment) -> Iterator[PlannedRun]:
    """Yield every run of an experiment: panel by panel, seed by seed, design by design."""
    for panel in experiment.panels:
        for seed, entry in product(panel.seeds, panel.design):
            yield PlannedRun(panel.label, entry.label, seed)


def all_trials(experiment: Experiment) -> Iterator[tuple[PlannedRun, Rates]]:
    """Yield every run that tries a point of a grid: panel by panel, point by point."""
    for panel in experiment.panels:
        for point, entries in trials(panel).items():
            for entry in entries:
                yield PlannedRun(panel.label, entry.label, panel.tuning_seed), point


def trials(panel: Panel) -> dict[Rates, list[DesignEntry]]:
    """Return the designs that try each point of the panel's grids."""
    found: dict[Rates, list[DesignEntry]] = {}
    for entry in tuned_designs(panel):
        for point in panel.candidates(entry.label):
            found.setdefault(point, []).append(entry)
    return found


def needed_by(unit: Unit, units: Sequence[Unit]) -> list[Unit]:
    """Return the units that must be done before a unit can begin: its panels' grids."""
    if unit.candidate is not None:
        return []
    panels = {run.panel for run in unit.runs}
    return [each for each in units if each.candidate is not None and each.runs[0].panel in panels]


def lanes_of(unit: Unit, experiment: Experiment) -> int:
    """Return how many clients of a unit train together."""
    return sum(draws for _, draws in _drawn(unit, experiment))


def work_of(unit: Unit, experiment: Experiment) -> int:
    """Weigh a round of a unit: the local steps of all its clients."""
    trained = ((panel.training, draws) for panel, draws in _drawn(unit, experiment))
    return sum(draws * (each.steps or each.epochs or 1) for each, draws in trained)


def _drawn(unit: Unit, experiment: Experiment) -> Iterator[tuple[Panel, int]]:
    """Yield the panel of each run, and the number of its draws in a round."""
    for run in unit.runs:
        panel = experiment.panel(run.panel)
        yield panel, panel.entry(run.design).draws(panel)


def worded_plan(units: Sequence[Unit], experiment: Experiment) -> str:
    """Describe how runs are grouped, for example ``6 units of 4 runs (40 clients together)``."""
    kinds = Counter(
        (unit.candidate is None, len(unit.runs), lanes_of(unit, experiment)) for unit in units
    )
    parts = [
        f"{counted(count, 'unit')} of {counted(runs, 'run' if is_run else 'trial')} "
        f"({counted(lanes, 'client')} together)"
        for (is_run, runs, lanes), count in kinds.items()
    ]
    return ", ".join(parts) or "no units"


def baseline_of(panel: Panel) -> str:
    """Return the label of the design that others are compared with, and that grids are tried on.

    The first multinomial design (the paper's choice), a plain one if there is one; without any,
    the first design.
    """
    multinomial = [entry for entry in panel.design if entry.recipe == "multinomial"]
    plain = [
        entry
        for entry in multinomial
        if entry.estimator == "plain" and entry.draws(panel) == panel.cohort_size
    ]
    return (plain + multinomial + panel.design)[0].label


def _together(experiment: Experiment, lanes: Lanes) -> Iterator[tuple[PlannedRun, ...]]:
    """Collect neighbours that can share a simulation until enough clients train together."""
    runs: list[PlannedRun] = []
    n_clients, before = 0, None
    for panel in experiment.panels:
        alike = _shared(panel)
        for seed, designs in product(panel.seeds, _divided(panel, panel.design, lanes.most)):
            more = sum(entry.draws(panel) for entry in designs)
            if runs and (alike != before or n_clients + more > lanes.enough):
                yield tuple(runs)
                runs, n_clients = [], 0
            runs += [PlannedRun(panel.label, entry.label, seed) for entry in designs]
            n_clients, before = n_clients + more, alike
    if runs:
        yield tuple(runs)


def _divided(panel: Panel, designs: list[DesignEntry], most: int) -> list[list[DesignEntry]]:
    """Divide designs of a panel into as few equal parts as have at most ``most`` clients."""
    n = len(designs)
    for n_parts in range(1, n + 1):
        ends = [n * k // n_parts for k in range(n_parts + 1)]
        parts = [designs[start:end] for start, end in pairwise(ends)]
        if all(sum(entry.draws(panel) for entry in part) <= most for part in parts):
            return parts
    return [[entry] for entry in designs]


def _shared(panel: Panel) -> object:
    """Return the settings that runs trained together must share; learning rates may differ."""
    tuned = panel.label if panel.is_grid else None
    training = panel.training.as_dict("lr")
    options = panel.server.options("cpu", 1.0)
    failures = panel.server.failures
    return (panel.data.dataset, panel.model, training, options, failures, panel.rounds, tuned)


def check_units(units: list[Unit], experiment: Experiment) -> None:
    """Refuse units that do not belong to the experiment."""
    runs = set(all_runs(experiment))
    tried = {
        PlannedRun(panel.label, entry.label, panel.tuning_seed)
        for panel in experiment.panels
        for entry in panel.design
    }
    for unit in units:
        known = runs if unit.candidate is None else tried
        if not unit.runs or not known.issuperset(unit.runs):
            raise ValueError("units")
