"""Links that hold on a repository page and on the site."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _file_of(page: Path) -> Path:
    """Return the file that a page in docs/results/ stands for."""
    folder = ROOT / "results"
    return folder / "README.md" if page.stem == "index" else folder / page.stem / "README.md"


#: Files of the repository outside docs/ that are pages of the site.
PAGES = {
    **{_file_of(page): page for page in sorted((DOCS / "results").glob("*.md"))},
    ROOT / "CHANGELOG.md": DOCS / "changelog.md",
}
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#:]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^[> ]*```.*?^[> ]*```\s*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
FENCE = re.compile(r"^( *)```.*?^\1```\n", re.MULTILINE | re.DOTALL)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]


def relocated(text: str, written_for: Path, shown_at: Path) -> str:
    """Return a page whose links, written for one file, hold at another; code stays as it is.

    A file of the repository that is a page leads there; another one is offered for download.
    Folders, and Markdown files that are not pages, lead to the repository.
    """
    parts = CODE.split(text)
    for place in range(0, len(parts), 2):
        parts[place] = LINK.sub(
            lambda link: _relocated(link, written_for.parent, shown_at.parent), parts[place]
        )
    return "".join(parts)


def _relocated(link: re.Match[str], here: Path, there: Path) -> str:
    target = (here / link[2]).resolve()
    target = PAGES.get(target, target)
    is_page = target.is_relative_to(DOCS)
    if target.is_dir() or (target.suffix == ".md" and not is_page):
        kind = "tree" if target.is_dir() else "blob"
        address = f"{REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
    else:
        address = Path(os.path.relpath(target, there)).as_posix()
    return f"{link[1]}({address}{link[3] or ''})"


def anchors(text: str) -> Iterator[tuple[str, bool, str]]:
    """Return all headings with their anchors; a repository page and the site make the same."""
    taken: dict[str, int] = {}
    for level, heading in HEADING.findall(FENCE.sub("", text)):
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        taken[anchor] = taken.get(anchor, -1) + 1
        number = f"-{taken[anchor]}" if taken[anchor] else ""
        yield heading, level == "#", anchor + number


def summary(page: str) -> str:
    """Return what a repository shows of a page that stands for a file: its start and sections.

    >>> "](../CHANGELOG.md#020---2026-11-19)" in summary("changelog")
    True
    """
    here = DOCS / f"{page}.md"
    file = next(file for file, place in PAGES.items() if place == here)
    text = file.read_text(encoding="utf-8")
    name, path = file.relative_to(ROOT), Path(os.path.relpath(file, here.parent)).as_posix()
    start = relocated(text.split("\n\n")[1], file, here).replace("](#", f"]({path}#")
    sections = [f"- [{head}]({path}#{at})" for head, is_title, at in anchors(text) if not is_title]
    return "\n".join([start, "", f"[{name}]({path}) has the whole text:", "", *sections])
