"""Designs as experiment files name them: those of the library, and a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from inspect import isabstract
from pathlib import Path
from typing import cast

from fedcohort.designs import RECIPES, Recipe, make_recipe, recipe_of
from fedcohort.errors import ExperimentError, FedcohortError
from fedcohort.experiments.data_settings import KEPT, device_file, device_files
from fedcohort.experiments.own_code import own_file, own_files, own_function, own_object
from fedcohort.experiments.settings import DesignEntry, Experiment, Setting


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


def check_parts(experiment: Experiment, folder: Path) -> None:
    """Refuse what cannot be made, before a run begins; files lie in ``folder``."""
    for panel in experiment.panels:
        for entry in panel.design:
            _check_design(entry, entry.draws(panel), folder)
        for what, name in _functions(panel):
            own_function(what, name, folder)
    for file in device_files([panel.devices for panel in experiment.panels]):
        device_file(folder, file)


def _check_design(entry: DesignEntry, cohort_size: int, folder: Path) -> None:
    kind = recipe_kind(entry, folder)
    try:
        recipe_of(kind, cohort_size, entry.hyperparameters)
    except FedcohortError:
        raise
    except Exception as error:
        raise ExperimentError(
            f"design {entry.recipe!r}: cannot be made ({type(error).__name__}: {error}). Mend it."
        ) from error


def part_files(experiment: Experiment, folder: Path) -> list[tuple[Path, Path]]:
    """Return the files in ``folder`` that a run keeps, and where in its own folder."""
    named = [("design", e.recipe) for panel in experiment.panels for e in panel.design]
    named += [part for panel in experiment.panels for part in _functions(panel)]
    found = {
        file: own_file(what, folder, file) for what, name in named for file in own_files([name])
    }
    files = [(path, Path("code") / file) for file, path in sorted(found.items())]
    tables = device_files([panel.devices for panel in experiment.panels])
    return files + [(device_file(folder, file), Path(KEPT) / file) for file in tables]


def _functions(panel: Setting) -> Iterator[tuple[str, str]]:
    """Return the functions of the user's own that a panel names, and what they are for."""
    for what, name in (("data set", panel.data.dataset), ("model", panel.model.name)):
        if ":" in name:
            yield what, name
