"""What is made for the pages of docs/: a comment ``<!-- made: WHAT OF -->`` is replaced by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from logging import WARNING, getLogger
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import desc_annotation
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import api_pages
import command_line_page
import contents
import design_pages
import experiment_file_page
from public_names import home_of_name
from repository_links import DOCS, ROOT, relocated

#: Doctest needs a line between what it expects and the end of a block; readers do not.
BLANK_END = re.compile(r"\n(\n *```\n(?:\n|\Z))")
MARK = re.compile(r"<!-- made: ([\w-]+) ?(\S*) -->")
MAKERS: dict[str, Callable[..., str]] = {
    "all-designs": design_pages.all_designs,
    "commands": command_line_page.commands,
    "design-class": design_pages.the_class,
    "design-facts": design_pages.facts,
    "design-navigation": design_pages.navigation,
    "design-recipe": design_pages.the_recipe,
    "example": design_pages.the_example,
    "kinds": contents.kinds,
    "names": api_pages.names,
    "navigation": contents.navigation,
    "settings": experiment_file_page.settings,
}
#: Types that have names, as Sphinx writes them out.
NDARRAY = re.compile(r"~?[\w.]*ndarray\[~?[\w.]*tuple\[[^\]]*\], ~?[\w.]*dtype\[([^\]]+)\]\]")
ARRAY_LIKE = re.compile(r"~?[\w.]*_Buffer \| .*?complex \| .*?complex \| .*?str\]")
HIDDEN: dict[str, list[str]] = {}


def make(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what is made into a page, and put its links right."""
    here = DOCS / f"{page}.md"
    source[0] = relocated(source[0], here, here)
    source[0] = MARK.sub(lambda mark: _made(mark[1], mark[2], here), source[0])
    source[0] = BLANK_END.sub(r"\1", source[0])


def _made(what: str, of: str, here: Path) -> str:
    if what == "file":
        return relocated((ROOT / of).read_text(encoding="utf-8"), ROOT / of, here)
    return MAKERS[what](of) if of else MAKERS[what]()


def find_public_name(
    app: Sphinx, environment: BuildEnvironment, node: Any, text: nodes.TextElement
) -> nodes.Node | None:
    """Lead a reference by any path to a public name to where that name is described."""
    if node.get("refdomain") != "py":
        return None
    parts = node["reftarget"].split(".")
    for place, part in enumerate(parts):
        if found := home_of_name(part):
            path = ".".join([found, *parts[place + 1 :]])
            domain = environment.domains.python_domain
            if path in domain.objects and path != node["reftarget"]:
                return domain.resolve_xref(
                    environment, node["refdoc"], app.builder, "obj", path, node, text
                )
    return None


def shorten_types(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Write types by their names."""
    return _shortened(signature), _shortened(returns)


def _shortened(text: str | None) -> str | None:
    return text and ARRAY_LIKE.sub("ArrayLike", NDARRAY.sub(r"NDArray[\1]", text))


def shorten_attribute_types(app: Sphinx, doctree: nodes.document) -> None:
    """Write the types of attributes and properties by their names, too."""
    for node in doctree.findall(desc_annotation):
        text = node.astext()
        if (short := _shortened(text)) != text:
            node[:] = [nodes.Text(short)]


def hide_from_napoleon(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep an attribute's docstring, in which napoleon takes words before a colon for a type."""
    if what in ("attribute", "property"):
        HIDDEN[name] = list(lines)


def show_again(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Put an attribute's docstring back as it was."""
    if name in HIDDEN:
        lines[:] = HIDDEN.pop(name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx call us."""
    getLogger("fedcohort").setLevel(WARNING)  # designs say which trees they build
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", make)
    app.connect("missing-reference", find_public_name)
    # Napoleon has priority 500.
    app.connect("autodoc-process-docstring", hide_from_napoleon, priority=400)
    app.connect("autodoc-process-docstring", show_again, priority=600)
    app.connect("autodoc-process-signature", shorten_types)
    app.connect("doctree-read", shorten_attribute_types)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
