"""What earlier rounds told the server of its clients, for recipes that ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs.recipe import Recipe
from fedcohort.designs.signals import PAST


@final
class PastSignals:
    """One number per client for each past signal that the recipe declares; NaN before the first.

    ``past_loss`` is the root of the mean squared loss over *all* of the client's samples, dropout
    off, under the model that it was sent. With epochs these are the samples that it trained on;
    with steps those are a random part of them. The losses that a real client would report come up
    during training, under a model that has moved a little: these need no second definition for
    every kind of training, and one forward pass.
    """

    def __init__(self, recipe: Recipe, n_clients: int) -> None:
        declared = [name for name in PAST if name in recipe.signals]
        self._kept = {str(name): np.full(n_clients, np.nan) for name in declared}

    @property
    def wants_loss(self) -> bool:
        """Whether clients are to report their losses."""
        return "past_loss" in self._kept

    def values(self) -> dict[str, NDArray[np.float64]]:
        """Return copies of what is known now, by name."""
        return {name: values.copy() for name, values in self._kept.items()}

    def record(
        self, clients: NDArray[np.int64], heard: Mapping[str, NDArray[np.float64] | float | None]
    ) -> None:
        """Note what a round's drawn clients told, by name."""
        for name, kept in self._kept.items():
            kept[clients] = heard[name]

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept."""
        return dict(self._kept)

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        self._kept = {name: state[name].astype(np.float64) for name in self._kept}
