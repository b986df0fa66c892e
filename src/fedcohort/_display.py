"""Display of objects: a short ``repr``, and a small HTML table in notebooks."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

#: The longest text of a value in a list.
LONGEST = 24


def short_repr(owner: object, **parts: object) -> str:
    """Return ``Name(part=value, ...)``; floats have four digits.

    Examples
    --------
    >>> short_repr(object(), n_clients=3, loss=0.123456)
    'object(n_clients=3, loss=0.1235)'
    """
    inside = ", ".join(f"{name}={short(value)}" for name, value in parts.items())
    return f"{type(owner).__name__}({inside})"


def record_repr(record: Any) -> str:
    """Return the ``repr`` of a dataclass without the fields that equal their default."""
    if not is_dataclass(record):
        return repr(record)
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    defaults = {each.name: repr(each.default) for each in fields(record)}
    changed = {name: value for name, value in values.items() if repr(value) != defaults[name]}
    return short_repr(record, **changed)


def short(value: object) -> str:
    """Write a number to four digits, and everything else as its ``repr``."""
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def short_list(values: Iterable[object], width: int = 40) -> str:
    """Write as many values as fit into ``width`` characters, at least one.

    Examples
    --------
    >>> short_list(range(100), width=10)
    '[0, 1, 2, ...]'
    >>> short_list(["Nice", "Lyon"])
    "['Nice', 'Lyon']"
    """
    texts: list[str] = []
    for value in values:
        text = short(value)
        text = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
        if texts and sum(map(len, texts)) + 2 * len(texts) + len(text) > width:
            texts.append("...")
            break
        texts.append(text)
    return f"[{', '.join(texts)}]"


def html_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    n_rows: int = 0,
    most: int = 10,
    dim: Container[int] = (),
) -> str:
    """Return a titled HTML table of at most ``most`` rows, every cell escaped.

    ``n_rows`` is the number of all rows; a last line counts those that are left out. Rows in
    ``dim`` are pale. The last cell of a short row spans the columns that are left.
    """
    lines = [_line("th", header)] if header else []
    for place, row in enumerate(islice(rows, most)):
        lines.append(_line("td", row, pale=place in dim, span=len(header) - len(row) + 1))
    left = f"<p>... and {n_rows - most} more</p>" if n_rows > most else ""
    table = f"<table>{''.join(lines)}</table>"
    return f"<div><p><strong>{_cell(title)}</strong></p>{table}{left}</div>"


def _line(tag: str, cells: Sequence[object], *, pale: bool = False, span: int = 1) -> str:
    style = ' style="opacity:0.6"' if pale else ""
    texts = [f"<{tag}>{_cell(cell)}</{tag}>" for cell in cells]
    if span > 1:
        texts[-1] = texts[-1].replace(f"<{tag}>", f'<{tag} colspan="{span}">', 1)
    return f"<tr{style}>{''.join(texts)}</tr>"


def _cell(value: object) -> str:
    from html import escape  # only notebooks need it

    return escape(value if isinstance(value, str) else short(value))
