"""The public names of the library, and the page on which each of them is described."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from fedcohort.designs import RECIPES

#: A name that several export is described with the first.
PACKAGES = (
    "fedcohort",
    "fedcohort.designs",
    "fedcohort.similarity",
    "fedcohort.difference",
    "fedcohort.diagnostics",
    "fedcohort.simulation",
    "fedcohort.experiments",
    "fedcohort.flower",
    "fedcohort.synthetic",
    "fedcohort.errors",
)


def exported(package: str) -> list[str]:
    """Return what a package exports; what is defined in it where it does not say.

    >>> exported("fedcohort.synthetic")
    ['UNBALANCED', 'clustered_updates', 'dirichlet_updates', 'unbalanced_sizes']
    """
    module = import_module(package)
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = {name for name, value in vars(module).items() if _is_own(name, value, package)}
    return sorted(own)


def _is_own(name: str, value: object, package: str) -> bool:
    defined = getattr(value, "__module__", None) == package
    return not name.startswith("_") and (defined or name.isupper())


@cache
def homes() -> dict[str, str]:
    """Return, for every public name, the path under which it is described.

    >>> homes()["SizeClusteredDesign"], homes()["Population"]
    ('fedcohort.SizeClusteredDesign', 'fedcohort.Population')
    """
    found: dict[str, str] = {}
    for package in PACKAGES:
        for name in exported(package):
            found.setdefault(name, f"{package}.{name}")
    return found


@cache
def design_of() -> dict[str, str]:
    """Return the design, as files name it, that a class or recipe has its page with.

    >>> design_of()["SizeClustered"], design_of()["SizeClusteredDesign"]
    ('size', 'size')
    """
    recipes = {recipe.__name__: name for name, recipe in RECIPES.items()}
    return recipes | {f"{recipe}Design": name for recipe, name in recipes.items()}
