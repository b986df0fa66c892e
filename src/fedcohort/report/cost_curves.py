"""Loss against what it cost: bytes, client work and simulated time instead of rounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiments.results import Results
from fedcohort.experiments.settings import Setting
from fedcohort.experiments.summary import curve

#: What can be on the horizontal axis beside rounds: its columns, what it is called, and its unit.
COSTS: dict[str, tuple[tuple[str, ...], str, float]] = {
    "bytes": (("bytes_down", "bytes_up"), "megabytes down and up", 1e-6),
    "client_seconds": (("client_seconds",), "client work (hours)", 1 / 3600),
    "simulated_seconds": (("simulated_seconds",), "simulated time (hours)", 1 / 3600),
}


def spent(results: Results, panel: Setting, design: str, cost: str) -> NDArray[np.float64] | None:
    """Return what was spent after every round, mean over seeds; None where it was not counted."""
    columns, _, unit = COSTS[cost]
    total: NDArray[np.float64] | None = None
    for column in columns:
        values = curve(results, panel, design, column)
        if not values.values.size or len(values.rounds) != values.rounds[-1] + 1:
            return None
        each = np.cumsum(values.values.mean(axis=0)) * unit
        total = each if total is None else total + each
    return total
