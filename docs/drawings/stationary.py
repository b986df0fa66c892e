"""Where training ends up: the squared gradient of a quadratic federation, round by round."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Design, Population
from fedcohort.designs import MultinomialDesign, SimilarityClusteredDesign, TournamentDesign
from fedcohort.synthetic import clustered_updates, unbalanced_sizes

CLIENTS, DRAWS, RATE, ROUNDS, RUNS = 100, 10, 0.1, 80, 200
LABELS = {"multinomial": "multinomial", "similarity": "Algorithm 2", "tournament": "tournament"}


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the mean of many runs, and the value that theory gives for the end."""
    population = Population(unbalanced_sizes(CLIENTS, seed=0))
    points = clustered_updates(CLIENTS, seed=0).astype(np.float64)
    rng = np.random.default_rng(0)
    designs: dict[str, Design] = {
        "multinomial": MultinomialDesign(population, DRAWS),
        "similarity": SimilarityClusteredDesign(population, DRAWS, points, rng=rng),
        "tournament": TournamentDesign(population, DRAWS, points, rng=rng),
    }
    figure = Figure(figsize=(5.2, 3.7))
    axes = figure.subplots()
    for name, design in designs.items():
        axes.plot(gradients(design, points), color=colours[name], label=LABELS[name], lw=1.5)
        limit = RATE * design.aggregate_variance(points) / (2 - RATE)
        axes.axhline(limit, color=colours[name], linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set(xlabel="round", ylabel="squared gradient, mean of 200 runs", xlim=(0, ROUNDS))
    axes.text(ROUNDS, 0.95, "dashed: $\\eta V / (2 - \\eta)$", ha="right", va="top")
    axes.legend(loc="upper center")
    return figure


def gradients(design: Design, points: np.ndarray) -> np.ndarray:
    """Train from 1 away from the optimum, and return the squared gradient in every round."""
    rng = np.random.default_rng(1)
    best = design.population.importance @ points
    off = np.zeros((RUNS, points.shape[1]))
    off[:, 0] = 1.0
    squares = []
    for _ in range(ROUNDS + 1):
        squares.append(np.einsum("ij,ij->", off, off) / RUNS)
        aggregates = (design.draw_many(RUNS, rng) * design.weight_per_draw()) @ points
        off = (1 - RATE) * off + RATE * (aggregates - best)
    return np.array(squares)
