"""The public names of the library, and the page on which each of them is described."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from fedcohort.designs import RECIPES

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "api"


def packages() -> list[str]:
    """Return the packages that have a page; what several export is described with the first.

    >>> packages()[:2]
    ['fedcohort', 'fedcohort.designs']
    """
    own = {page.stem for page in PAGES.glob("*.md")} - {"index", "fedcohort", "designs"}
    return ["fedcohort", *(f"fedcohort.{name}" for name in ("designs", *sorted(own)))]


def exported(package: str) -> list[str]:
    """Return what a package exports; what is defined in it where it does not say.

    >>> exported("fedcohort.synthetic")
    ['UNBALANCED', 'clustered_updates', 'dirichlet_updates', 'unbalanced_sizes']
    """
    module = import_module(package)
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(name for name, value in vars(module).items() if _is_own(name, value, package))


def _is_own(name: str, value: object, package: str) -> bool:
    defined = getattr(value, "__module__", None) == package
    return not name.startswith("_") and (defined or name.isupper())


def value_of(path: str) -> Any:
    """Return what a path such as ``fedcohort.Plan`` names."""
    package, _, name = path.rpartition(".")
    return getattr(import_module(package), name)


@cache
def home(path: str) -> str:
    """Return the path under which a public name is described: the first that leads to the same.

    >>> home("fedcohort.designs.SizeClustered"), home("fedcohort.designs.RECIPES")
    ('fedcohort.SizeClustered', 'fedcohort.designs.RECIPES')
    """
    name = path.rpartition(".")[2]
    return next(
        f"{package}.{name}"
        for package in packages()
        if name in exported(package) and value_of(f"{package}.{name}") is value_of(path)
    )


@cache
def home_of_name(name: str) -> str | None:
    """Return where the first public name that reads like this is described.

    >>> home_of_name("UpdateMemory"), home_of_name("nobody")
    ('fedcohort.UpdateMemory', None)
    """
    found = (package for package in packages() if name in exported(package))
    package = next(found, None)
    return None if package is None else home(f"{package}.{name}")


@cache
def design_of() -> dict[str, str]:
    """Return the design, as files name it, that a class or recipe has its page with.

    >>> design_of()["SizeClustered"], design_of()["SizeClusteredDesign"]
    ('size', 'size')
    """
    recipes = {recipe.__name__: name for name, recipe in RECIPES.items()}
    return recipes | {f"{recipe}Design": name for recipe, name in recipes.items()}
