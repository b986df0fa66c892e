"""The keys of an experiment file, as its models know them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from docstrings import as_markdown, entries
from fedcohort.experiments.checked_table import PLAIN, Need, Table
from fedcohort.experiments.data_settings import GeneratedDevices
from fedcohort.experiments.settings import KINDS, DesignEntry, Experiment, Panel
from fedcohort.experiments.training_settings import OwnModel, Server, Training
from fedcohort.memory import Difference
from fedcohort.simulation import Devices, LocalTraining, Options

#: The tables of a file, and what each can be.
TABLES: dict[str, tuple[type[Table], ...]] = {
    "[data]": tuple(KINDS["data"].kinds.values()),
    "[model]": (*KINDS["model"].kinds.values(), OwnModel),
    "[training]": (Training,),
    "[server]": (Server,),
    "[devices]": tuple(KINDS["devices"].kinds.values()),
    "[[design]]": (DesignEntry,),
}
#: Keys that are described where the simulator has them.
ELSEWHERE: Mapping[type[Table], object] = {
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
    return ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]


def _introduction(model: type[Table]) -> str:
    """Return what a model's docstring says before its sections."""
    text = inspect.cleandoc(model.__doc__ or "").split("\nAttributes\n")[0]
    return as_markdown(text.strip())


def _rows(model: type[Table], leave_out: tuple[str, ...] = ()) -> list[str]:
    hints = get_type_hints(model, include_extras=True)
    rows = []
    for field in fields(model):
        key = field.name
        if key in model.known_keys() and key not in leave_out:
            cells = (f"`{key}`", words(hints[key]), _default(field), meaning(model, key))
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _default(field: Field[Any]) -> str:
    made = field.default if field.default_factory is MISSING else field.default_factory()
    if made is MISSING:
        return "needed"
    if made is None or isinstance(made, Table):
        return ""
    shown = repr(made).replace("'", '"')
    return f"`{ {'True': 'true', 'False': 'false'}.get(shown, shown) }`"


def meaning(model: type[Table], key: str) -> str:
    """Return what a docstring says of a key.

    >>> meaning(Training, "mu")
    'FedProx: adds `mu / 2` times the squared distance to the global model to the loss.'
    """
    for owner in (*model.__mro__, ELSEWHERE.get(model)):
        if key in entries(owner):
            return entries(owner)[key]
    if key in {kinds.key for kinds in KINDS.values()}:
        return "Selects this kind of table."
    raise LookupError(f"no docstring says what {key} of {model.__name__} is")


def words(hint: Any) -> str:
    """Say in words what a value can be.

    >>> from fedcohort.experiments.checked_table import Count, Grid
    >>> words(Count | None)
    'whole number from 1 to 10^9'
    >>> words(Grid)
    'finite number; or list of finite number'
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return "; or ".join(words(each) for each in inside if each is not NoneType)
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in inside)
    if origin is list:
        return f"list of {words(inside[0])}"
    if origin is Annotated and get_origin(inside[0]) is list and inside[1].high > 2:
        return words(inside[0])
    need = inside[1] if origin is Annotated else PLAIN.get(hint)
    return need.words.removeprefix("a ") if isinstance(need, Need) else "a table"
