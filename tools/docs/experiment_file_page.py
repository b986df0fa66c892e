"""The keys of an experiment file, as its models know them."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, Field, fields
from typing import Any

from docstrings import as_markdown, entries
from fedcohort._arguments import ChoiceNeed, FlagNeed, Need
from fedcohort._fields import NEED
from fedcohort.experiments.checked_table import Table
from fedcohort.experiments.settings import (
    DATA,
    DEVICES,
    MODEL,
    PRESENCE,
    DesignEntry,
    Experiment,
    OwnModel,
    Panel,
    Server,
    Training,
)

#: The tables of a file, and what each can be.
TABLES: dict[str, tuple[type[Table], ...]] = {
    "[data]": tuple(DATA.kinds.values()),
    "[model]": (*MODEL.kinds.values(), OwnModel),
    "[training]": (Training,),
    "[server]": (Server,),
    "[devices]": tuple(DEVICES.kinds.values()),
    "[devices.presence]": tuple(PRESENCE.kinds.values()),
    "[[design]]": (DesignEntry,),
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
    rows = []
    for field in fields(model):
        key = field.name
        if key in model.known_keys() and key not in leave_out:
            cells = (f"`{key}`", words(field.metadata[NEED]), _default(field), meaning(model, key))
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
    for owner in (*model.__mro__, *model.sources):
        if key in entries(owner):
            return entries(owner)[key]
    if key in {kinds.key for kinds in (DATA, MODEL, DEVICES, PRESENCE)}:
        return "Selects this kind of table."
    raise LookupError(f"no docstring says what {key} of {model.__name__} is")


def words(need: Need) -> str:
    """Say in words what a value can be.

    >>> from fedcohort._arguments import WholeNeed
    >>> words(WholeNeed(least=1))
    'whole number of at least 1'
    """
    if isinstance(need, ChoiceNeed):
        return " or ".join(f'`"{value}"`' for value in need.choices)
    words = need.words.removeprefix("a ")
    return words.lower() if isinstance(need, FlagNeed) else words  # as TOML writes them
