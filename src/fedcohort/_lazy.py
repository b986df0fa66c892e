"""Imports on demand: public names on first use (SPEC 1), and optional dependencies."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from fedcohort.errors import MissingExtraError


def attach(
    package: str, homes: Mapping[str, str], *, modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are imported on first use.

    Parameters
    ----------
    package
        The package's ``__name__``.
    homes
        The public names that each module defines, separated by spaces; a module of the package,
        or the full name of another.
    modules
        Modules of the package that are names of their own.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    lazy_modules = frozenset(modules)

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's
        from fedcohort._arguments import suggesting_names  # it needs numpy

        own = sys.modules[package]
        if name in lazy_modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=own)
        home = home_of[name]
        full = home if home.startswith("fedcohort.") else f"{package}.{home}"
        value = suggesting_names(getattr(import_module(full), name))
        setattr(own, name, value)  # asked only once
        return value

    def __dir__() -> list[str]:  # noqa: N807
        own = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted({*own, *home_of, *lazy_modules})

    return __getattr__, __dir__


def import_extra(module: str, *, extra: str, owner: str) -> ModuleType:
    """Import ``module``, or name the install command of the ``extra`` that brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{owner}: needs {package}, which is not installed. "
            f"Run: pip install 'fedcohort[{extra}]'"
        ) from error


def frame_of(columns: Mapping[str, Any]) -> Any:
    """Return a pandas DataFrame of these columns; without pandas, a dict of them."""
    if find_spec("pandas") is None:
        return dict(columns)
    return import_module("pandas").DataFrame(dict(columns))
