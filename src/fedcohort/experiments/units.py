"""Units of work: runs that train together, each unit resumed and kept by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fedcohort.experiments.settings import Experiment, Setting, Training

#: Clients that train together at most: on a GPU lanes are nearly free, on a CPU they are not.
LANES = {"cpu": 64, "cuda": 512}


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a unit: its panel, its design's label, its seed."""

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
    trials
        The runs.
    candidate
        Of a grid: the learning rate and mu that the unit tries; None where nothing is tried.
    """

    number: int
    trials: tuple[Trial, ...]
    candidate: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> Unit:
        """Read back what :meth:`as_dict` gave."""
        candidate = values["candidate"]
        return cls(
            values["number"],
            tuple(Trial(**trial) for trial in values["trials"]),
            None if candidate is None else (candidate[0], candidate[1]),
        )


def plan_units(experiment: Experiment, device: str) -> list[Unit]:
    """Divide an experiment into units: first what chooses from grids, then the runs themselves.

    A grid is tried on the first design of the panel that is called multinomial (the paper's
    choice), a plain one rather than another, or else on its first one, with the first seed. All
    designs of one panel and seed are in one unit, and as many more as train alike and fit the
    device.
    """
    found: list[tuple[tuple[Trial, ...], tuple[float, float] | None]] = []
    for panel in experiment.panels:
        if panel.design and panel.training.is_grid:
            judge = judged_design(panel)
            trial = Trial(panel.label, judge, panel.seeds[0])
            found.extend(((trial,), _point(each)) for each in panel.training.candidates())
    found.extend((trials, None) for trials in _together(experiment, LANES[device]))
    return [Unit(number, trials, point) for number, (trials, point) in enumerate(found)]


def judged_design(panel: Setting) -> str:
    """Return the label of the design that grids are tried on."""
    multinomial = [entry for entry in panel.design if entry.recipe == "multinomial"]
    plain = [
        entry
        for entry in multinomial
        if entry.estimator == "plain" and entry.draws(panel) == panel.cohort_size
    ]
    return (plain + multinomial + panel.design)[0].label


def _point(training: Training) -> tuple[float, float]:
    local = training.local()
    return local.lr, local.mu


def _together(experiment: Experiment, most: int) -> Iterator[tuple[Trial, ...]]:
    """Collect neighbours that can share a simulation until ``most`` clients train together."""
    trials: list[Trial] = []
    lanes, before = 0, None
    for panel in experiment.panels:
        alike = _shared(panel)
        for seed in panel.seeds:
            cell = [Trial(panel.label, entry.label, seed) for entry in panel.design]
            more = sum(entry.draws(panel) for entry in panel.design)
            if trials and (alike != before or lanes + more > most):
                yield tuple(trials)
                trials, lanes = [], 0
            trials += cell
            lanes, before = lanes + more, alike
    if trials:
        yield tuple(trials)


def _shared(panel: Setting) -> object:
    """Return what runs must have in common to train together."""
    tuned = panel.label if panel.training.is_grid else None
    return (panel.data.dataset, panel.model, panel.training, panel.server, panel.rounds, tuned)
