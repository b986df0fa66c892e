"""Designs as they are written on the command line: ``size:whole_rows_first,multinomial``."""

from collections.abc import Mapping

import numpy as np

from fedcohort.cli.sizes_file import Federation
from fedcohort.cli.updates_file import GivenUpdates
from fedcohort.designs import RECIPES, Design, make_recipe
from fedcohort.designs.chosen import ChosenDesign
from fedcohort.errors import InputError
from fedcohort.selector import Selector

#: What help says of designs; hyper-parameters are those of the recipes.
DESIGN_LINES = (
    f"Designs: {', '.join(RECIPES)}.",
    "Hyper-parameters follow a colon: size:whole_rows_first, similarity:measure=l2.",
    "",
)


def selector_of(spec: str, federation: Federation, cohort_size: int, seed: int) -> Selector:
    """Make a selector of the design that ``name[:key[=value]]...`` asks for."""
    name, *pairs = spec.strip().split(":")
    options: dict[str, object] = {}
    for pair in pairs:
        key, given, value = pair.partition("=")
        options[key.strip()] = _value(value.strip()) if given else True
    recipe = make_recipe(name, cohort_size, options)
    if recipe.grouped and federation.population.groups is None:
        raise InputError(
            f"design {name!r}: needs the group of every client; {federation.source} gives none. "
            f"Add a column group."
        )
    return Selector(recipe, federation.population, seed=seed)


def next_design(selector: Selector, given: GivenUpdates | None = None) -> Design:
    """Build the first round's design; where updates are given, from them and their norms."""
    if given is None:
        return selector.next_design()
    signals = None
    if "update_norm" in selector.recipe.signals:
        signals = {"update_norm": np.linalg.norm(given.updates.astype(np.float64), axis=1)}
    return selector.next_design(signals, memory=given)


def notes_on(designs: Mapping[str, Design]) -> list[str]:
    """Return a sentence for every design whose numbers are those of one round only."""
    return [
        f"{spec}: chooses anew in every round, and these numbers are those of one cohort, certain "
        f"once it is chosen; fedcohort.diagnostics.estimated_bias measures many rounds."
        for spec, design in designs.items()
        if isinstance(design, ChosenDesign)
    ]


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
