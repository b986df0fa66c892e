"""A table of an experiment file: a frozen dataclass whose keys are declared settings.

A table declares keys of its own, and takes the settings of records and functions as they are
declared there: their names, needs and defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from fedcohort._arguments import (
    MOST,
    ChoiceNeed,
    Need,
    OneOrListNeed,
    TextNeed,
    WholeNeed,
    brief,
    checked_choice,
    did_you_mean,
    is_list,
)
from fedcohort._fields import NEED, Record, declared, settings_of
from fedcohort.errors import ExperimentError, FedcohortError


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Table(Record):
    """One table of the file, a frozen dataclass. Making it checks it.

    A subclass may name records and functions (``like``) whose settings are keys of the table too,
    without those in ``leave_out``. For those in ``lists``, a file can give a list to choose from;
    ``defaults`` replace the declared ones.
    """

    _owner = ""
    _error = ExperimentError

    #: The field that keeps unknown keys; without one they are refused.
    rest: ClassVar[str] = ""
    #: The records and functions whose settings are keys of this table.
    sources: ClassVar[tuple[Any, ...]] = ()

    def __init_subclass__(
        cls,
        like: Sequence[Any] = (),
        leave_out: Sequence[str] = (),
        lists: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        cls.sources = (*like, *cls.sources)
        own = dict(inspect.get_annotations(cls))
        taken = {*leave_out, *own, *(each.name for each in fields(cls))}
        for source in like:
            for name, (need, default) in settings_of(source).items():
                if name not in taken:
                    need = OneOrListNeed(item=need) if name in lists else need
                    default = (defaults or {}).get(name, default)
                    if default is not MISSING:
                        default = need.checked("", name, default)
                    setattr(cls, name, declared(need, default))
                    own[name] = "Any"
                    taken.add(name)
        cls.__annotations__ = own
        dataclass(frozen=True, kw_only=True)(cls)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a setting that ``like`` brought."""

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
        values = {cls.rest: rest} if cls.rest else {}
        for each in fields(cls):
            if each.name in content and each.name in known:
                need, value = each.metadata[NEED], content[each.name]
                key = before + each.name
                values[each.name] = need.checked("", key, value, error=ExperimentError)
            elif each.default is MISSING and each.default_factory is MISSING:
                raise ExperimentError(f"key '{before}{each.name}' is missing. Add it.")
        return cls(**values)

    def _settings(self, source: Any) -> dict[str, Any]:
        """Return those settings of a record or function that the table has."""
        known = self.known_keys()
        return {name: getattr(self, name) for name in settings_of(source) if name in known}

    def _only_settings(self, kinds: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return the settings of the kind that ``key`` selects; refuse changed ones of others."""
        selected = getattr(self, key)
        own = self._settings(kinds[selected])
        for kind in kinds.values():
            for name, value in self._settings(kind).items():
                if name not in own and value != settings_of(kind)[name].default:
                    raise ExperimentError(
                        f"{name} is not a setting of {key} = {selected!r}. Leave it out."
                    )
        return own

    def as_dict(self, *leave_out: str) -> dict[str, Any]:
        """Return plain values. From all of them, :meth:`of` makes the same table."""
        known = [key for key in self.known_keys() if key not in leave_out]
        found = {key: _plain(getattr(self, key)) for key in known}
        return found | getattr(self, self.rest, {})


def _as_table(content: object, place: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ExperimentError(f"{place or 'the file'} must be a table; got {brief(content)}.")
    return content


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.as_dict() if isinstance(value, Table) else value


def check_keys(content: Mapping[str, Any], known: list[str], before: str = "") -> None:
    """Refuse unknown keys. ``before`` is the table's own key and a dot, for the message."""
    for key in content:
        if key not in known:
            raise ExperimentError(
                f"unknown key {before + key!r}; known are {', '.join(known)}."
                f"{did_you_mean(key, known)}"
            )


@dataclass(frozen=True, kw_only=True)
class TableNeed(Need):
    """A table of one kind, or of several: ``key`` then selects one of ``kinds``.

    A colon in its value marks the user's own code, a table of the kind ``own``.
    """

    kinds: Mapping[str, type[Table]]
    key: str = ""
    own: type[Table] | None = None

    @property
    def words(self) -> str:
        """Say what the value must be."""
        return "a table"

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> Table:
        """Return the table, made from plain values where it is none yet."""
        if isinstance(value, Table):
            return value
        if not self.key:
            (kind,) = self.kinds.values()
            return kind.of(value, name)
        selected = _as_table(value, name).get(self.key)
        if self.own is not None and isinstance(selected, str) and ":" in selected:
            return self.own.of(value, name)
        known = [*self.kinds, *(["my_model.py:function"] if self.own else [])]
        checked_choice(owner, f"{name}.{self.key}", selected, known, error=error)
        return self.kinds[str(selected)].of(value, name)


def checked_texts(owner: str, name: str, texts: object, example: str) -> list[str]:
    """Validate a list of texts."""
    found = list(texts) if is_list(texts) else [None]
    if not all(isinstance(text, str) for text in found):
        raise ExperimentError(
            f"{owner}: {name} must be a list of texts; got {brief(texts)}. Pass for example "
            f"{example}."
        )
    return [str(text) for text in found]


def fixed(word: str) -> Any:
    """Declare the key that selects this kind of table."""
    return declared(ChoiceNeed(choices=(word,)))


COUNT = WholeNeed(least=1, most=MOST)
WHOLE = WholeNeed(most=MOST)
#: A seed is a 64-bit signed integer in the tables of results.
SEED = WholeNeed()
LABEL = TextNeed(least=1, most=200)
#: A data set, a model, a recipe or a file, by name.
NAME = TextNeed(least=1, most=500)
