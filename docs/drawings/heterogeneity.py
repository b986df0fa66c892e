"""The aggregate's variance over multinomial sampling's, by how different the clients are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from fedcohort import Design, Population
from fedcohort.designs import (
    MultinomialDesign,
    PoissonDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    TournamentDesign,
    UniformDesign,
)
from fedcohort.synthetic import dirichlet_updates, unbalanced_sizes

ALPHAS, SEEDS, CLIENTS, DRAWS = (0.001, 0.01, 0.1, 1.0, 10.0), range(8), 100, 10
LABELS = {
    "uniform": "uniform, unbiased",
    "poisson": "coins",
    "size": "Algorithm 1",
    "similarity": "Algorithm 2",
    "tournament": "tournament",
}


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the mean and the range over seeds of generated federations."""
    figure = Figure(figsize=(5.2, 4.0))
    axes = figure.subplots()
    found = [[ratios(alpha, seed) for seed in SEEDS] for alpha in ALPHAS]
    for name, label in LABELS.items():
        values = np.array([[each[name] for each in seeds] for seeds in found])
        colour = colours[name]
        axes.fill_between(ALPHAS, values.min(1), values.max(1), color=colour, alpha=0.2, lw=0)
        axes.plot(ALPHAS, values.mean(1), color=colour, marker="o", markersize=4, label=label)
    axes.axhline(1.0, color=colours["multinomial"], linewidth=1.8, label="multinomial")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set(
        xlabel="clients differ  $\\longleftarrow$  $\\alpha$ of Dir($\\alpha$)  "
        "$\\longrightarrow$  clients are alike",
        ylabel="$V / V_{MD}$",
        ylim=(0, 1.4),
    )
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def ratios(alpha: float, seed: int) -> dict[str, float]:
    """Return V over multinomial sampling's for every design on one federation."""
    population = Population(unbalanced_sizes(CLIENTS, seed=seed))
    updates, rng = dirichlet_updates(CLIENTS, alpha=alpha, seed=seed), np.random.default_rng(seed)
    designs: dict[str, Design] = {
        "uniform": UniformDesign(population, DRAWS, unbiased=True),
        "poisson": PoissonDesign(population, DRAWS),
        "size": SizeClusteredDesign(population, DRAWS, rng=rng),
        "similarity": SimilarityClusteredDesign(population, DRAWS, updates, rng=rng),
        "tournament": TournamentDesign(population, DRAWS, updates, rng=rng),
    }
    plain = MultinomialDesign(population, DRAWS).aggregate_variance(updates)
    return {name: each.aggregate_variance(updates) / plain for name, each in designs.items()}
