"""The MNIST accident: which digits fill which distribution of Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Population
from fedcohort.colours import class_colours
from fedcohort.designs import SizeClusteredDesign

DIGITS = np.repeat(np.arange(10), 10)


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the digits in the ten rows, with equals by number and with equals at random."""
    by_number = list(np.arange(100).reshape(10, 10))  # ten clients of one size fill a row
    plan = SizeClusteredDesign(Population([500] * 100), 10, rng=np.random.default_rng(0)).plan
    at_random = [np.flatnonzero(row) for row in plan.units.toarray()]
    figure = Figure(figsize=(5.2, 3.9))
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("equals by number", "equals at random")
    for axes, title, rows in zip(panels, titles, (by_number, at_random), strict=True):
        for k, members in enumerate(rows):
            for place, digit in enumerate(np.sort(DIGITS[members]).tolist()):
                axes.barh(k, 1, left=place, height=0.86, color=class_colours(10)[digit])
                shade = "white" if digit in (0, 3, 7) else "black"
                axes.text(place + 0.5, k, str(digit), ha="center", va="center", color=shade, size=8)
        axes.set_title(title)
        axes.set(xlim=(0, 10), ylim=(9.5, -0.5), xticks=[])
        axes.set_yticks(range(10), [f"row {k + 1}" for k in range(10)])
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.supxlabel("the digits of the ten clients in each row", fontsize=9.5)
    return figure
