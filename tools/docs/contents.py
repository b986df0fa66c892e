"""Which pages there are, in which order: every page in a folder of docs/ is on the site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from api_pages import GROUPS, class_pages
from fedcohort.designs import RECIPES
from public_names import packages

DOCS = Path(__file__).parents[2] / "docs"
#: The kinds of pages: a folder, what it is called and what it is for.
KINDS = (
    ("tutorial", "Tutorial", "Learn it step by step."),
    ("how-to", "How-to", "Get one thing done."),
    ("explanation", "Explanation", "Understand why it works, and when it does not."),
    ("reference", "Reference", "Look it up."),
    ("results", "Results", "What was measured."),
)
#: Groups of the how-to pages, with the pages of each; those that are not there are left out, and
#: a page in no group comes last, under MORE.
HOW_TO = {
    "Start": ("install", "compare", "own-server-loop", "audit"),
    "Plug-ins": (
        *("flower", "flower-failures", "flower-tls"),
        *("nvflare", "nvflare-deployment", "fedbiomed"),
    ),
    "Experiments": (
        *("studies", "experiment-files", "simulate", "own-dataset", "own-model"),
        *("server-optimisers", "devices", "resume", "trackers"),
    ),
    "Scale": ("workers", "gpu", "clusters", "merge", "large-populations", "bare-machine"),
    "Extend": ("add-a-design", "write-a-plugin"),
}
MORE = "More"
#: Which pages of a folder come first, where they are there; all others follow by name.
FIRST_OF = {
    "tutorial": ("first-comparison", "three-hundred-hospitals", "first-flower-run"),
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
    "results": (
        "index",
        "beyond",
        "everyone",
        "cross-device",
        "roles",
        "regression",
        "presence",
    ),
}
#: Pages beside the kinds: before them, and at the end.
FIRST, LAST = ("which-design", "gallery", "glossary"), ("changelog",)


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


def below(page: str) -> tuple[str, ...]:
    """Return the pages below a page, as names beside it.

    >>> below("reference/api/memory")[:2]
    ('memory/Estimator', 'memory/EstimatorSettings')
    """
    for package in packages():
        name = package.removeprefix("fedcohort.")
        if page == f"reference/api/{name}":
            return tuple(f"{name}/{path.rpartition('.')[2]}" for path in class_pages(package))
    return BELOW.get(page, ())


def pages(folder: str) -> list[str]:
    """Return the pages of a folder that are there, in order, as names below docs/.

    >>> pages("reference")[2:]
    ['reference/command-line', 'reference/experiment-file']
    """
    there = sorted(page.stem for page in (DOCS / folder).glob("*.md"))
    first = FIRST_OF.get(folder) or [name for names in HOW_TO.values() for name in names]
    named = [name for name in first if (DOCS / folder / f"{name}.md").exists()]
    rest = [name for name in there if name not in named]
    return [f"{folder}/{name}" for name in [*named, *rest]]


def groups(folder: str) -> dict[str, list[str]]:
    """Return the pages of a folder by group; only the how-to pages have named ones.

    >>> list(groups("how-to")), groups("tutorial")[""][0]
    (['Start', 'Plug-ins', 'Experiments', 'Scale', 'Extend'], 'tutorial/first-comparison')
    """
    if folder != "how-to":
        return {"": pages(folder)}
    group_of = {f"{folder}/{name}": group for group, names in HOW_TO.items() for name in names}
    found: dict[str, list[str]] = {}
    for page in pages(folder):
        found.setdefault(group_of.get(page, MORE), []).append(page)
    return found


def title(page: str) -> str:
    """Return the heading of a page."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def kinds() -> str:
    """Return a list of all kinds of pages, with links to each page."""
    lines = [" · ".join(f"[{title(page)}]({page}.md)" for page in _first()), ""]
    for folder, heading, purpose in KINDS:
        lines += [f"- **{heading}.** {purpose}", ""]
        for group, found in groups(folder).items():
            indent = "    " if group else "  "
            lines += [f"  - {group}", ""] if group else []
            lines += [*(f"{indent}- [{title(page)}]({page}.md)" for page in found), ""]
    return "\n".join(lines)


def navigation(page: str) -> str:
    """Return the part of the navigation that a page carries, hidden; only the site has it."""
    if page == "index":
        trees = [_tree("", _first())]
        for folder, heading, _ in KINDS:
            for group, found in groups(folder).items():
                trees.append(_tree(f"{heading}: {group.lower()}" if group else heading, found))
        trees.append(_tree("Project", list(LAST)))
    else:
        trees = [_tree("", below(page))]
    return "".join(f"\n\n{tree}\n" for tree in trees if tree)


def search_words(page: str) -> str:
    """Return the words that the search finds a page by, hidden; only the site has them."""
    words = ", ".join(SEARCHED.get(page, ()))
    return f"```{{index}} {words}\n```\n" if words else ""


def _first() -> list[str]:
    return [page for page in FIRST if (DOCS / f"{page}.md").exists()]


def _tree(heading: str, found: Sequence[str]) -> str:
    if not found:
        return ""
    caption = f":caption: {heading}\n" if heading else ""
    return f"```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(found) + "\n```"
