"""Which pages there are, in which order: every page in a folder of docs/ is on the site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from api_pages import GROUPS
from fedcohort.designs import RECIPES

DOCS = Path(__file__).parents[2] / "docs"
#: The kinds of pages: a folder, what it is called and what it is for.
KINDS = (
    ("tutorial", "Tutorial", "Learn it step by step."),
    ("how-to", "How-to", "Get one thing done."),
    ("explanation", "Explanation", "Understand why it works, and when it does not."),
    ("reference", "Reference", "Look it up."),
    ("results", "Results", "What was measured."),
)
#: Which pages of a folder come first, where they are there; all others follow by name.
FIRST_OF = {
    "tutorial": ("first-comparison", "first-flower-run"),
    "how-to": (
        "install",
        "compare",
        "flower",
        "flower-failures",
        "flower-tls",
        "nvflare",
        "nvflare-deployment",
        "fedbiomed",
        "own-server-loop",
        "write-a-plugin",
        "server-optimisers",
        "simulate",
        "experiment-files",
        "own-dataset",
        "own-model",
        "add-a-design",
    ),
    "explanation": (
        "unbiased-sampling",
        "clustered-sampling",
        "beyond",
        "tournament",
        "difference-estimator",
        "regression-estimator",
        "exact-and-estimated",
        "convergence",
    ),
    "reference": ("designs/index", "api/index", "command-line", "experiment-file"),
    "results": ("index", "beyond", "everyone", "cross-device", "roles", "regression"),
}
#: Pages beside the kinds: before them, and at the end.
FIRST, LAST = ("which-design", "glossary"), ("changelog",)


#: Words that readers search for, and pages that answer, in other words perhaps.
SEARCHED = {
    "explanation/availability": ("availability", "dropout"),
    "how-to/devices": ("availability", "stragglers"),
    "how-to/flower-failures": ("dropout", "stragglers"),
    "how-to/nvflare-deployment": ("dropout", "restart"),
    "how-to/own-server-loop": ("availability", "dropout"),
}
#: Pages below a page, in order.
BELOW = {
    "reference/api/index": (
        "fedcohort",
        "designs",
        *(package for packages in GROUPS.values() for package in packages),
    ),
    "reference/designs/index": tuple(RECIPES),
}


def pages(folder: str) -> list[str]:
    """Return the pages of a folder that are there, in order, as names below docs/.

    >>> pages("reference")[2:]
    ['reference/command-line', 'reference/experiment-file']
    """
    there = sorted(page.stem for page in (DOCS / folder).glob("*.md"))
    named = [name for name in FIRST_OF[folder] if (DOCS / folder / f"{name}.md").exists()]
    rest = [name for name in there if name not in named]
    return [f"{folder}/{name}" for name in [*named, *rest]]


def title(page: str) -> str:
    """Return the heading of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def kinds() -> str:
    """Return a list of all kinds of pages, with links to each page."""
    lines = [" · ".join(f"[{title(page)}]({page}.md)" for page in _first()), ""]
    for folder, heading, purpose in KINDS:
        if found := pages(folder):
            lines += [f"- **{heading}.** {purpose}", ""]
            lines += [*(f"  - [{title(page)}]({page}.md)" for page in found), ""]
    return "\n".join(lines)


def navigation(page: str) -> str:
    """Return the part of the navigation that a page carries, hidden; only the site has it."""
    if page == "index":
        groups = [_group("", _first())]
        groups += [_group(heading, pages(folder)) for folder, heading, _ in KINDS]
        groups.append(_group("Project", list(LAST)))
    else:
        groups = [_group("", BELOW[page])] if page in BELOW else []
    return "".join(f"\n\n{group}\n" for group in groups)


def search_words(page: str) -> str:
    """Return the words that the search finds a page by, hidden; only the site has them."""
    words = ", ".join(SEARCHED.get(page, ()))
    return f"```{{index}} {words}\n```\n" if words else ""


def _first() -> list[str]:
    return [page for page in FIRST if (DOCS / f"{page}.md").exists()]


def _group(heading: str, found: Sequence[str]) -> str:
    if not found:
        return ""
    caption = f":caption: {heading}\n" if heading else ""
    return f"```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(found) + "\n```"
