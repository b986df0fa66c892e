"""Write the parts of docs/ between ``<!-- made: WHAT OF -->`` and ``<!-- end -->``.

``python tools/docs/made_pages.py`` makes them from the code, with the pictures of the designs. A
test compares them with the code. They are plain Markdown: a repository shows what the site shows.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import api_pages
import command_line_page
import contents
import design_pages
import experiment_file_page
import gallery
import repository_links
from mathml_formulas import repository_formulas
from public_names import design_of, exported, full_path, home, packages

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARK = re.compile(r"(<!-- made: ([\w-]+) ?(\S*) -->\n).*?(<!-- end -->)", re.DOTALL)
LINK = re.compile(r"\[(`[^`]+`|\*\*[^*]+\*\*)\]\(name:(?:([\w.]+)/)?([\w.]+)\)")
MAKERS: dict[str, Callable[..., str]] = {
    "all-designs": design_pages.all_designs,
    "class": api_pages.the_class,
    "commands": command_line_page.commands,
    "design-class": design_pages.the_class,
    "design-facts": design_pages.facts,
    "design-recipe": design_pages.the_recipe,
    "example": design_pages.the_example,
    "gallery": gallery.gallery,
    "group": api_pages.group,
    "kinds": contents.kinds,
    "names": api_pages.names,
    "settings": experiment_file_page.settings,
    "summary": repository_links.summary,
}


def marked_pages() -> list[str]:
    """Return the pages with a made part, as names below docs/.

    >>> "reference/designs/size" in marked_pages()
    True
    """
    pages = sorted(DOCS.rglob("*.md"))
    return [_name(page) for page in pages if MARK.search(page.read_text(encoding="utf-8"))]


def _name(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


def refreshed(page: str) -> str:
    """Return the text of a page as it should be: what is made, and formulas that are shown."""
    if page not in drafts():
        return repository_formulas((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    return repository_formulas(LINK.sub(lambda link: _led(link, page), drafts()[page]))


@cache
def drafts() -> dict[str, str]:
    """Return all pages with made parts, before links lead to names."""
    return {page: _draft(page) for page in marked_pages()}


def _draft(page: str) -> str:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return MARK.sub(lambda mark: f"{mark[1]}\n{_made(mark[2], mark[3])}\n\n{mark[4]}", text)


def _made(what: str, of: str) -> str:
    return MAKERS[what](of) if of else MAKERS[what]()


def _led(link: re.Match[str], page: str) -> str:
    """Lead a link to where its name is described; a name that is nowhere is only shown."""
    near, target = link[2] or "", link[3]
    package = near.rpartition(".")[0]
    for path in (target, f"{near}.{target}", f"{package}.{target}", full_path(target)):
        if path in places():
            there, anchor = places()[path]
            to = "" if there == page else os.path.relpath(f"{there}.md", Path(page).parent)
            return f"[{link[1]}]({to}#{anchor})"
    return link[1]


@cache
def places() -> dict[str, tuple[str, str]]:
    """Return the page and the anchor of every path that is described."""
    found = {}
    for page, text in drafts().items():
        for heading, is_title, anchor in repository_links.anchors(text):
            if path := path_of_heading(page, heading, is_title=is_title):
                found[path] = (page, anchor)
    return found


def path_of_heading(page: str, heading: str, *, is_title: bool = False) -> str:
    """Return the path that a heading of a page describes; "" for other headings.

    >>> path_of_heading("reference/api/fedcohort", "Selector.draw")
    'fedcohort.Selector.draw'
    >>> path_of_heading("reference/designs/size", "Cost")
    ''
    """
    path = described_on().get(page, "")
    if is_title:
        return path
    if path and path not in packages():
        name = path.rpartition(".")[2]
        return f"{path}{heading.removeprefix(name)}" if heading.startswith(f"{name}.") else ""
    package = path
    name = heading.partition(".")[0]
    if page.startswith("reference/designs/") and design_of().get(name) == Path(page).name:
        return full_path(name)
    is_here = (
        package and name in exported(package) and home(f"{package}.{name}") == f"{package}.{name}"
    )
    return f"{package}.{heading}" if is_here else ""


@cache
def described_on() -> dict[str, str]:
    """Return the package or class that each page of the Python reference is about."""
    classes = [path for package in packages() for path in api_pages.class_pages(package)]
    return {api_pages.page_of(path): path for path in [*packages(), *classes]}


def _make_class_pages() -> None:
    """Add a page for every class that needs one, and delete those of classes that are gone."""
    for page, path in described_on().items():
        file = DOCS / f"{page}.md"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            made = f"<!-- made: class {path} -->\n<!-- end -->"
            file.write_text(f"# {path.rpartition('.')[2]}\n\n{made}\n", encoding="utf-8")
    for file in (DOCS / "reference" / "api").glob("*/*.md"):
        if _name(file) not in described_on():
            file.unlink()


def main() -> None:
    """Write the made parts and the formulas of all pages, and the pictures."""
    _make_class_pages()
    for path, picture in design_pages.pictures().items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(picture, encoding="utf-8")
    for file in sorted(DOCS.rglob("*.md")):
        page = _name(file)
        if (text := refreshed(page)) != file.read_text(encoding="utf-8"):
            file.write_text(text, encoding="utf-8")
            sys.stdout.write(f"docs/{page}.md\n")


if __name__ == "__main__":
    main()
