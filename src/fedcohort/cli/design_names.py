"""Designs as they are written on the command line: ``size:whole_rows_first,multinomial``."""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from fedcohort.cli.sizes_file import Federation
from fedcohort.designs import RECIPES, Design, make_recipe
from fedcohort.designs.chosen import ChosenDesign
from fedcohort.designs.recipe import Memory
from fedcohort.errors import InputError
from fedcohort.streams import Stream, stream

#: What help says of designs; hyper-parameters are those of the recipes.
DESIGN_LINES = (
    f"Designs: {', '.join(RECIPES)}.",
    "Hyper-parameters follow a colon: size:whole_rows_first, similarity:measure=l2.",
    "",
)


def build_design(
    spec: str,
    federation: Federation,
    cohort_size: int,
    seed: int,
    *,
    memory: Memory | None = None,
) -> Design:
    """Build the design that ``name[:key[=value]]...`` asks for; learners read ``memory``."""
    name, *pairs = spec.strip().split(":")
    options: dict[str, object] = {}
    for pair in pairs:
        key, given, value = pair.partition("=")
        options[key.strip()] = _value(value.strip()) if given else True
    if name in RECIPES and any(field.name == "groups" for field in fields(RECIPES[name])):
        if not federation.groups:
            raise InputError(
                f"design {name!r}: needs the group of every client; {federation.source} gives "
                f"none. Add a column group."
            )
        if "groups" in options:
            raise InputError(
                f"design {name!r}: groups come from {federation.source}. Drop the key."
            )
        options["groups"] = federation.groups
    recipe = make_recipe(name, cohort_size, options)
    rng = stream(seed, use=Stream.TIES)
    signals = None
    if memory is not None and "update_norm" in recipe.signals:
        signals = {"update_norm": np.linalg.norm(memory.updates.astype(np.float64), axis=1)}
    return recipe.build(federation.population, memory=memory, signals=signals, round_=0, rng=rng)


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
