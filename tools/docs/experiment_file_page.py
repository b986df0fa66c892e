"""The keys of an experiment file, as its models know them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docstring_entries import as_markdown, entries
from fedcohort.experiments.data_settings import GeneratedDevices
from fedcohort.experiments.settings import (
    KINDS,
    DesignEntry,
    Experiment,
    OwnModel,
    Panel,
    Server,
    Training,
)
from fedcohort.memory import Difference
from fedcohort.simulation import Devices, LocalTraining, Options

#: The tables of a file, and what each can be.
TABLES: dict[str, tuple[type[BaseModel], ...]] = {
    "[data]": tuple(KINDS["data"][1].values()),
    "[model]": (*KINDS["model"][1].values(), OwnModel),
    "[training]": (Training,),
    "[server]": (Server,),
    "[devices]": tuple(KINDS["devices"][1].values()),
    "[[design]]": (DesignEntry,),
}
#: Keys that are described where the simulator has them.
ELSEWHERE: Mapping[type[BaseModel], object] = {
    Training: LocalTraining,
    Server: Options,
    GeneratedDevices: Devices.generated,
    DesignEntry: Difference,
}


def settings() -> str:
    """Return a section for every table of a file."""
    tables = tuple(title.strip("[]") for title in TABLES)
    top = [*_rows(Experiment, leave_out=("name", "panels")), *_rows(Panel, leave_out=tables)]
    parts = ["## The top of the file", "\n".join([*_head(), *top])]
    for title, models in TABLES.items():
        parts.append(f"## `{title}`")
        for model in models:
            parts += [_introduction(model), "\n".join([*_head(), *_rows(model)])]
    return "\n\n".join(parts)


def _head() -> list[str]:
    return ["{.settings}", "| key | value | default | meaning |", "| --- | --- | --- | --- |"]


def _introduction(model: type[BaseModel]) -> str:
    """Return what a model's docstring says before its sections."""
    text = inspect.cleandoc(model.__doc__ or "").split("\nAttributes\n")[0]
    return as_markdown(text.strip())


def _rows(model: type[BaseModel], leave_out: tuple[str, ...] = ()) -> list[str]:
    schemas = model.model_json_schema()["properties"]
    rows = []
    for key, field in model.model_fields.items():
        if key not in leave_out:
            cells = (f"`{key}`", words(schemas[key]), _default(field), meaning(model, key))
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    if field.default is None or isinstance(field.default, BaseModel):
        return ""
    shown = repr(field.default).replace("'", '"')
    return f"`{ {'True': 'true', 'False': 'false'}.get(shown, shown) }`"


def meaning(model: type[BaseModel], key: str) -> str:
    """Return what a docstring says of a key.

    >>> meaning(Training, "mu")
    'FedProx: adds `mu / 2` times the squared distance to the global model to the loss.'
    """
    for owner in (*model.__mro__, ELSEWHERE.get(model)):
        if key in entries(owner):
            return entries(owner)[key]
    raise LookupError(f"no docstring says what {key} of {model.__name__} is")


def words(schema: Mapping[str, Any]) -> str:
    """Say in words what a value can be.

    >>> words({"type": "integer", "minimum": 1})
    'whole number, at least 1'
    >>> words({"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}}]})
    'number; or list of number'
    """
    if "anyOf" in schema:
        return "; or ".join(words(each) for each in schema["anyOf"] if each != {"type": "null"})
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if "enum" in schema:
        return " or ".join(f'`"{value}"`' for value in schema["enum"])
    if "$ref" in schema or "oneOf" in schema or "discriminator" in schema:
        return "a table"
    if schema["type"] == "array":
        return f"list of {words(schema['items'])}"
    names = {"integer": "whole number", "boolean": "true or false", "string": "text"}
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
    }
    bounds = [f"{word} {schema[key]:g}" for key, word in limits.items() if key in schema]
    return ", ".join([names.get(schema["type"], schema["type"]), *bounds])
