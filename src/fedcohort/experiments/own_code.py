"""Designs of a user's own: named by import path, ``module:Class`` or ``file.py:Class``."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isabstract
from pathlib import Path
from types import ModuleType
from typing import cast

from fedcohort.designs import RECIPES, Recipe, make_recipe, recipe_of
from fedcohort.errors import ExperimentError
from fedcohort.experiments.settings import DesignEntry, Experiment
from fedcohort.simulation import FederatedData


def own_files(entries: list[DesignEntry]) -> list[str]:
    """Return the Python files that these designs come from, as they are written."""
    files = (entry.recipe.rpartition(":")[0] for entry in entries)
    return sorted({file for file in files if file.endswith(".py")})


def check_designs(experiment: Experiment, folder: Path) -> None:
    """Refuse designs that cannot be made, before a run begins; own files lie in ``folder``."""
    for panel in experiment.panels:
        for entry in panel.design:
            kind = recipe_kind(entry, folder)
            recipe_of(kind, entry.draws(panel), entry.hyperparameters)


def make_own_recipe(
    entry: DesignEntry, cohort_size: int, data: FederatedData, folder: Path
) -> Recipe:
    """Make the recipe of an entry; files of the user's own lie in ``folder``.

    A recipe with a hyper-parameter ``groups`` is told the clients' main classes.
    """
    kind = recipe_kind(entry, folder)
    options = entry.hyperparameters
    if "groups" not in options and any(field.name == "groups" for field in fields(kind)):
        options["groups"] = tuple(data.main_class().tolist())
    return recipe_of(kind, cohort_size, options)


def recipe_kind(entry: DesignEntry, folder: Path) -> type[Recipe]:
    """Find the class that an entry names."""
    path, colon, name = entry.recipe.rpartition(":")
    if not colon:
        make_recipe(entry.recipe, 1, {})  # refuses unknown names
        return RECIPES[entry.recipe]
    module = _file(folder, path) if path.endswith(".py") else _module(path)
    kind = getattr(module, name, None)
    is_recipe = isinstance(kind, type) and issubclass(kind, Recipe)
    if is_recipe and is_dataclass(kind) and not isabstract(kind):
        return cast(type[Recipe], kind)
    raise ExperimentError(
        f"design {entry.recipe!r}: {name} must be a frozen dataclass derived from "
        f"fedcohort.Recipe; {path} has {'none of that name' if kind is None else repr(kind)}."
    )


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        raise ExperimentError(
            f"design {name!r}: cannot be imported ({type(error).__name__}: {error}). Install it, "
            f"or name its file as my_design.py:MyRecipe."
        ) from error


def own_file(folder: Path, path: str) -> Path:
    """Return the file beside the experiment, or in the ``code`` of the run that it comes from."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ExperimentError(
            f"design file {path}: must lie beside or below the experiment file, which names it "
            f"from there. Copy it."
        )
    kept = folder / "code" / path
    return kept if kept.is_file() and not (folder / path).is_file() else folder / path


def _file(folder: Path, name: str) -> ModuleType:
    """Import a file by its path, once."""
    path = own_file(folder, name)
    module_name = (
        f"fedcohort_own_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    )
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ExperimentError(f"design file {path}: is not there. Put it beside the experiment.")
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ExperimentError(
            f"design file {path}: cannot be imported ({type(error).__name__}: {error}). Mend it."
        ) from error
    return module
