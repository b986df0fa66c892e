"""A table of an experiment file: a frozen dataclass that checks its values."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from fedcohort._arguments import brief, did_you_mean
from fedcohort.errors import ExperimentError


@dataclass(frozen=True)
class Need:
    """The requirements of a value: in words, its type, and its limits (texts, lists: length)."""

    words: str
    kind: type
    low: float = -math.inf
    high: float = math.inf

    def checked(self, value: Any, key: str) -> Any:
        """Return the value, or raise. A whole number is also a number."""
        is_kind = type(value) is self.kind or (self.kind is float and type(value) is int)
        amount = len(value) if isinstance(value, (str, list)) else value
        if not is_kind or not self.low <= amount <= self.high:
            raise ExperimentError(f"{key} must be {self.words}; got {brief(value)}.")
        return self.kind(value)


@dataclass(frozen=True)
class Kinds:
    """Kinds of a table: the key that selects one, the kinds, and the user's own if any."""

    key: str
    kinds: Mapping[str, type[Table]]
    own: type[Table] | None = None

    def selected(self, content: object, place: str) -> type[Table]:
        """Return the kind that a table names. A colon marks the user's own code."""
        name = _as_table(content, place).get(self.key)
        if self.own is not None and isinstance(name, str) and ":" in name:
            return self.own
        own = "" if self.own is None else " or my_model.py:function"
        return self.kinds[_chosen(name, list(self.kinds), f"{place}.{self.key}", own)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the file, a frozen dataclass. Making it checks it; types are not converted."""

    #: The field that keeps unknown keys; without one they are refused.
    rest: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            object.__setattr__(self, name, checked(hint, getattr(self, name), name))

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return the keys that a table may have, without those that ``rest`` keeps."""
        return [each.name for each in fields(cls) if each.name != cls.rest]

    @classmethod
    def of(cls, content: Any, place: str = "") -> Self:
        """Make the table from plain values. ``place`` is its key in messages."""
        before = f"{place}." if place else ""
        known = cls.known_keys()
        rest = {k: v for k, v in _as_table(content, place).items() if k not in known}
        if not cls.rest:
            check_keys(rest, known, before)
        for each in fields(cls):
            is_needed = each.default is MISSING and each.default_factory is MISSING
            if is_needed and each.name not in content:
                raise ExperimentError(f"key '{before}{each.name}' is missing. Add it.")
        hints = _hints(cls)
        values = {
            key: checked(hints[key], content[key], before + key) for key in known if key in content
        }
        return cls(**values, **({cls.rest: rest} if cls.rest else {}))

    def as_dict(self, *leave_out: str) -> dict[str, Any]:
        """Return plain values. From all of them, :meth:`of` makes the same table."""
        known = [key for key in self.known_keys() if key not in leave_out]
        found = {key: _plain(getattr(self, key)) for key in known}
        return found | getattr(self, self.rest, {})


def _read_hints(table: Any) -> dict[str, Any]:
    hints = get_type_hints(table, include_extras=True)
    return {key: hints[key] for key in table.known_keys()}


_hints: Callable[[Any], dict[str, Any]] = cache(_read_hints)


def _as_table(content: object, place: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ExperimentError(f"{place or 'the file'} must be a table; got {brief(content)}.")
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.as_dict() if isinstance(value, Table) else value


def checked(hint: Any, value: Any, key: str) -> Any:
    """Return a value as its annotation needs it, or say what the key must be."""
    if isinstance(value, Table):
        return value
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        if value is None and NoneType in inside:
            return None
        takes_list = isinstance(value, list) and inside[1] is not NoneType
        return checked(inside[1 if takes_list else 0], value, key)
    if origin is Literal:
        return _chosen(value, list(inside), key)
    if origin is Annotated and isinstance(inside[1], Kinds):
        return inside[1].selected(value, key).of(value, key)
    if isinstance(hint, type) and issubclass(hint, Table):
        return hint.of(value, key)
    base, need = inside if origin is Annotated else (hint, PLAIN[origin or hint])
    found = need.checked(value, key)
    if get_origin(base) is not list:
        return found
    (item,) = get_args(base)
    return [checked(item, each, f"{key}.{place}") for place, each in enumerate(found)]


def _chosen(value: object, known: list[str], key: str, own: str = "") -> str:
    if isinstance(value, str) and value in known:
        return value
    raise ExperimentError(
        f"{key} must be one of {', '.join(known)}{own}; got {brief(value)}."
        f"{did_you_mean(value, known)}"
    )


def check_keys(content: Mapping[str, Any], known: list[str], before: str = "") -> None:
    """Refuse unknown keys. ``before`` is the table's own key and a dot, for the message."""
    for key in content:
        if key not in known:
            raise ExperimentError(
                f"unknown key {before + key!r}; known are {', '.join(known)}."
                f"{did_you_mean(key, known)}"
            )


PLAIN = {
    bool: Need("true or false", bool),
    str: Need("a text", str),
    list: Need("a list", list),
}
LARGEST = sys.float_info.max
#: Upper limit of counts: clients, steps, rounds, units of a layer.
MOST = 10**9
Count = Annotated[int, Need("a whole number from 1 to 10^9", int, 1, MOST)]
Whole = Annotated[int, Need("a whole number from 0 to 10^9", int, 0, MOST)]
#: A seed is a 64-bit signed integer in tables.
Seed = Annotated[int, Need("a whole number from 0 to 2^63 - 1", int, 0, 2**63 - 1)]
Number = Annotated[float, Need("a finite number", float, -LARGEST, LARGEST)]
Positive = Annotated[float, Need("a number above 0", float, math.ulp(0.0), LARGEST)]
Share = Annotated[float, Need("a number from 0 to 1", float, 0, 1)]
Spread = Annotated[float, Need("a number from 0 to 10", float, 0, 10)]
#: Samples or bytes a second. These limits keep a client's time finite for every spread.
Rate = Annotated[float, Need("a number from 1e-9 to 1e18", float, 1e-9, 1e18)]
Label = Annotated[str, Need("a text of 1 to 200 characters", str, 1, 200)]
#: A data set, a model, a recipe or a file, by name.
Name = Annotated[str, Need("a text of 1 to 500 characters", str, 1, 500)]
SOME = Need("a list of at least one value", list, 1)
Pair = Annotated[list[Count], Need("a pair of whole numbers", list, 2, 2)]
#: One number, or several to choose from.
Grid = Number | Annotated[list[Number], SOME]
