"""What clients weigh in the long run that are not always there."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Population

EACH = 5


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the weight of the half of the clients that comes and goes."""
    times = np.linspace(0, 1, 21)
    figure = Figure(figsize=(5.2, 3.6))
    axes = figure.subplots()
    axes.axhline(0.5, color="black", linestyle="--", linewidth=1)
    axes.text(0.0, 0.515, "their importance in the whole")
    by_oneself = [long_run_weight(np.full(EACH, time)) for time in times]
    axes.plot(times, by_oneself, color=colours["size"], lw=1.8, label="each by itself")
    axes.plot(times, 0.5 * times, color=colours["similarity"], lw=1.8, label="all at once")
    axes.set(
        xlabel="share of the rounds in which they are there",
        ylabel="their weight in the long run",
        xlim=(0, 1),
        ylim=(0, 0.6),
    )
    axes.legend(loc="lower right")
    return figure


def long_run_weight(chances: np.ndarray) -> float:
    """Return the expected weight of five clients that come by chance, beside five that stay."""
    population = Population([1] * (2 * EACH))
    total = 0.0
    for there in product((False, True), repeat=EACH):
        here = np.array([*[True] * EACH, *there])
        chance = np.where(there, chances, 1 - chances).prod()
        total += chance * population.restricted(here).importance[EACH:].sum()
    return float(total)
