"""Settings that check themselves: a record declares each of them once.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, slots=True)
... class Training(Record):
...     batch_size: int = whole(50, least=1)
...     lr: float = number(0.01, above=0, way_out="Pass for example 0.05.")
>>> Training(lr=0)
Traceback (most recent call last):
    ...
fedcohort.errors.DesignError: Training: lr must be a number above 0; got 0. Pass for example 0.05.

A declaration is a dataclass field with a ``Need``. :func:`settings_of` returns the needs and
defaults of a record, and of a function with :func:`checks`. Experiment files make their tables
from these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, replace
from functools import wraps
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Unpack

from fedcohort._arguments import (
    ChoiceNeed,
    FlagNeed,
    KindNeed,
    Need,
    NumberLimits,
    NumberNeed,
    NumberOrNeed,
    WholeLimits,
    WholeNeed,
)
from fedcohort.errors import DesignError, FedcohortError

Int = TypeVar("Int", int, int | None)
Float = TypeVar("Float", float, float | None)
Word = TypeVar("Word", bound=str | None)
Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])
#: The key of the need in a dataclass field's metadata.
NEED = "need"


def declared(need: Need, default: Any = MISSING) -> Any:
    """Declare a field by its need. It can be None if this is its default.

    A list or dictionary is copied for every record.
    """
    if default is None:
        need = replace(need, optional=True)
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata={NEED: need})
    return field(default=default, metadata={NEED: need})


def whole(default: Int, **limits: Unpack[WholeLimits]) -> Int:
    """Declare a whole number; it can be None if this is its default."""
    return declared(WholeNeed(**limits), default)  # type: ignore[no-any-return]


def number(default: Float, **limits: Unpack[NumberLimits]) -> Float:
    """Declare a finite number; it can be None if this is its default."""
    return declared(NumberNeed(**limits), default)  # type: ignore[no-any-return]


def number_or(
    word: Literal["auto"], default: None, *, above: float
) -> float | Literal["auto"] | None:
    """Declare a finite number or a word; None by default."""
    way_out = f"Pass one, {word!r}, or None."
    need = NumberOrNeed(above=above, word=word, way_out=way_out)
    return declared(need, default)  # type: ignore[no-any-return]


def choice(default: Word, choices: Iterable[str], *, way_out: str = "") -> Word:
    """Declare one of several words; it can be None if this is its default."""
    return declared(ChoiceNeed(choices=tuple(choices), way_out=way_out), default)  # type: ignore[no-any-return]


def flag(default: bool) -> bool:
    """Declare True or False."""
    return declared(FlagNeed(), default)  # type: ignore[no-any-return]


def of_kind(default: Value, kind: type, *, way_out: str) -> Value:
    """Declare an object of a class; it can be None if this is its default."""
    return declared(KindNeed(kind=kind, way_out=way_out), default)  # type: ignore[no-any-return]


class Record:
    """The base of frozen dataclasses: check the declared fields, keep them in Python's own types.

    A subclass checks in :meth:`_check` what concerns several fields, and other values.
    """

    __slots__ = ()
    #: The name in messages; None: the class's.
    _owner: ClassVar[str | None] = None
    #: What is raised.
    _error: ClassVar[type[FedcohortError]] = DesignError

    def __post_init__(self) -> None:
        owner = type(self).__name__ if self._owner is None else self._owner
        for own in fields(self):  # type: ignore[arg-type]  # a dataclass
            if (need := self._need_of(own)) is not None:
                value = need.checked(owner, own.name, getattr(self, own.name), error=self._error)
                self._put(**{own.name: value})
        self._check()

    @classmethod
    def _need_of(cls, own: Field[Any]) -> Need | None:
        """Return what a field must be; None if it declares nothing."""
        return own.metadata.get(NEED)

    def _check(self) -> None:
        """Raise if the values do not fit each other. The declared fields are checked before."""

    def _put(self, **values: Any) -> None:
        """Replace values by checked ones, while the record is made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def checks(error: type[FedcohortError], **needs: Need) -> Callable[[Function], Function]:
    """Let a function check its arguments by their names, and get them in Python's own types."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        owner = function.__qualname__.partition(".")[0]

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            try:
                bound = signature.bind(*args, **options)
            except TypeError:
                return function(*args, **options)  # Python says what is wrong with the call
            for name, need in needs.items():
                if name in bound.arguments:
                    given = bound.arguments[name]
                    bound.arguments[name] = need.checked(owner, name, given, error=error)
            return function(*bound.args, **bound.kwargs)

        call.__needs__ = needs  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


class Setting(NamedTuple):
    """A declared setting: its need, and its default or ``MISSING``."""

    need: Need
    default: Any


def settings_of(source: Any) -> Mapping[str, Setting]:
    """Return the declared settings of a record's class, or of a function with :func:`checks`."""
    if isinstance(source, type):
        return {
            each.name: Setting(
                each.metadata[NEED],
                each.default if each.default_factory is MISSING else each.default_factory(),
            )
            for each in fields(source)
            if NEED in each.metadata
        }
    parameters = inspect.signature(source).parameters
    return {
        name: Setting(
            need,
            MISSING
            if parameters[name].default is inspect.Parameter.empty
            else parameters[name].default,
        )
        for name, need in source.__needs__.items()
    }
