"""Units of work: runs that train together, planned from the experiment and the device alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from typing import Any, final

from fedcohort.experiments.settings import DesignEntry, Experiment, Panel
from fedcohort.experiments.training_settings import Rates


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


@dataclass(frozen=True, slots=True)
class Unit:
    """Runs that train together.

    Attributes
    ----------
    number
        From 0; the name of the unit's folder.
    runs
        The runs.
    candidate
        The point of a grid that the unit tries, or None.
    source
        In a merged folder: the number of the folder that the unit comes from.
    """

    number: int
    runs: tuple[PlannedRun, ...]
    candidate: Rates | None = None
    source: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; run folders call the runs ``trials``."""
        runs = [asdict(run) for run in self.runs]
        found = {"number": self.number, "trials": runs, "candidate": self.candidate}
        return found if self.source is None else {**found, "source": self.source}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> Unit:
        """Read what :meth:`as_dict` returned."""
        candidate = values["candidate"]
        return cls(
            values["number"],
            tuple(PlannedRun(**run) for run in values["trials"]),
            None if candidate is None else Rates(*candidate),
            values.get("source"),
        )


def plan_units(experiment: Experiment, device: str) -> list[Unit]:
    """Divide an experiment into units: first those that try grids, then the runs themselves.

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
    return [Unit(number, runs, candidate) for number, (runs, candidate) in enumerate(found)]


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


@final
class Schedule:
    """Which units are left, which may begin, and which failed and why."""

    def __init__(self, units: Sequence[Unit], done: Sequence[Unit]) -> None:
        self._units, self._done = units, list(done)
        self.left = [unit for unit in units if unit not in self._done]
        self.failed: dict[Unit, str] = {}

    def take(self) -> Unit | None:
        """Return the next unit that may begin; None if there is none."""
        for unit in self.left:
            if all(each in self._done for each in needed_by(unit, self._units)):
                self.left.remove(unit)
                return unit
        return None

    def finish(self, unit: Unit) -> None:
        """Note that a unit is done."""
        self._done.append(unit)

    def put_back(self, unit: Unit) -> None:
        """Let a unit that was taken begin again."""
        self.left.insert(0, unit)

    def fail(self, unit: Unit, why: str) -> None:
        """Give up a unit that was taken."""
        self.failed[unit] = why


def lanes_of(unit: Unit, experiment: Experiment) -> int:
    """Return how many clients of a unit train together."""
    panels = [(experiment.panel(run.panel), run.design) for run in unit.runs]
    return sum(panel.entry(design).draws(panel) for panel, design in panels)


def worded_plan(units: Sequence[Unit], experiment: Experiment) -> str:
    """Describe how runs are grouped, for example ``6 units of 4 runs (40 clients together)``."""
    kinds = Counter(
        (unit.candidate is None, len(unit.runs), lanes_of(unit, experiment)) for unit in units
    )
    parts = [
        f"{_counted(count, 'unit')} of {_counted(runs, 'run' if is_run else 'trial')} "
        f"({_counted(lanes, 'client')} together)"
        for (is_run, runs, lanes), count in kinds.items()
    ]
    return ", ".join(parts) or "no units"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
    """Return what runs must have in common to train together; learning rates may differ."""
    tuned = panel.label if panel.is_grid else None
    training = replace(panel.training, lr=0.0)
    options = panel.server.options("cpu", 1.0)
    failures = panel.server.failures
    return (panel.data.dataset, panel.model, training, options, failures, panel.rounds, tuned)


def check_units(units: list[Unit], experiment: Experiment) -> None:
    """Refuse units that do not belong to the experiment."""
    runs, trials = (
        {
            PlannedRun(panel.label, entry.label, seed)
            for panel in experiment.panels
            for entry in panel.design
            for seed in ([panel.tuning_seed] if is_trial else panel.seeds)
        }
        for is_trial in (False, True)
    )
    for unit in units:
        known = runs if unit.candidate is None else trials
        if not unit.runs or not known.issuperset(unit.runs):
            raise ValueError("units")
