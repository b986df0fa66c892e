"""What a run spent: bytes, client work and simulated time, and the price of a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcohort._display import BYTES, SECONDS, Units, fitting_unit
from fedcohort.experiments.results import Results, common_rounds, summarise
from fedcohort.experiments.settings import Panel
from fedcohort.experiments.units import PlannedRun

Numbers = NDArray[np.float64]


class Cost(NamedTuple):
    """A cost: its columns, its name on an axis, its heading, and the units to show it in."""

    columns: tuple[str, ...]
    what: str
    heading: str
    units: Units


#: Costs other than rounds.
COSTS = {
    "bytes": Cost(("bytes_down", "bytes_up"), "data down and up", "\ndata", BYTES),
    "client_seconds": Cost(("client_seconds",), "client work", "client\nwork", SECONDS),
    "simulated_seconds": Cost(("simulated_seconds",), "simulated time", "simulated\ntime", SECONDS),
}


def spent(results: Results, panel: Panel, design: str, cost: str) -> Numbers | None:
    """Return the bytes or seconds after each round, shape (seeds, rounds); None if not counted."""
    seeds, rounds = common_rounds(results, panel)
    runs = [PlannedRun(panel.label, design, seed) for seed in seeds]
    parts = [[results.column("rounds", run, name) for name in COSTS[cost].columns] for run in runs]
    total = np.array([np.sum(each, axis=0)[:rounds] for each in parts])
    return None if not total.size or np.isnan(total).any() else np.cumsum(total, axis=1)


def cost_axis(cost: str, largest: float) -> tuple[str, float]:
    """Return the label of a cost's axis, and the factor to the unit that fits."""
    name, _, size = fitting_unit(largest, COSTS[cost].units)
    return f"{COSTS[cost].what} ({name})", 1 / size


@dataclass(frozen=True, slots=True)
class Price:
    """The costs of a design until its smoothed loss reaches the level, as ``n_reached`` seeds do.

    ``rounds`` and ``costs`` (bytes and seconds) are means over these seeds; None if no seed reaches
    the level, or if a cost was not counted. ``final_loss`` is the mean over all seeds, and so are
    ``variance``, ``floor`` and ``above_floor``, those of the design's summary; None if unknown.
    """

    design: str
    final_loss: float
    n_seeds: int
    n_reached: int
    rounds: float | None
    costs: dict[str, float | None]
    variance: float | None
    floor: float | None
    above_floor: float | None


def prices(results: Results, panel: Panel) -> tuple[float, list[Price]] | None:
    """Return the level (the baseline's final loss) and all prices; None if no round is done."""
    summary = summarise(results, panel)
    if summary is None:
        return None
    found = []
    for design in summary.designs:
        reached = np.flatnonzero(~np.isnan(design.rounds_needed))
        rounds = design.rounds_needed[reached].astype(np.int64)
        costs: dict[str, float | None] = {}
        for cost in COSTS:
            total = spent(results, panel, design.label, cost)
            at = None if total is None or not len(reached) else total[reached, rounds - 1]
            costs[cost] = None if at is None else float(at.mean())
        found.append(
            Price(
                design.label,
                float(design.final_loss.mean()),
                len(design.rounds_needed),
                len(reached),
                float(rounds.mean()) if len(reached) else None,
                costs,
                *map(_mean, (design.variance, design.floor, design.above_floor)),
            )
        )
    return summary.level, found


def _mean(values: Numbers) -> float | None:
    return None if np.isnan(values).any() else float(values.mean())
