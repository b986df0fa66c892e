"""Docstrings as Markdown that reads well on a repository page and on the site.

A reference to a public name becomes a link to ``name:TARGET``, or to ``name:NEAR/TARGET`` in the
docstring of NEAR. made_pages leads these links to the section that describes the name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import roles

from mathml_formulas import in_line

SECTION = re.compile(r"^([A-Z]\w*)\n-+\n", re.MULTILINE)
ENTRY = re.compile(r"^(\S.*)\n((?:\n*[ ].*(?:\n|\Z))+)", re.MULTILINE)
#: An initial at the beginning of a line, which is not the letter of a list.
INITIAL = re.compile(r"^([A-Z])\.(?= )", re.MULTILINE)
#: Sections that say something of names, in the order of numpydoc.
OF_NAMES = ("Parameters", "Attributes", "Returns", "Yields", "Raises")
#: Sphinx's roles for names, which docutils does not know.
ROLES = ("class", "data", "exc", "func", "meth", "mod")
STRICT = {"halt_level": 2, "report_level": 5, "file_insertion_enabled": False}


def _name(role: str, raw: str, text: str, *_: Any) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """Read a role such as ``:class:`Plan```."""
    return [nodes.reference(raw, text.lstrip("~"), is_short=text.startswith("~"))], []


for each in ROLES:
    roles.register_local_role(each, _name)


def sections(owner: object) -> list[tuple[str, str]]:
    """Return the parts of a docstring with their titles; the first has none."""
    parts = SECTION.split(inspect.cleandoc(getattr(owner, "__doc__", None) or ""))
    return list(zip(["", *parts[1::2]], parts[::2], strict=True))


def described(owner: object, near: str) -> str:
    """Return a whole docstring as Markdown."""
    return "\n\n".join(filter(None, (_section(*part, near) for part in sections(owner))))


def _section(title: str, body: str, near: str) -> str:
    if not title:
        return as_markdown(body, near)
    if title not in OF_NAMES or not (found := _listed(body, near)):
        found = as_markdown(body, near)
    return f"**{title}**\n\n{found}"


def _listed(body: str, near: str) -> str:
    """Return a list of names and what is said of them."""
    lines = []
    for entry in ENTRY.finditer(body):
        names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
        text = as_markdown(inspect.cleandoc("\n" + entry[2]), near)
        lines.append(f"* {names}: {_indented(text)}")
    return "\n".join(lines)


def entries(owner: object) -> dict[str, str]:
    """Return what the docstring of a class or function says of each name, in one line.

    >>> from fedcohort.simulation import LocalTraining
    >>> entries(LocalTraining)["lr_decay"]
    'The learning rate is `lr * lr_decay ** round`.'
    """
    found: dict[str, str] = {}
    for title, body in sections(owner):
        if title in ("Parameters", "Attributes"):
            for entry in ENTRY.finditer(body):
                for name in entry[1].split(", "):
                    found.setdefault(name, as_markdown(" ".join(entry[2].split())))
    return found


def summary(owner: object, near: str = "") -> str:
    """Return the first sentence or so of a docstring: its first paragraph.

    >>> from fedcohort import Plan
    >>> summary(Plan)
    'm distributions over the clients: row k draws client i with `units[k, i] / total`.'
    """
    return as_markdown(sections(owner)[0][1].split("\n\n")[0], near)


def as_markdown(text: str, near: str = "") -> str:
    r"""Turn reStructuredText into Markdown.

    >>> as_markdown(r"``x``, :math:`\|y\|`, :class:`~fedcohort.Plan`, **all** 2 * 3")
    '`x`, $\\Vert y\\Vert$, [`Plan`](name:fedcohort.Plan), **all** 2 \\* 3'
    """
    document = publish_doctree(INITIAL.sub(r"\1\.", text), settings_overrides=STRICT)
    return _blocks(document.children, near)


def _blocks(found: Iterable[nodes.Node], near: str) -> str:
    return "\n\n".join(_block(node, near) for node in found)


def _block(node: Any, near: str) -> str:
    match type(node):
        case nodes.paragraph | nodes.term:
            return " ".join(_inline(node, near).split())
        case nodes.doctest_block:
            return _fenced("py", node.astext())
        case nodes.literal_block:
            return _fenced("text", node.astext())
        case nodes.math_block:
            return _fenced("math", node.astext())
        case nodes.bullet_list | nodes.enumerated_list:
            is_numbered = isinstance(node, nodes.enumerated_list)
            items = (_indented(_blocks(item.children, near)) for item in node)
            found = enumerate(items, start=1)
            return "\n".join(
                f"{f'{place}.' if is_numbered else '*'} {item}" for place, item in found
            )
        case nodes.block_quote:
            return _blocks(node.children, near)
    raise ValueError(f"a docstring of {near} holds a {node.tagname}: {node.astext()!r}")


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _indented(text: str) -> str:
    """Indent all lines but the first, as a list item needs it."""
    return re.sub(r"\n(?=[^\n])", "\n  ", text)


def _inline(node: Any, near: str) -> str:
    return "".join(_piece(child, near) for child in node.children)


def _piece(node: Any, near: str) -> str:
    match type(node):
        case nodes.Text:
            return re.sub(r"([*<\[])", r"\\\1", node.astext())
        case nodes.literal:
            return f"`{node.astext()}`"
        case nodes.math:
            return in_line(" ".join(node.astext().split()))
        case nodes.emphasis | nodes.title_reference:
            return f"*{_inline(node, near)}*"
        case nodes.strong:
            return f"**{_inline(node, near)}**"
        case nodes.reference if "refuri" not in node:
            target = node.astext()
            shown = target.rpartition(".")[2] if node["is_short"] else target
            return f"[`{shown}`](name:{near}/{target})" if near else f"[`{shown}`](name:{target})"
        case nodes.reference:
            return f"[{node.astext()}]({node['refuri']})"
    raise ValueError(f"a docstring of {near} holds a {node.tagname}: {node.astext()!r}")
