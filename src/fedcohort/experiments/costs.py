"""What runs spent: bytes, client work and simulated time, beside rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiments.results import Results
from fedcohort.experiments.settings import Setting
from fedcohort.experiments.summary import curve, summarise

#: The costs beside rounds: their columns, what they are called, and their unit.
COSTS: dict[str, tuple[tuple[str, ...], str, float]] = {
    "bytes": (("bytes_down", "bytes_up"), "megabytes down and up", 1e-6),
    "client_seconds": (("client_seconds",), "client work (hours)", 1 / 3600),
    "simulated_seconds": (("simulated_seconds",), "simulated time (hours)", 1 / 3600),
}


def spent(results: Results, panel: Setting, design: str, cost: str) -> NDArray[np.float64] | None:
    """Return what was spent after every round, shape (seeds, rounds); None: it was not counted."""
    columns, _, unit = COSTS[cost]
    found = [curve(results, panel, design, column) for column in columns]
    if any(not each.values.size or len(each.rounds) != each.rounds[-1] + 1 for each in found):
        return None
    total: NDArray[np.float64] = np.sum([each.values for each in found], axis=0)
    return np.cumsum(total, axis=1) * unit


@dataclass(frozen=True, slots=True)
class Price:
    """What a design pays until its rolling loss reaches the level.

    Attributes
    ----------
    design
        Its label.
    final_loss
        Mean over seeds.
    n_seeds, n_reached
        How many seeds there are, and how many reach the level.
    rounds, costs
        Means over those that reach it; None where none does, or where it was not counted.
    """

    design: str
    final_loss: float
    n_seeds: int
    n_reached: int
    rounds: float | None
    costs: dict[str, float | None]


def prices(results: Results, panel: Setting) -> tuple[float, list[Price]] | None:
    """Return the level (the baseline's final loss) and every design's price; None: no rounds."""
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
            )
        )
    return summary.level, found
