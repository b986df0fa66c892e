"""The law of one client's weight under five designs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Design, Population
from fedcohort.designs import (
    MultinomialDesign,
    PoissonDesign,
    RowDesign,
    SizeClusteredDesign,
    TournamentDesign,
    UniformDesign,
)

SIZES, DRAWS, CLIENT = (7, 6, 5, 4, 3, 3, 2), 4, 2


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the chance of every weight that the client can have, a panel for each design."""
    population, rng = Population(SIZES), np.random.default_rng(0)
    kinds = np.zeros((len(SIZES), 1))  # nothing is known: any tree will do
    designs: dict[str, tuple[str, Design]] = {
        "multinomial": ("multinomial", MultinomialDesign(population, DRAWS)),
        "size": ("Algorithm 1", SizeClusteredDesign(population, DRAWS, rng=rng)),
        "tournament": ("tournament", TournamentDesign(population, DRAWS, kinds, rng=rng)),
        "poisson": ("coins", PoissonDesign(population, DRAWS)),
        "uniform": ("uniform, unbiased", UniformDesign(population, DRAWS, unbiased=True)),
    }
    figure = Figure(figsize=(5.2, 5.0))
    panels = figure.subplots(len(designs), 1, sharex=True, sharey=True)
    for axes, (name, (label, design)) in zip(panels, designs.items(), strict=True):
        chances = count_law(design)
        weights = design.weight_per_draw()[CLIENT] * np.arange(len(chances))
        seen = chances > 0
        axes.bar(weights[seen], chances[seen], width=0.022, color=colours[name])
        axes.axvline(population.importance[CLIENT], color="black", linestyle=":", linewidth=1)
        deviation = math.sqrt(design.weight_variance()[CLIENT])
        axes.set_title(f"{label}, standard deviation {deviation:.3f}", loc="left", fontsize=9)
        axes.set(ylim=(0, 1), yticks=(0, 0.5, 1))
        axes.grid(visible=False, axis="x")
    panels[-1].set_xlabel("weight $w$ of a client with $p$ = 1/6 (dotted), $m$ = 4")
    figure.supylabel("chance", fontsize=9.5)
    return figure


def count_law(design: Design) -> np.ndarray:
    """Return the chance of every count of the client, from 0 up."""
    if isinstance(design, MultinomialDesign):
        shares = np.full(DRAWS, design.population.importance[CLIENT])
    elif isinstance(design, RowDesign):
        shares = design.plan.probabilities.toarray()[:, CLIENT]
    else:  # one of two neighbouring counts, by its mean
        low, share = divmod(float(design.expected_counts()[CLIENT]), 1.0)
        return np.concatenate([np.zeros(int(low)), [1 - share, share]])
    law = np.ones(1)
    for share in shares:  # independent rows: the law of a sum
        law = np.convolve(law, [1 - share, share])
    return law
