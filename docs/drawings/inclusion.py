"""The chance to be in a cohort, by importance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Design, Population
from fedcohort.designs import (
    MultinomialDesign,
    SizeClusteredDesign,
    TournamentDesign,
    UniformDesign,
)

DRAWS = 20


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the inclusion probability of a hundred clients of very different sizes."""
    population, rng = Population(np.geomspace(5, 5000, 100).astype(int)), np.random.default_rng(0)
    kinds = np.zeros((100, 1))  # nothing is known: any tree will do
    designs: dict[str, tuple[str, Design]] = {
        "tournament": (
            "tournament: the bound",
            TournamentDesign(population, DRAWS, kinds, rng=rng),
        ),
        "size": ("Algorithm 1", SizeClusteredDesign(population, DRAWS, rng=rng)),
        "multinomial": ("multinomial", MultinomialDesign(population, DRAWS)),
        "uniform": ("uniform", UniformDesign(population, DRAWS, unbiased=True)),
    }
    figure = Figure(figsize=(5.2, 3.6))
    axes = figure.subplots()
    for name, (label, design) in designs.items():
        style = {"marker": ".", "linestyle": "none"} if name == "size" else {"linewidth": 1.8}
        axes.plot(
            DRAWS * population.importance,
            design.inclusion_probability(),
            color=colours[name],
            label=label,
            **style,
        )
    axes.set(
        xlabel="expected number of draws, $m p_i$",
        ylabel=r"chance to be in the cohort",
        xlim=(0, 1.4),
        ylim=(0, 1.05),
    )
    axes.legend(loc="upper left")
    return figure
