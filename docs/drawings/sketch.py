"""What sketches cost: the variance of trees that were built on them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Population
from fedcohort.designs import MultinomialDesign, TournamentDesign
from fedcohort.memory import CountSketch
from fedcohort.synthetic import clustered_updates, dirichlet_updates, unbalanced_sizes

CLIENTS, DRAWS, DIMENSION, SEEDS = 100, 10, 5000, range(5)
NUMBERS = (4, 8, 16, 32, 64, 128, 256)


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw V of the tournament on the true updates, with a tree of sketches of them."""
    federations = {"tournament": "ten clusters", "size": "Dir(0.1)"}
    figure = Figure(figsize=(5.2, 3.6))
    axes = figure.subplots()
    for name, label in federations.items():
        found = np.array([ratios(seed, clustered=name == "tournament") for seed in SEEDS])
        values, whole = found[:, :-1], found[:, -1].mean()
        axes.fill_between(
            NUMBERS, values.min(0), values.max(0), color=colours[name], alpha=0.2, lw=0
        )
        axes.plot(
            NUMBERS, values.mean(0), color=colours[name], marker="o", markersize=4, label=label
        )
        axes.axhline(whole, color=colours[name], linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(NUMBERS, [str(number) for number in NUMBERS])
    axes.set(
        xlabel="numbers kept of an update of 5000 (dashed: all)",
        ylabel="$V / V_{MD}$ of the tournament",
        ylim=(0, 1),
    )
    axes.legend()
    return figure


def ratios(seed: int, *, clustered: bool) -> list[float]:
    """Return V over multinomial sampling's for every size of a sketch, and for whole updates."""
    population = Population(unbalanced_sizes(CLIENTS, seed=seed))
    if clustered:
        updates = clustered_updates(CLIENTS, seed=seed, dimension=DIMENSION)
    else:
        updates = dirichlet_updates(CLIENTS, alpha=0.1, seed=seed, dimension=DIMENSION)
    known = [CountSketch(DIMENSION, number, seed=seed)(updates) for number in NUMBERS]
    plain = MultinomialDesign(population, DRAWS).aggregate_variance(updates)
    rng = np.random.default_rng(seed)
    designs = [TournamentDesign(population, DRAWS, each, rng=rng) for each in [*known, updates]]
    return [design.aggregate_variance(updates) / plain for design in designs]
