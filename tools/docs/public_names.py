"""The public names of the library, and where each of them is described."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.ext.autodoc.mock import mock  # type: ignore[attr-defined]  # exported, but not by name

from fedcohort.designs import RECIPES

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "api"
#: Frameworks with environments of their own: their plug-ins are read without them.
APART = [name for name in ("fedbiomed", "nvflare") if find_spec(name) is None]


def packages() -> list[str]:
    """Return the packages that have a page; what several export is described with the first.

    >>> packages()[:2]
    ['fedcohort', 'fedcohort.designs']
    """
    first = ("fedcohort", "designs", "flower")
    own = {page.stem for page in PAGES.glob("*.md")} - {"index", *first}
    return ["fedcohort", *(f"fedcohort.{name}" for name in (*first[1:], *sorted(own)))]


@cache
def module_of(package: str) -> ModuleType:
    """Return a package; what it needs and is not installed here is replaced by nothing."""
    with mock(APART):
        return import_module(package)


@cache
def exported(package: str) -> list[str]:
    """Return what a package exports; what is defined in it where it does not say.

    >>> exported("fedcohort.synthetic")
    ['UNBALANCED', 'clustered_updates', 'dirichlet_updates', 'unbalanced_sizes']
    """
    module = module_of(package)
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(name for name, value in vars(module).items() if _is_own(name, value, package))


def _is_own(name: str, value: object, package: str) -> bool:
    defined = getattr(value, "__module__", None) == package
    return not name.startswith("_") and (defined or name.isupper())


def value_of(path: str) -> Any:
    """Return what a path such as ``fedcohort.Plan`` or ``fedcohort.Selector.draw`` names."""
    if path in packages():
        return module_of(path)
    owner, _, name = path.rpartition(".")
    return getattr(value_of(owner), name)


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


def full_path(target: str) -> str:
    """Return the path of a name under which it is described, from any path to it; "" for others.

    >>> full_path("fedcohort.plan.Plan.units"), full_path("fedcohort.memory"), full_path("numpy")
    ('fedcohort.Plan.units', 'fedcohort.memory', '')
    """
    if target in packages():
        return target
    parts = target.removeprefix("fedcohort.").split(".")
    for place, part in enumerate(parts):
        if found := home_of_name(part):
            return ".".join([found, *parts[place + 1 :]])
    return ""


@cache
def design_of() -> dict[str, str]:
    """Return the design, as files name it, that a class or recipe has its page with.

    >>> design_of()["SizeClustered"], design_of()["SizeClusteredDesign"]
    ('size', 'size')
    """
    recipes = {recipe.__name__: name for name, recipe in RECIPES.items()}
    return recipes | {f"{recipe}Design": name for recipe, name in recipes.items()}
