"""Designs over a population that changes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from logging import getLogger
from typing import final

from fedcohort.designs import Design, Recipe, RowDesign, Stratified, Target
from fedcohort.designs.signals import Signals
from fedcohort.flower.failures import check_draws, check_redraw
from fedcohort.flower.keyed_memory import KeyedMemory
from fedcohort.population import Population
from fedcohort.streams import Stream, stream

log = getLogger("flwr.fedcohort")

#: Recipes that name the group of every client.
Grouped = (Target, Stratified)
#: The group of clients that have none: no group of a recipe is equal to it.
LATER = object()


@final
class Planner:
    """Builds a recipe's design whenever something changed.

    Parameters
    ----------
    recipe, seed
        What to build, and the seed of the order of equals.
    extra
        Draws beyond the recipe's cohort size.
    needs_equal_draws
        Whether to refuse designs whose draws weigh differently.
    max_draws
        How often a client may be drawn in a round; None for any number.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        seed: int,
        extra: int = 0,
        needs_equal_draws: bool = False,
        max_draws: int | None = None,
    ) -> None:
        self._recipe, self._seed, self._extra = recipe, seed, extra
        self._needs_equal_draws, self._max_draws = needs_equal_draws, max_draws
        self._last: Design | None = None
        self._group_of: dict[str, Hashable] = {}

    def design(
        self,
        population: Population,
        memory: KeyedMemory | None,
        signals: Signals | None,
        number: int,
    ) -> Design:
        """Build the design of a round over the clients that are there."""
        keys = [str(key) for key in population.ids]
        recipe = replace(self._recipe, cohort_size=self._draws(population, number))
        if isinstance(recipe, Grouped) and self._last is not None:
            recipe = self._regrouped(recipe, keys)
        design = recipe.build(
            population,
            None if memory is None else memory.of(keys),
            signals,
            number,
            stream(self._seed, round_=number, use=Stream.TIES),
        )
        if self._needs_equal_draws:
            check_redraw(design)
        if self._max_draws is not None:
            check_draws(design, self._max_draws)
        if isinstance(recipe, Grouped):
            self._group_of |= dict(zip(keys, recipe.groups, strict=True))
        self._last = design
        return design

    def _draws(self, population: Population, number: int) -> int:
        """Return how many draws there are: after the first design no more than clients allow."""
        draws = self._recipe.cohort_size + self._extra
        left = int((population.sizes > 0).sum())
        if self._last is None or isinstance(self._last, RowDesign) or draws <= left:
            return draws
        log.warning("round %d: only %d clients are left for %d draws", number, left, draws)
        return left

    def _regrouped(self, recipe: Target | Stratified, keys: list[str]) -> Recipe:
        """Let groups follow their clients; clients that came later are a group of their own."""
        if strangers := [key for key in keys if key not in self._group_of]:
            log.warning("clients that came later are one group: %.200s", strangers)
        return replace(recipe, groups=tuple(self._group_of.get(key, LATER) for key in keys))
