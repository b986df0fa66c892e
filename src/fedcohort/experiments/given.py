"""The experiment of a study: objects given in Python, written as an experiment file.

Data, models and recipes of the user's own become files in the same folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w

from fedcohort._arguments import brief, checked_kind, is_list
from fedcohort._fields import settings_of
from fedcohort.designs import RECIPES, Recipe
from fedcohort.designs.catalogue import named_recipe, text_of
from fedcohort.errors import ExperimentError
from fedcohort.experiments.checked_table import COUNT
from fedcohort.experiments.experiment_file import LARGEST_SEED_LIST
from fedcohort.experiments.own_code import (
    OBJECTS,
    SAMPLES,
    GivenModel,
    part_files,
    write_objects,
)
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.settings import Experiment, Panel
from fedcohort.memory import EstimatorSettings
from fedcohort.simulation import Dataset, FederatedData, LocalTraining
from fedcohort.simulation.engine.models import ModelSource

#: A design: its name, a recipe, or a table as ``[[design]]`` in an experiment file.
Asked = str | Recipe | Mapping[str, Any]
#: The name of a study's files, and of its experiment: studies of one name can be merged.
NAME = "study"


class GivenParts:
    """The files of a study: an experiment file, its objects and its samples."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._objects: dict[str, object] = {}
        self._samples: dict[str, FederatedData] = {}

    def experiment_file(
        self,
        designs: object,
        data: object,
        model: object,
        training: object,
        seeds: object,
        cohort_size: object,
        panels: object,
        given: Mapping[str, Any],
    ) -> Path:
        """Write all files; return the experiment file."""
        entries = _listed(designs)
        size = _cohort_size(entries) if cohort_size is None else cohort_size
        size = COUNT.checked("study", "cohort_size", size, error=ExperimentError)
        content = {
            **given,
            "seeds": _seeds(seeds),
            "cohort_size": size,
            "data": self._data(data),
            "model": self._model(model),
            "training": _record(training, LocalTraining),
            "panel": self._panels(panels),
        }
        content["design"] = [self._design(label, each, size) for label, each in entries]
        file = self._home / f"{NAME}.toml"
        try:
            file.write_text(tomli_w.dumps(_plain(content)), encoding="utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise ExperimentError(
                f"study: values must be numbers, texts, truth values, lists or tables; got another "
                f"({error}). See the reference of experiment files."
            ) from error
        if self._objects:
            self._write_objects()
        return file

    def _write_objects(self) -> None:
        try:
            write_objects(self._home / f"{NAME}{OBJECTS}", self._objects)
        except Exception as error:  # whatever the objects' own code raises
            names = ", ".join(name.rstrip("0123456789") for name in self._objects)
            raise ExperimentError(
                f"study: the {names} cannot be pickled ({type(error).__name__}: {error}). Make "
                f"what does not fit inside its function."
            ) from error

    def _kept(self, name: str, value: object) -> str:
        """Keep an object; return its name in the experiment file."""
        self._objects[name] = value
        return f"{NAME}{OBJECTS}:{name}"

    def _data(self, data: object) -> dict[str, Any]:
        if isinstance(data, FederatedData):
            return {"dataset": self._saved(data), "partition": "natural"}
        if not isinstance(data, Mapping):
            raise ExperimentError(
                f"study: data must be a FederatedData or a table; got {brief(data)}. Pass for "
                f"example FederatedData.from_arrays(x, y, clients), or {{'dataset': 'digits', "
                f"'partition': 'iid'}}."
            )
        table = dict(data)
        source = table.get("dataset")
        if isinstance(source, Dataset):
            train, test = np.arange(len(source.y)), np.arange(len(source.test_y))
            source = FederatedData(source, (train,), (test,))  # the partition divides it
        if isinstance(source, FederatedData):
            table["dataset"] = self._saved(source)
        _refuse_files("data", source, "a Dataset")
        return table

    def _saved(self, data: FederatedData) -> str:
        """Write samples once; return their file's name."""
        for name, known in self._samples.items():
            if known is data:
                return name
        name = f"{NAME}{len(self._samples) or ''}{SAMPLES}"
        self._samples[name] = data
        data.save(self._home / name)
        return name

    def _model(self, model: object) -> dict[str, Any]:
        if isinstance(model, Mapping):
            _refuse_files("model", model.get("name"), "the function itself")
            return dict(model)
        if isinstance(model, str):
            _refuse_files("model", model, "the function itself")
            return {"name": model}
        if not callable(model):
            raise ExperimentError(
                f"study: model must be a function, an nn.Module, a name or a table; got "
                f"{brief(model)}. Pass for example lambda: mlp(64)."
            )
        return {"name": self._kept("model", GivenModel(cast(ModelSource, model)))}

    def _panels(self, panels: object) -> list[dict[str, Any]] | None:
        if panels is None:
            return None
        if not isinstance(panels, Mapping) or not panels:
            raise ExperimentError(
                f"study: panels must be a mapping from labels to what they change; got "
                f"{brief(panels)}. Pass for example {{'alike': {{'data': {{'alpha': 10.0}}}}}}."
            )
        found = []
        for label, changes in panels.items():
            changes = checked_kind(
                "study", f"panels[{label!r}]", changes, dict, way_out="Pass a dict of changes.",
                error=ExperimentError,
            )  # fmt: skip
            panel = {"label": label, **changes}
            if "data" in panel:
                panel["data"] = self._data(panel["data"])
            if "training" in panel:
                panel["training"] = _record(panel["training"], LocalTraining)
            found.append(panel)
        return found

    def _design(self, label: str | None, given: Asked, cohort_size: int) -> dict[str, Any]:
        """Return a design as a table; ``cohort_size`` is that of the others."""
        table = dict(given) if isinstance(given, Mapping) else {"recipe": given}
        recipe = table.pop("recipe", None)
        if isinstance(recipe, str):
            own = _recipe_table(named_recipe(recipe, 1))
        elif isinstance(recipe, Recipe):
            own = _recipe_table(recipe) or self._own_recipe(recipe)
            if recipe.cohort_size != cohort_size:
                own["cohort_size"] = recipe.cohort_size
        else:
            raise ExperimentError(
                f"study: a design must be a name, a recipe, or a table with the key 'recipe'; got "
                f"{brief(given)}. Pass for example 'size' or SizeClustered(10)."
            )
        estimator = table.get("estimator")
        if isinstance(estimator, EstimatorSettings):
            own |= _estimator_table(estimator)
            del table["estimator"]
        return {**own, **table, **({} if label is None else {"label": label})}

    def _own_recipe(self, recipe: Recipe) -> dict[str, Any]:
        name = self._kept(f"design{len(self._objects)}", recipe)
        return {"recipe": name, "label": text_of(recipe).replace(":", " ")}


def _recipe_table(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe of the library as a table without its cohort size; empty if it has none."""
    own = {each.name: getattr(recipe, each.name) for each in fields(recipe)}
    changed = {
        each.name: own[each.name]
        for each in fields(recipe)
        if each.name != "cohort_size" and own[each.name] != each.default
    }
    is_ours = type(recipe) is RECIPES.get(recipe.name)
    if not is_ours or not all(isinstance(value, (int, float, str)) for value in changed.values()):
        return {}
    return {"recipe": recipe.name, **changed}


def _estimator_table(settings: EstimatorSettings) -> dict[str, Any]:
    """Return an estimator as keys of a design."""
    found: dict[str, Any] = {"estimator": type(settings).__name__.lower()}
    for name, setting in settings_of(type(settings)).items():
        value = getattr(settings, name)
        if value is None or isinstance(value, (int, float, str)):
            if value != setting.default:
                found[name] = "none" if value is None else value
        else:
            raise ExperimentError(
                f"study: {name} of an estimator must be a word or a number; got {brief(value)}. "
                f"Pass for example Regression(features='classes')."
            )
    return found


def _listed(designs: Any) -> list[tuple[str | None, Asked]]:
    """Return the designs with their labels; None for those without."""
    if isinstance(designs, str):
        designs = [each for each in designs.split(",") if each.strip()]
    elif isinstance(designs, Recipe) or (isinstance(designs, Mapping) and "recipe" in designs):
        designs = [designs]
    if isinstance(designs, Mapping):
        return list(designs.items())
    if not is_list(designs) or not (found := list(designs)):
        raise ExperimentError(
            f"study: designs must be names or recipes; got {brief(designs)}. Pass for example "
            f"['multinomial', SizeClustered(10)]."
        )
    return [(None, each) for each in cast(list[Asked], found)]


def _cohort_size(entries: list[tuple[str | None, Asked]]) -> int:
    """Return the cohort size of the first recipe; 10 if there are only names."""
    given = [each.get("recipe") if isinstance(each, Mapping) else each for _, each in entries]
    return next((each.cohort_size for each in given if isinstance(each, Recipe)), 10)


def _seeds(seeds: object) -> object:
    """Return the seeds from 0 for a number of them; return other values unchanged."""
    if isinstance(seeds, bool) or not isinstance(seeds, (int, np.integer)):
        return seeds
    if not 1 <= seeds <= LARGEST_SEED_LIST:
        raise ExperimentError(
            f"study: seeds must be their number, from 1 to {LARGEST_SEED_LIST}, or a list; got "
            f"{brief(seeds)}. Pass for example 3."
        )
    return list(range(int(seeds)))


def _record(given: object, kind: type) -> object:
    """Return a record of settings as a table."""
    return asdict(cast(Any, given)) if isinstance(given, kind) else given


def _refuse_files(what: str, name: object, instead: str) -> None:
    if isinstance(name, str) and (":" in name or name.endswith((SAMPLES, OBJECTS))):
        raise ExperimentError(
            f"study: {what} must not name a file; got {brief(name)}. Import it and pass {instead}."
        )


def _plain(value: Any) -> Any:
    """Return tables and lists in Python's own types, without what is None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple, range)):
        return [_plain(each) for each in value]
    return value


def check_same(folder: RunFolder, experiment: Experiment, home: Path) -> None:
    """Refuse a run folder of another study."""
    pairs = zip(folder.experiment.panels, experiment.panels, strict=False)
    differ = [
        name
        for one, other in pairs
        for name in Panel.known_keys()
        if getattr(one, name) != getattr(other, name)
    ]
    if not differ and folder.experiment != experiment:
        differ = ["panels or title"]
    for path, place in [] if differ else part_files(experiment, home):
        kept = folder.path / place
        if not kept.is_file() or kept.read_bytes() != path.read_bytes():
            differ.append("data" if path.suffix == SAMPLES else "model or a design of yours")
    if differ:
        raise ExperimentError(
            f"{folder.path}: holds another study; {differ[0]} differs. Choose another folder, or "
            f"read it with Study.open."
        )
