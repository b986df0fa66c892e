"""Building a run's first design before anything is trained: what cannot be built is said early."""

from __future__ import annotations

import numpy as np

from fedcohort.designs import Design
from fedcohort.designs.signals import PAST
from fedcohort.simulation.openings import request_of
from fedcohort.simulation.runs import Run
from fedcohort.streams import Stream, stream

#: What every asked client answers at a rehearsal: nobody is in a hurry, and all are alike.
ANSWERS = {"update_norm": 1.0, "loss": 1.0, "duration": 0.0}


def rehearse(run: Run) -> Design:
    """Build the first design of a run over all its clients, with made-up answers."""
    population, recipe = run.data.population, run.recipe
    signals = None
    if recipe.signals:
        never = np.full(population.n_clients, np.nan)
        signals = {str(name): never for name in PAST if name in recipe.signals}
        request = request_of(recipe, population, run.seed, 0, lower=False)
        if request is not None:
            signals[request.signal] = never.copy()
            signals[request.signal][request.clients] = ANSWERS[request.signal]
    rng = stream(run.seed, use=Stream.TIES)
    return recipe.build(population, None, signals, 0, rng)
