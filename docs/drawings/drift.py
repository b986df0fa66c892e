"""Objective drift: the largest clients come most rarely; with correction and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Selector, Uniform

#: Ten clients; a client's optimum is its place, and the largest come most rarely.
OPTIMA = np.linspace(-1, 1, 10)
SIZES = np.arange(1, 11)
CHANCES = np.linspace(0.9, 0.1, 10)
DRAWS, RATE, ROUNDS, RUNS = 4, 0.06, 200, 10
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "ignore": ("multinomial", {}),
    "estimated": ("similarity", {"presence": "estimated"}),
    "estimated, cutoff 5": ("tournament", {"presence": "estimated", "interval_cutoff": 5}),
    "known": ("size", {"presence": "known", "chances": CHANCES}),
}


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the mean model of many runs, and the optimum of all clients."""
    figure = Figure(figsize=(5.2, 3.6))
    axes = figure.subplots()
    best = SIZES / SIZES.sum() @ OPTIMA
    axes.axhline(best, color="black", linestyle="--", linewidth=1)
    axes.text(ROUNDS, best + 0.1, "optimum of all clients", ha="right")
    for label, (colour, settings) in LINES.items():
        axes.plot(models(settings).mean(axis=0), color=colours[colour], label=label, lw=1.6)
    axes.set(xlabel="round", ylabel="model, mean of 10 runs", xlim=(0, ROUNDS), ylim=(-0.6, 0.6))
    axes.legend(loc="lower right", title="presence")
    return figure


def models(settings: dict[str, Any]) -> np.ndarray:
    """Train from -0.5 on; return all models, shape (runs, rounds + 1)."""
    found = np.full((RUNS, ROUNDS + 1), -0.5)
    for run in range(RUNS):
        coins = np.random.default_rng([run, 1]).random((ROUNDS, len(SIZES))) < CHANCES
        recipe = Uniform(DRAWS, unbiased=True)
        selector = Selector(recipe, SIZES, seed=run, **settings)
        for round_, there in enumerate(coins):
            # Mostly fewer than four are there: all of them train.
            cohort, model = selector.draw(there), found[run, round_]
            step = cohort.weights @ (RATE * (OPTIMA[cohort.clients] - model))
            found[run, round_ + 1] = model + step
            selector.skip(answered=cohort.ids)
    return found
