"""A server loop of one's own, with numpy and nothing else.

A hundred clients of ten kinds fit one linear model, each to the line of its kind; the server draws
ten clients a round. One sees the mean squared error of the model above that of the best model, over
the second half of the rounds. Drawn by size alone (``multinomial``), some kinds come twice and some
not at all, and the error stays high. Clustering the clients by their updates (``similarity``) finds
the kinds: the error is less than half of that.

Run it as ``python examples/own_loop.py``: a second. Needs fedcohort without extras.
"""

import numpy as np
from numpy.typing import NDArray

from fedcohort import Cohort, Multinomial, Population, Recipe, SimilarityClustered, aggregate
from fedcohort.similarity import UpdateMemory
from fedcohort.synthetic import unbalanced_sizes

CLIENTS, KINDS, INPUTS, DRAWS, ROUNDS = 100, 10, 20, 10, 100

rng = np.random.default_rng(0)
population = Population(unbalanced_sizes(CLIENTS, seed=0) // 10)
lines = rng.standard_normal((KINDS, INPUTS))[np.arange(CLIENTS) % KINDS]
inputs = [rng.standard_normal((size, INPUTS)) for size in population.sizes]
outputs = [
    x @ line + 0.1 * rng.standard_normal(len(x)) for x, line in zip(inputs, lines, strict=True)
]
everything = np.concatenate(inputs), np.concatenate(outputs)


def train(model: NDArray[np.floating], client: int) -> NDArray[np.floating]:
    """Take five gradient steps on the client's samples; return its model minus the global one."""
    x, y, local = inputs[client], outputs[client], model.copy()
    for _ in range(5):
        local -= 0.05 * x.T @ (x @ local - y) / len(x)
    return local - model


def serve(recipe: Recipe | None) -> float:
    """Train by cohorts, or by everyone; return the error above the best, in the second half."""
    model: NDArray[np.floating] = np.zeros(INPUTS)
    memory, rng = UpdateMemory(CLIENTS, INPUTS), np.random.default_rng(1)
    clients = np.arange(CLIENTS)
    cohort = Cohort.of_weights(clients, np.ones_like(clients), population.importance)
    best, errors = np.linalg.lstsq(*everything)[0], []
    for round_ in range(ROUNDS):
        if recipe is not None:
            cohort = recipe.build(population, memory, None, round_, rng).draw(rng)
        updates = [train(model, client) for client in cohort.clients]
        memory.record(cohort.clients, updates, round_=round_)
        model = aggregate(model, updates, cohort)
        errors.append(float(((everything[0] @ (model - best)) ** 2).mean()))
    return float(np.mean(errors[ROUNDS // 2 :]))


if __name__ == "__main__":
    print("design       error above the best model's")
    for recipe in (Multinomial(DRAWS), SimilarityClustered(DRAWS), None):
        print(f"{'everyone' if recipe is None else recipe.name:12} {serve(recipe):.4f}")
