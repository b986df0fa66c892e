"""Links that hold on a repository page and on the site."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Files of the repository outside docs/ that are pages of the site.
PAGES = {
    ROOT / "results" / "README.md": DOCS / "results" / "index.md",
    ROOT / "results" / "beyond" / "README.md": DOCS / "results" / "beyond.md",
    ROOT / "results" / "everyone" / "README.md": DOCS / "results" / "everyone.md",
    ROOT / "CHANGELOG.md": DOCS / "changelog.md",
}
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#:]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^[> ]*```.*?^[> ]*```\s*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def relocated(text: str, written_for: Path, shown_at: Path) -> str:
    """Return a page whose links, written for one file, hold at another; code stays as it is.

    A file of the repository that is a page leads there; another one is offered for download.
    Folders, and Markdown files that are not pages, are named and not linked.
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
        return link[1].strip("![]")
    return f"{link[1]}({Path(os.path.relpath(target, there)).as_posix()}{link[3] or ''})"
