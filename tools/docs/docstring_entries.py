"""What docstrings say of parameters and attributes, to be said again in tables."""

from __future__ import annotations

import inspect
import re

SECTION = re.compile(r"^(\w+)\n-+\n", re.MULTILINE)
ENTRY = re.compile(r"^(\S.*)\n((?:[ ].*(?:\n|\Z)|\n)+)", re.MULTILINE)
ROLE = re.compile(r":(class|func|meth|data|mod):`([^`]+)`")


def entries(owner: object) -> dict[str, str]:
    """Return what the docstring of a class or function says of each name, in one line.

    >>> from fedcohort.simulation import LocalTraining
    >>> entries(LocalTraining)["lr_decay"]
    'The learning rate is `lr * lr_decay ** round`.'
    """
    found: dict[str, str] = {}
    sections = SECTION.split(inspect.cleandoc(owner.__doc__ or ""))
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        if title in ("Parameters", "Attributes"):
            for entry in ENTRY.finditer(body):
                for name in entry[1].split(", "):
                    found.setdefault(name, as_markdown(" ".join(entry[2].split())))
    return found


def summary(owner: object) -> str:
    """Return the first sentence or so of a docstring: its first paragraph.

    >>> from fedcohort import Plan
    >>> summary(Plan)
    'm distributions over the clients: row k draws client i with `units[k, i] / total`.'
    """
    return as_markdown(" ".join(inspect.cleandoc(owner.__doc__ or "").split("\n\n")[0].split()))


def as_markdown(text: str) -> str:
    """Turn what is code, formula or reference in a docstring into Markdown.

    >>> as_markdown("``x``, :math:`y`, :class:`fedcohort.Plan`")
    '`x`, $y$, {py:class}`fedcohort.Plan`'
    """
    # In a table of Markdown a bar would end the cell.
    text = re.sub(r":math:`([^`]+)`", lambda tex: f"${tex[1]}$".replace(r"\|", r"\Vert "), text)
    return ROLE.sub(r"{py:\1}`\2`", text.replace("``", "`"))
