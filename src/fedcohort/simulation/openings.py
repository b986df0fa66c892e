"""How a round begins: who is there, and who is asked for what."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from fedcohort.designs.recipe import Recipe
from fedcohort.designs.signals import ASKED, Request
from fedcohort.errors import DesignError, SimulationError
from fedcohort.population import Population
from fedcohort.simulation.cost import Times
from fedcohort.streams import Stream, stream

log = logging.getLogger(__name__)

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """How a round begins.

    Attributes
    ----------
    round_
        From 0.
    population
        Who can be drawn; None: nobody is there.
    request
        Who is asked for what before the draw; None: nobody.
    times
        How long clients take in this round.
    """

    round_: int
    population: Population | None
    request: Request | None
    times: Times


def request_of(
    recipe: Recipe, population: Population, seed: int, round_: int, *, lower: bool
) -> Request | None:
    """Let the recipe say whom of those who are there it asks; ``lower`` as in ``fitted_to``."""

    def asked_by(fitted: Recipe) -> Request | None:
        rng = stream(seed, round_=round_, use=Stream.CANDIDATES)
        return fitted.ask(population, round_, rng)

    request = fitted_to(recipe, population, asked_by, lower=lower)
    return None if request is None else _checked(recipe, request, population)


def fitted_to(
    recipe: Recipe, population: Population, make: Callable[[Recipe], Made], *, lower: bool
) -> Made:
    """Make something with a recipe.

    With ``lower``, where the recipe refuses because fewer clients are there than its cohort
    needs, make it with a cohort of all that are there.
    """
    n_there = int(np.count_nonzero(population.sizes))
    try:
        return make(recipe)
    except DesignError:
        if not lower or recipe.cohort_size <= n_there:
            raise
    log.info("%s: draws %d of %d, all that are there", recipe.name, n_there, recipe.cohort_size)
    return make(replace(recipe, cohort_size=n_there))


def _checked(recipe: Recipe, request: Request, population: Population) -> Request:
    """Let a request through that asks distinct clients that are there."""
    if not isinstance(request, Request):
        raise SimulationError(
            f"{recipe.name}: ask must return a Request or None; got {type(request).__name__}."
        )
    clients = np.asarray(request.clients)
    there = np.flatnonzero(population.sizes)
    fine = clients.ndim == 1 and np.isin(clients, there).all() and (np.diff(clients) > 0).all()
    if request.signal not in ASKED or not fine:
        raise SimulationError(
            f"{recipe.name}: must ask for one of {', '.join(ASKED)}, and sorted, distinct clients "
            f"that are available and have samples; got {request.signal!r} of {clients.tolist()}."
        )
    return Request(request.signal, clients.astype(np.int64))
