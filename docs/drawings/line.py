"""Algorithm 1: the line of all clients, cut into distributions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedcohort import Population
from fedcohort.colours import class_colours
from fedcohort.designs import SizeClusteredDesign

SIZES, DRAWS = (11, 7, 5, 4, 3), 3
LETTERS = "ABCDE"


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the line with its cuts, and the distributions as bars that are full."""
    population = Population(SIZES)
    plan = SizeClusteredDesign(population, DRAWS, rng=np.random.default_rng(0)).plan
    figure = Figure(figsize=(5.2, 3.3))
    line, bars = figure.subplots(2, 1, height_ratios=(1, 2.4))
    fill(line, 0, DRAWS * population.sizes, height=0.55)
    for cut in range(1, DRAWS):
        line.axvline(cut * population.total, color="black", linestyle="--", linewidth=1.2)
    line.set_title("the line: client $i$ takes $m\\,n_i$ units, cut every $M$ = 30", loc="left")
    line.set(xlim=(0, DRAWS * population.total), xticks=range(0, 91, 30), ylim=(-0.4, 0.4))
    for k, row in enumerate(plan.units.toarray()):
        fill(bars, k, row, height=0.7)
    bars.set_title("the distributions: $r'_{k,i}$ of 30 units", loc="left")
    bars.set(xlim=(0, population.total), xticks=range(0, 31, 10), ylim=(DRAWS - 0.5, -0.5))
    bars.set_yticks(range(DRAWS), [f"row {k + 1}" for k in range(DRAWS)])
    line.set_yticks([])
    for axes in (line, bars):
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def fill(axes: Axes, place: float, units: np.ndarray, *, height: float) -> None:
    """Put the clients side by side, each with its letter and its units."""
    shades = class_colours(10)
    ends = np.cumsum(units)
    for client, (amount, end) in enumerate(zip(units.tolist(), ends.tolist(), strict=True)):
        if not amount:
            continue
        axes.barh(
            place,
            amount,
            left=end - amount,
            height=height,
            color=shades[2 * client],
            edgecolor="white",
            linewidth=1.5,
        )
        # In the middle of its longest part between cuts.
        cuts = [cut for cut in range(0, int(ends[-1]), sum(SIZES)) if end - amount < cut < end]
        middle = max(pairwise([end - amount, *cuts, end]), key=lambda part: part[1] - part[0])
        axes.text(
            sum(middle) / 2,
            place,
            f"{LETTERS[client]} {amount}",
            ha="center",
            va="center",
            color="white" if client in (0, 3) else "black",
        )
