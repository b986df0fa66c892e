"""Change the pages of docs/ for the site, when Sphinx reads them."""

from __future__ import annotations

import inspect
import re

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import contents
from made_pages import MARK, path_of_heading
from public_names import packages, value_of
from repository_links import DOCS, PAGES, relocated

#: Doctest needs a line between what it expects and the end of a block; readers do not.
BLANK_END = re.compile(r"\n(\n *```\n(?:\n|\Z))")
#: The first line of a table.
TABLE = re.compile(r"^(?=\|.*\|\n\| ?-)", re.MULTILINE)


def show(app: Sphinx, page: str, source: list[str]) -> None:
    """Show a repository file as its page, correct the links, and add the navigation."""
    here = DOCS / f"{page}.md"
    text, written_for = source[0], here
    for file, place in PAGES.items():
        if place == here:
            text, written_for = file.read_text(encoding="utf-8"), file
    text = relocated(text, written_for, here)
    text = MARK.sub(lambda mark: TABLE.sub(f"{{.{mark[2]}}}\n", mark[0]), text)
    title, _, text = BLANK_END.sub(r"\1", text).partition("\n")
    source[0] = f"{title}\n\n{contents.search_words(page)}{text}{contents.navigation(page)}"


def note_names(app: Sphinx, doctree: nodes.document) -> None:
    """Let the search and other projects find the names that headings describe."""
    domain = app.env.domains.python_domain
    for section in doctree.findall(nodes.section):
        is_title, place = section.parent is doctree, section["ids"][0]
        path = path_of_heading(app.env.docname, section[0].astext(), is_title=is_title)
        if path in packages():
            domain.note_module(path, place, synopsis="", platform="", deprecated=False)
        elif path:
            domain.note_object(path, _kind(path), place)


def _kind(path: str) -> str:
    """Return what a path names, in Sphinx's words.

    >>> _kind("fedcohort.Plan"), _kind("fedcohort.Plan.total"), _kind("fedcohort.Selector.draw")
    ('class', 'property', 'method')
    """
    value, owner = value_of(path), value_of(path.rpartition(".")[0])
    if isinstance(value, type):
        return "exception" if issubclass(value, BaseException) else "class"
    if inspect.isroutine(value):
        return "method" if isinstance(owner, type) else "function"
    return "property" if isinstance(owner, type) else "data"


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx call us."""
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", show)
    app.connect("doctree-read", note_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
