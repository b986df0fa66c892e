"""Public names that are imported when they are first used (scientific Python's SPEC 1)."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


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
        own = sys.modules[package]
        if name in lazy_modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=own)
        home = home_of[name]
        full = home if home.startswith("fedcohort.") else f"{package}.{home}"
        value = getattr(import_module(full), name)
        setattr(own, name, value)  # asked only once
        return value

    def __dir__() -> list[str]:  # noqa: N807
        own = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted({*own, *home_of, *lazy_modules})

    return __getattr__, __dir__
