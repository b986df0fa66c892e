"""Your own server loop, with numpy and nothing else.

A hundred clients of ten kinds fit one linear model, each to the line of its kind. The server draws
ten clients per round. One drawn client in twenty does not answer. Half-way through, the server
restarts and continues from a file. The table shows the mean squared error of the model above that
of the best model, over the second half of the rounds. Drawn by size alone (``multinomial``), some
kinds come twice and some not at all, and the error stays high. Clustering the clients by their
updates (``similarity``) finds the kinds: the error is less than half of that.

Run it as ``python examples/own_loop.py``: 3 seconds. Needs fedcohort without extras.
"""

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort import Multinomial, Recipe, Selector, SimilarityClustered, Uniform
from fedcohort.synthetic import unbalanced_sizes

CLIENTS, KINDS, INPUTS, DRAWS, ROUNDS = 100, 10, 20, 10, 200
#: The chance that a drawn client does not answer.
FAILING = 0.05

rng = np.random.default_rng(0)
sizes = unbalanced_sizes(CLIENTS, seed=0) // 10
lines = rng.standard_normal((KINDS, INPUTS))[np.arange(CLIENTS) % KINDS]
inputs = [rng.standard_normal((size, INPUTS)) for size in sizes]
outputs = [
    x @ line + 0.1 * rng.standard_normal(len(x)) for x, line in zip(inputs, lines, strict=True)
]
everything = np.concatenate(inputs), np.concatenate(outputs)
best = np.linalg.lstsq(*everything)[0]


def train(model: NDArray[np.floating], client: Any) -> NDArray[np.floating]:
    """Take five gradient steps on the client's samples; return its model minus the global one."""
    x, y, local = inputs[client], outputs[client], model.copy()
    for _ in range(5):
        local -= 0.05 * x.T @ (x @ local - y) / len(x)
    return local - model


def serve(recipe: Recipe) -> float:
    """Train by cohorts; return the error above the best, in the second half."""
    selector, model = Selector(recipe, sizes, seed=1), np.zeros(INPUTS)
    luck, errors = np.random.default_rng(2), []
    for round_ in range(ROUNDS):
        if round_ == ROUNDS // 2:  # the server is started again
            with TemporaryDirectory() as folder:
                selector.save(f"{folder}/state")
                selector = Selector.load(f"{folder}/state")
        answering = [client for client in selector.draw().ids if luck.random() > FAILING]
        model = model + selector.aggregate({client: train(model, client) for client in answering})
        errors.append(float(((everything[0] @ (model - best)) ** 2).mean()))
    return float(np.mean(errors[ROUNDS // 2 :]))


if __name__ == "__main__":
    print("design       error above the best model's")
    for recipe in (Multinomial(DRAWS), SimilarityClustered(DRAWS), Uniform(CLIENTS)):
        name = "everyone" if recipe.cohort_size == CLIENTS else recipe.name
        print(f"{name:12} {serve(recipe):.4f}")
