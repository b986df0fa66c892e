"""What a package exports: a table of all names, then those that are described with it."""

from __future__ import annotations

import inspect
import sys

from sphinx.pycode import ModuleAnalyzer

from docstring_entries import summary
from public_names import design_of, exported, home, value_of

#: Classes that are described with what they inherit, since their base is not public.
INHERITING = {"fedcohort.Selector"}


def names(package: str) -> str:
    """Return the page of a package, below its title."""
    listed = [f"```{{eval-rst}}\n.. py:module:: {package}\n```\n", "{.names}"]
    listed += ["| | |", "| --- | --- |"]
    described = []
    for name in sorted(exported(package), key=str.lower):
        path = home(f"{package}.{name}")
        listed.append(f"| {{py:obj}}`{name} <{path}>` | {_summary(path)} |")
        is_here = path == f"{package}.{name}" and name not in design_of()
        if is_here and not inspect.ismodule(value_of(path)):
            described.append(_description(path))
    return "\n".join([*listed, "", *described])


def _summary(path: str) -> str:
    value = value_of(path)
    if _is_described(value) or inspect.ismodule(value):
        return summary(value)
    return _comment(path)


def _is_described(value: object) -> bool:
    """Say whether something has a docstring of its own: a class or a function."""
    return inspect.isclass(value) or inspect.isroutine(value)


def _description(path: str) -> str:
    """Return the directive that describes a name."""
    package, _, name = path.rpartition(".")
    value = value_of(path)
    if not _is_described(value):
        shown = f"\n   :value: {value!r}" if isinstance(value, tuple) else ""
        directive = f".. py:data:: {name}\n   :module: {package}{shown}\n\n   {_comment(path)}"
    elif not inspect.isclass(value):
        directive = f".. autofunction:: {path}"
    elif issubclass(value, BaseException):
        directive = f".. autoexception:: {path}"
    else:
        inherits = "\n   :inherited-members:" if path in INHERITING else ""
        directive = f".. autoclass:: {path}\n   :members:{inherits}"
    return f"## {name}\n\n```{{eval-rst}}\n{directive}\n```\n"


def _comment(path: str) -> str:
    """Return the comment ``#:`` above a constant, where it is defined.

    >>> _comment("fedcohort.designs.RECIPES")
    'Every recipe of the library, by its name.'
    """
    package, _, name = path.rpartition(".")
    value = value_of(path)
    for module in sorted(sys.modules):
        if module.startswith(package) and vars(sys.modules[module]).get(name) is value:
            comments = ModuleAnalyzer.for_module(module).find_attr_docs()
            if ("", name) in comments:
                return " ".join(comments["", name]).strip()
    raise LookupError(f"no comment says what {path} is")
