"""Write the public names of packages: tables, and each name with its docstring.

A class with methods has a page of its own; the page of its package has a section for every other
name.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property

from sphinx.pycode import ModuleAnalyzer

from docstrings import as_markdown, described, summary
from fedcohort.designs import RECIPES
from public_names import design_of, exported, home, packages, value_of
from signatures import shown, signature

#: Classes that are described with what they inherit, since their base is not public.
INHERITING = {"fedcohort.Selector"}
#: The packages of a group of the index, each with a line about it.
GROUPS = {
    "simulation": ("simulation", "experiments"),
    "plug-ins": ("flower", "nvflare", "fedbiomed", "deployment"),
    "tools": (
        "diagnostics",
        "participation",
        "selector",
        "memory",
        "similarity",
        "optimizers",
        "streams",
        "synthetic",
        "testing",
        "errors",
    ),
}


def names(package: str) -> str:
    """Return a table of what a package exports, and a section for each name that it describes."""
    homes = [home(f"{package}.{name}") for name in sorted(exported(package), key=str.lower)]
    own = [path for path in homes if not _has_design_page(path)]
    parts = [_table(own)]
    if len(own) < len(homes):
        parts.append(_with_design_pages(path for path in homes if _has_design_page(path)))
    for path in _described(package):
        if not has_page(path):
            parts.append(section(path, level=2, has_members=True))
    return "\n\n".join(parts)


def _described(package: str) -> list[str]:
    """Return what is described with a package, and not with another one or with a design."""
    homes = (home(f"{package}.{name}") for name in sorted(exported(package), key=str.lower))
    own = (path for path in homes if path.rpartition(".")[0] == package)
    return [p for p in own if not _has_design_page(p) and not inspect.ismodule(value_of(p))]


def has_page(path: str) -> bool:
    """Return whether a name has a page of its own: a class with methods or properties."""
    return inspect.isclass(value_of(path)) and any(_members(path, value_of(path), 2))


def class_pages(package: str) -> list[str]:
    """Return the classes of a package that have pages of their own.

    >>> class_pages("fedcohort")[:3]
    ['fedcohort.Audit', 'fedcohort.Cohort', 'fedcohort.CohortSizes']
    """
    return [path for path in _described(package) if has_page(path)]


def page_of(path: str) -> str:
    """Return the page of a package or class, as a name below docs/.

    >>> page_of("fedcohort"), page_of("fedcohort.memory"), page_of("fedcohort.memory.Memory")
    ('reference/api/fedcohort', 'reference/api/memory', 'reference/api/memory/Memory')
    """
    if path in packages():
        return f"reference/api/{path.removeprefix('fedcohort.')}"
    package, _, name = path.rpartition(".")
    return f"{page_of(package)}/{name}"


def the_class(path: str) -> str:
    """Return the page of a class below its title."""
    package, _, name = path.rpartition(".")
    start = f"`from {package} import {name}`; the package: [`{package}`](name:{package})."
    content = section(path, level=1, has_members=True).partition("\n\n")[2]
    return f"{start}\n\n{content}"


def group(name: str) -> str:
    """Return a part of the index: the selector, the recipes, the laws, or some packages."""
    if name == "recipes":
        return _recipes()
    if name in GROUPS:
        return "\n\n".join(_package(each) for each in GROUPS[name])
    package = {"selector": "fedcohort", "laws": "fedcohort.designs"}[name]
    homes = [home(f"{package}.{each}") for each in sorted(exported(package), key=_in_order)]
    laws = [path for path in homes if path.endswith("Design") and _has_design_page(path)]
    table = _table(p for p in homes if p.startswith(f"{package}.") and not _has_design_page(p))
    return f"{table}\n\nThe laws: {_linked(laws)}." if laws else table


def _in_order(name: str) -> tuple[bool, str]:
    """Sort names as in a book, but the selector first."""
    return name != "Selector", name.lower()


def _package(name: str) -> str:
    package = f"fedcohort.{name}"
    own = [f"{package}.{each}" for each in sorted(exported(package), key=str.lower)]
    about = summary(value_of(package)).rstrip(".")
    return f"[**{package}**](name:{package}): {about}. It has {_linked(map(home, own))}."


def _recipes() -> str:
    lines = ["| recipe | in files and commands | what it draws |", "| --- | --- | --- |"]
    for name, recipe in RECIPES.items():
        path = f"fedcohort.{recipe.__name__}"
        law = summary(value_of(f"fedcohort.designs.{recipe.__name__}Design"), path)
        lines.append(f"| {_link(path)} | `{name}` | {_cell(law)} |")
    return "\n".join(lines)


def _has_design_page(path: str) -> bool:
    return path.rpartition(".")[2] in design_of()


def _with_design_pages(paths: Iterable[str]) -> str:
    return f"Described with [the designs](../designs/index.md): {_linked(paths)}."


def _linked(paths: Iterable[str]) -> str:
    return ", ".join(_link(path) for path in paths)


def _link(path: str) -> str:
    return f"[`{path.rpartition('.')[2]}`](name:{path})"


def _table(paths: Iterable[str]) -> str:
    lines = ["| name | what it is |", "| --- | --- |"]
    lines += [f"| {_link(path)} | {_cell(_summary(path))} |" for path in paths]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _summary(path: str) -> str:
    value = value_of(path)
    if _has_docstring(value) or inspect.ismodule(value):
        return summary(value, path)
    return _comment(path)


def _has_docstring(value: object) -> bool:
    """Say whether something has a docstring of its own: a class or a function."""
    return inspect.isclass(value) or inspect.isroutine(value)


def section(path: str, *, level: int, has_members: bool = False) -> str:
    """Return a section about a name: how it is called, its docstring, its members."""
    name, value = path.rpartition(".")[2], value_of(path)
    parts = [f"{'#' * level} {name}"]
    if not _has_docstring(value):
        code = f"```py\n{name} = {shown(value)}\n```" if isinstance(value, tuple) else ""
        return "\n\n".join(filter(None, [*parts, code, _summary(path)]))
    parts += [f"```py\n{signature(name, value)}\n```", described(value, path)]
    if inspect.isclass(value) and has_members:
        parts += [_attributes(path, value), *_members(path, value, level + 1)]
    return "\n\n".join(filter(None, parts))


def _members(path: str, value: type, level: int) -> Iterator[str]:
    """Return a section for each public method and property that has a docstring."""
    name = path.rpartition(".")[2]
    for owner in value.__mro__ if path in INHERITING else (value,):
        for member, found in vars(owner).items():
            if not member.startswith("_") and _is_member(found) and found.__doc__:
                call = signature(f"{name}.{member}", found)
                yield f"{'#' * level} {name}.{member}\n\n```py\n{call}\n```"
                yield described(found, path)


def _is_member(value: object) -> bool:
    kinds = (property, cached_property, classmethod, staticmethod)
    return isinstance(value, kinds) or inspect.isroutine(value)


def _attributes(path: str, value: type) -> str:
    """Return a list of class attributes with the comment ``#:``, or of the values of an enum."""
    if issubclass(value, enum.Enum):
        return "\n".join(f"* `{each.name}` = {each.value!r}" for each in value)
    comments = _comments(value.__module__).items()
    lines = [
        f"* `{name}`: {as_markdown(text, path)}"
        for (owner, name), text in comments
        if owner == value.__name__ and not name.startswith("_")
    ]
    return "\n".join(["**Class attributes**\n", *lines]) if lines else ""


def _comment(path: str) -> str:
    """Return the comment ``#:`` above a constant, where it is defined.

    >>> _comment("fedcohort.designs.RECIPES")
    'Every recipe of the library, by its name.'
    """
    package, _, name = path.rpartition(".")
    value = value_of(path)
    for module in sorted(sys.modules):
        if module.startswith(package) and vars(sys.modules[module]).get(name) is value:
            comments = _comments(module)
            if ("", name) in comments:
                return as_markdown(comments["", name], path)
    raise LookupError(f"no comment says what {path} is")


def _comments(module: str) -> dict[tuple[str, str], str]:
    """Return the comments ``#:`` of a module, by class and name."""
    found = ModuleAnalyzer.for_module(module).find_attr_docs()
    return {key: " ".join(lines).strip() for key, lines in found.items()}
