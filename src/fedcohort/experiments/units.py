"""Units of work: runs that train together. Each unit is kept and resumed by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fedcohort.experiments.settings import Experiment, Panel

#: The most clients that train together. More are nearly free on a GPU, but not on a CPU.
MOST_CLIENTS = {"cpu": 64, "cuda": 512}


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
        The learning rate and mu that the unit tries for a grid, or None.
    """

    number: int
    runs: tuple[PlannedRun, ...]
    candidate: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; run folders call the runs ``trials``."""
        runs = [asdict(run) for run in self.runs]
        return {"number": self.number, "trials": runs, "candidate": self.candidate}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> Unit:
        """Read what :meth:`as_dict` returned."""
        candidate = values["candidate"]
        return cls(
            values["number"],
            tuple(PlannedRun(**run) for run in values["trials"]),
            None if candidate is None else (candidate[0], candidate[1]),
        )


def plan_units(experiment: Experiment, device: str) -> list[Unit]:
    """Divide an experiment into units: first those that try grids, then the runs themselves.

    A grid is tried on the panel's baseline with the first seed. All designs of a panel with one
    seed are in one unit, and further seeds and panels that train alike and fit the device.
    """
    found: list[tuple[tuple[PlannedRun, ...], tuple[float, float] | None]] = []
    for panel in experiment.panels:
        if panel.design and panel.training.is_grid:
            run = PlannedRun(panel.label, baseline_of(panel), panel.seeds[0])
            found.extend(((run,), point) for point in panel.training.candidates())
    found.extend((runs, None) for runs in _together(experiment, MOST_CLIENTS[device]))
    return [Unit(number, runs, candidate) for number, (runs, candidate) in enumerate(found)]


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


def _together(experiment: Experiment, most: int) -> Iterator[tuple[PlannedRun, ...]]:
    """Collect neighbours that can share a simulation until ``most`` clients train together."""
    runs: list[PlannedRun] = []
    n_clients, before = 0, None
    for panel in experiment.panels:
        alike = _shared(panel)
        for seed in panel.seeds:
            more = sum(entry.draws(panel) for entry in panel.design)
            if runs and (alike != before or n_clients + more > most):
                yield tuple(runs)
                runs, n_clients = [], 0
            runs += [PlannedRun(panel.label, entry.label, seed) for entry in panel.design]
            n_clients, before = n_clients + more, alike
    if runs:
        yield tuple(runs)


def _shared(panel: Panel) -> object:
    """Return what runs must have in common to train together."""
    tuned = panel.label if panel.training.is_grid else None
    return (panel.data.dataset, panel.model, panel.training, panel.server, panel.rounds, tuned)
