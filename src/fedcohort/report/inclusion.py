"""Figure: the chance to be in the cohort against the client's size."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedcohort.designs import Design

MARKERS = "osD^v<>ph*"
LINES = ("-", "--", "-.", ":")


def inclusion_figure(designs: Mapping[str, Design]) -> Figure:
    """Draw one curve per design; clients of size 0 are left out."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="client size", ylabel="chance to be in the cohort")
    for number, (name, design) in enumerate(designs.items()):
        sizes, chance = design.population.sizes, design.inclusion_probability()
        points = _thinned(sizes[sizes > 0].astype(np.float64), chance[sizes > 0])
        # Larger markers first: designs that agree show as rings around each other.
        axes.plot(
            *points.T,
            LINES[number % len(LINES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4 + 1.5 * (len(designs) - number),
            fillstyle="none",
            linewidth=1,
            label=name,
        )
        if points[-1, 0] > 50 * points[0, 0]:
            axes.set(xscale="log", yscale="log")
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _thinned(sizes: NDArray[np.float64], chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points (size, chance), one per size and per three digits of the chance."""
    digits = 10 ** (2 - np.floor(np.log10(chance)))
    return np.unique(np.column_stack([sizes, np.round(chance * digits) / digits]), axis=0)
