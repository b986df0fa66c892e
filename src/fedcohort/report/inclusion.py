"""Figure: the chance to be in the cohort against the client's size."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort.designs import Design

MARKERS = "osD^v<>ph*"
LINES = ("-", "--", "-.", ":")


def inclusion_figure(designs: Mapping[str, Design]) -> Figure:
    """Draw one curve per design; clients of size 0 are left out."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="client size", ylabel="chance to be in the cohort")
    for number, (name, design) in enumerate(designs.items()):
        sizes, chance = design.population.sizes, design.inclusion_probability()
        # One point per size and thousandth: a million clients give a picture of thousands.
        points = np.unique(np.column_stack([sizes, chance.round(3)])[sizes > 0], axis=0)
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
            axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
