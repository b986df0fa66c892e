"""Designs as experiment files name them: those of the library, and a user's own."""

from __future__ import annotations

from dataclasses import is_dataclass
from inspect import isabstract
from pathlib import Path
from typing import cast

from fedcohort.designs import RECIPES, Recipe, make_recipe, recipe_of
from fedcohort.errors import ExperimentError
from fedcohort.experiments.own_code import own_object
from fedcohort.experiments.settings import DesignEntry


def make_own_recipe(entry: DesignEntry, cohort_size: int, folder: Path) -> Recipe:
    """Make the recipe of an entry; files of the user's own lie in ``folder``."""
    return recipe_of(recipe_kind(entry, folder), cohort_size, entry.hyperparameters)


def recipe_kind(entry: DesignEntry, folder: Path) -> type[Recipe]:
    """Find the class that an entry names."""
    path, colon, name = entry.recipe.rpartition(":")
    if not colon:
        make_recipe(entry.recipe, 1, {})  # refuses unknown names
        return RECIPES[entry.recipe]
    kind = own_object("design", entry.recipe, folder)
    is_recipe = isinstance(kind, type) and issubclass(kind, Recipe)
    if is_recipe and is_dataclass(kind) and not isabstract(kind):
        if not isinstance(getattr(kind, "name", None), str):
            raise ExperimentError(
                f"design {entry.recipe!r}: {name} needs a name: ClassVar[str]; got none. Give it "
                f"one."
            )
        return cast(type[Recipe], kind)
    raise ExperimentError(
        f"design {entry.recipe!r}: {name} must be a frozen dataclass derived from "
        f"fedcohort.Recipe; {path} has {'none of that name' if kind is None else repr(kind)}."
    )
