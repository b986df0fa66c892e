"""How a name is called, with types as its source writes them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cached_property
from textwrap import dedent
from typing import Any

#: A longer call has a line for each argument.
WIDTH = 80


def signature(name: str, value: object) -> str:
    """Return how to call a class, a function, a method or a property, as Python writes it.

    >>> from fedcohort import Multinomial
    >>> signature("Multinomial", Multinomial)
    'class Multinomial(cohort_size: int)'
    >>> signature("n", property(lambda self: 1))
    'n'
    """
    if inspect.isclass(value):
        return _class(name, value)
    if isinstance(value, (property, cached_property)):
        return f"{name}{_returns(_definition(_function(value)), ': ')}"
    definition = _definition(_function(value))
    kind = type(value).__name__ if isinstance(value, (classmethod, staticmethod)) else ""
    is_bound = "." in name and kind != "staticmethod"
    called = _call(f"{kind} {name}".strip(), list(_arguments(definition))[is_bound:])
    return called + _returns(definition, " -> ")


def _class(name: str, value: type) -> str:
    if issubclass(value, BaseException):
        return f"exception {name}"
    owner = next((each for each in value.__mro__ if "__init__" in vars(each)), object)
    if is_dataclass(value) and is_dataclass(owner):
        return _call(f"class {name}", list(_fields(value)))
    if not owner.__module__.startswith("fedcohort") or getattr(value, "_is_protocol", False):
        return f"class {name}"
    make = vars(owner)["__init__"]
    return _call(f"class {name}", _unpacked(make, list(_arguments(_definition(make)))[1:]))


def _unpacked(make: Any, arguments: list[str]) -> list[str]:
    """Replace ``**settings`` by the settings that the signature lists."""
    if not hasattr(make, "__signature__"):
        return arguments
    named = {each.partition(":")[0] for each in arguments}
    more = [
        f"{each.name}: {each.annotation} = {shown(each.default)}"
        for each in make.__signature__.parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name not in named
    ]
    rest = [each for each in arguments[-1:] if "Unpack[" not in each]
    return [*arguments[:-1], *more, *rest]


def _call(name: str, arguments: list[str]) -> str:
    short = f"{name}({', '.join(arguments)})"
    if len(short) <= WIDTH:
        return short
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def _function(value: Any) -> Any:
    """Return the function behind a method or a property."""
    for name in ("fget", "func", "__func__"):
        value = getattr(value, name, value)
    return value


def _definition(function: Any) -> ast.FunctionDef | None:
    found = ast.parse(dedent(inspect.getsource(function))).body[0]
    return found if isinstance(found, ast.FunctionDef) else None


def _returns(definition: ast.FunctionDef | None, before: str) -> str:
    is_told = definition is not None and definition.returns is not None
    return before + ast.unparse(definition.returns) if is_told else ""  # type: ignore[union-attr, arg-type]


def _arguments(definition: ast.FunctionDef | None) -> Iterator[str]:
    if definition is None:
        return
    given = definition.args
    named = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(named) - len(given.defaults)) + list(given.defaults)
    yield from (_argument(*pair) for pair in zip(named, defaults, strict=True))
    if given.vararg:
        yield f"*{_argument(given.vararg)}"
    elif given.kwonlyargs:
        yield "*"
    yield from (_argument(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True))
    if given.kwarg:
        yield f"**{_argument(given.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None = None) -> str:
    typed = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    if default is None:
        return argument.arg + typed
    return argument.arg + typed + (" = " if typed else "=") + ast.unparse(default)


def _fields(value: Any) -> Iterator[str]:
    """Return the arguments that a dataclass makes of its fields."""
    types = _types(value)
    is_keyword = False
    for field in fields(value):
        if field.init:
            if field.kw_only and not is_keyword:
                yield "*"
                is_keyword = True
            yield f"{field.name}: {types[field.name]}{_default(field)}"


def _types(value: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for owner in reversed(value.__mro__):
        if is_dataclass(owner):
            body = ast.parse(dedent(inspect.getsource(owner))).body[0].body  # type: ignore[attr-defined]
            lines = [line for line in body if isinstance(line, ast.AnnAssign)]
            found.update((ast.unparse(line.target), ast.unparse(line.annotation)) for line in lines)
    return found


def _default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f" = {shown(field.default_factory())}"
    return "" if field.default is MISSING else f" = {shown(field.default)}"


def shown(value: object) -> str:
    """Return how Python writes a value; a function by its name, which has no address.

    >>> shown((1, len)), shown("m")
    ('(1, len)', "'m'")
    """
    if isinstance(value, tuple) and any(map(callable, value)):
        return f"({', '.join(map(shown, value))})"
    return str(getattr(value, "__name__", None) or repr(value)) if callable(value) else repr(value)
