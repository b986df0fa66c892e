"""The gallery: pictures, each with the lines of code that draw it.

``python tools/docs/gallery.py`` runs every file of docs/gallery, which draws its picture. A file's
docstring is a question, which becomes its heading on the page, and a sentence about the picture.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
GALLERY = DOCS / "gallery"
#: In this order on the page.
NAMES = (
    *("digits-drawn", "training", "chances", "variance"),
    *("unbiased", "alike", "served", "waiting"),
)
COLUMNS = 2


def source(name: str) -> str:
    """Return the code of a picture."""
    return (GALLERY / f"{name}.py").read_text(encoding="utf-8")


def words(name: str) -> tuple[str, str]:
    """Return the question that a picture answers, and what it shows.

    >>> words("variance")[0]
    'How much luck is in a round?'
    """
    question, mark, text = (ast.get_docstring(ast.parse(source(name))) or "").partition("? ")
    return f"{question}{mark.strip()}", text


def gallery() -> str:
    """Return all pictures, linked to their code, and the code."""
    cells = [f"[{_picture(name)}](#{_anchor(words(name)[0])})" for name in NAMES]
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    table = "\n".join([lines[0], "| --- " * COLUMNS + "|", *lines[1:]])
    return "\n\n".join([table, *map(_section, NAMES)])


def _picture(name: str) -> str:
    return f"![{words(name)[1]}](gallery/{name}.png)"


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-").rstrip("?")


def _section(name: str) -> str:
    question, text = words(name)
    code = source(name).partition('"""\n\n')[2]
    return (
        f"## {question}\n\n{text}\n\n{_picture(name)}\n\n"
        f'`{name}.py` draws it:\n\n```python title="{name}.py"\n{code}```'
    )


def draw(folder: Path) -> None:
    """Run all files in a folder: each writes its picture there."""
    import matplotlib as mpl
    from matplotlib import pyplot

    os.chdir(folder)
    for name in NAMES:
        with mpl.rc_context(fname=str(GALLERY / "matplotlibrc")):
            runpy.run_path(str(GALLERY / f"{name}.py"))
            pyplot.close("all")


if __name__ == "__main__":
    draw(GALLERY)
    sys.stdout.write(f"{len(NAMES)} pictures; python tools/docs/made_pages.py writes the page\n")
