"""Parts of HTML pages: tables, data for scripts, and the files of styles and scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a table: its HTML, and what to sort it by."""

    html: str
    value: float | str


def table_html(
    headings: Sequence[str], rows: Iterable[Sequence[str | Cell]], *, name: str, kind: str = ""
) -> str:
    """Return a table. Cells must be HTML already."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f"<tr>{_cell(row[0])}{''.join(map(_cell, row[1:], headings[1:]))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0">'
        f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    ).replace(' class=""', "")


def _cell(cell: str | Cell, heading: str = "") -> str:
    """Return a cell under its heading; without one it is the heading of the row."""
    html, value = cell if isinstance(cell, Cell) else (cell, "")
    sorted_by = "" if value == "" else f' data-value="{escape(str(value))}"'
    if not heading:
        return f'<th scope="row"{sorted_by}>{html}</th>'
    return f'<td data-label="{escape(heading)}"{sorted_by}>{html}</td>'


def details(title: str, text: str, *, is_open: bool) -> str:
    """Return a text that a click opens."""
    return (
        f"<details{' open' if is_open else ''}><summary>{title}</summary>"
        f'<pre tabindex="0">{escape(text)}</pre></details>'
    )


def script_json(content: object) -> str:
    """Return JSON for a script tag. Escape ``<`` so that data cannot close the tag."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def watch_script(version: str) -> str:
    """Return the script by which a page of this version asks its server for a newer one."""
    own = f"const WATCHED = {script_json(version)};\n{own_file('watch.js')}"
    return f"<script>{own}</script>"


def own_file(name: str) -> str:
    """Return a file of this folder."""
    return (files("fedcohort.report") / name).read_text(encoding="utf-8")
