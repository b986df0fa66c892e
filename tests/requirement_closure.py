"""Which installed packages a list of requirements stands for, directly and through others."""

from __future__ import annotations

import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared(*extras: str) -> list[Requirement]:
    """Return the project's requirements, with those of some extras."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [
        requirement for requirement in map(Requirement, lines) if requirement.name != "fedcohort"
    ]


def closure(requirements: list[Requirement]) -> dict[str, Distribution | None]:
    """Return what they bring, by canonical name; None for what is not installed."""
    found: dict[str, Distribution | None] = {}
    seen: set[tuple[str, str]] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found:
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:
                found[name] = None
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _required(found[name], extra)
    return found


def _required(package: Distribution | None, extra: str) -> list[Requirement]:
    """Return what a package requires here, with one of its extras."""
    lines = [] if package is None else package.requires or []
    every = [Requirement(line) for line in lines]
    return [each for each in every if not each.marker or each.marker.evaluate({"extra": extra})]
