"""The difference estimator: its variance by how much of the memory it uses."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Population
from fedcohort.designs import MultinomialDesign
from fedcohort.synthetic import clustered_updates, unbalanced_sizes

CLIENTS, DRAWS = 100, 10
#: How much of a remembered update is still true.
TRUTHS = (1.0, 0.9, 0.7, 0.4, 0.0)


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw V over that of plain aggregation for memories of different age."""
    population = Population(unbalanced_sizes(CLIENTS, seed=0))
    design = MultinomialDesign(population, DRAWS)
    fresh, other = clustered_updates(CLIENTS, seed=0), clustered_updates(CLIENTS, seed=1)
    plain = design.aggregate_variance(fresh)
    # Of one V, so that a memory that is not true has the size of one that is.
    other = other * math.sqrt(plain / design.aggregate_variance(other))
    shrinks = np.linspace(0, 1, 41)
    figure = Figure(figsize=(5.2, 3.8))
    axes = figure.subplots()
    for place, truth in enumerate(TRUTHS):
        remembered = truth * fresh + math.sqrt(1 - truth**2) * other
        values = [design.aggregate_variance(fresh - s * remembered) / plain for s in shrinks]
        shade = 0.1 + 0.12 * place
        axes.plot(shrinks, values, color=str(shade), lw=1.8)
        best = int(np.argmin(values))
        axes.plot(shrinks[best], values[best], "o", color=str(shade), markersize=4)
        axes.text(1.02, values[-1], f"{truth:g}", va="center", color=str(shade))
    axes.axhline(1.0, color=colours["multinomial"], linestyle="--", linewidth=1.2)
    axes.text(0.42, 1.03, "plain aggregation", color=colours["multinomial"])
    axes.text(1.0, 2.13, "still true:", ha="right", va="center")
    axes.set(
        xlabel="$\\lambda$, how much of the memory is used",
        ylabel="$V(\\Delta - \\lambda h) / V(\\Delta)$",
        xlim=(0, 1.12),
        ylim=(0, 2.25),
        xticks=np.linspace(0, 1, 6),
    )
    return figure
