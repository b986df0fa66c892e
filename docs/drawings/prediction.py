"""The regression estimator: what it predicts of clients against what they send."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fedcohort import Difference, Multinomial, Regression, Selector

CLIENTS, DRAWS, ROUNDS, NUMBERS, NOISE = 200, 10, 60, 50, 1.0


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw one number of h against that of the next update, for both estimators."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((CLIENTS, 3))
    own = 0.5 * generator.standard_normal((CLIENTS, NUMBERS))
    usual = 1 + features @ generator.standard_normal((3, NUMBERS)) + own
    figure = Figure(figsize=(5.2, 3.0))
    settings = {
        "difference: the last update": (Difference(), colours["multinomial"]),
        "regression: the prediction": (Regression(features), colours["similarity"]),
    }
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for place, (name, (estimator, colour)) in zip(axes, settings.items(), strict=True):
        selector = Selector(Multinomial(DRAWS), [1] * CLIENTS, seed=0, estimator=estimator)
        noise = np.random.default_rng(1)
        for _ in range(ROUNDS):
            clients = selector.draw().clients
            sent = usual[clients] + NOISE * noise.standard_normal((len(clients), NUMBERS))
            selector.aggregate(sent)
        memory = selector.estimator
        if memory is None:
            raise RuntimeError("the estimator has learned nothing")
        update = usual + NOISE * noise.standard_normal(usual.shape)
        h = memory.of(np.arange(CLIENTS))
        centred = [each - each.mean(axis=0) for each in (update - h, update)]
        left = float((centred[0] ** 2).sum() / (centred[1] ** 2).sum())
        place.axline((0, 0), slope=1, color="0.6", lw=1)
        place.plot(update[:, 0], h[:, 0], "o", color=colour, markersize=2.5, alpha=0.7)
        place.set(title=f"{name}\n$V$ falls to {left:.2f}", xlabel="the update, one number of it")
    axes[0].set_ylabel("$h$")
    return figure
