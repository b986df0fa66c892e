"""Display of objects and numbers: a short ``repr``, equal digits, units that fit, HTML tables."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import fields, is_dataclass
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

#: The width of a printed object.
COLUMNS = 80
#: The longest text of a value in a list.
LONGEST = 24
#: Units, smallest first: name, short name, and size.
Units = tuple[tuple[str, str, float], ...]
SECONDS: Units = (
    ("microseconds", "\N{MICRO SIGN}s", 1e-6),
    ("milliseconds", "ms", 1e-3),
    ("seconds", "s", 1.0),
    ("minutes", "min", 60.0),
    ("hours", "h", 3600.0),
    ("days", "d", 86400.0),
)
BYTES: Units = (
    ("bytes", "B", 1.0),
    ("kilobytes", "kB", 1e3),
    ("megabytes", "MB", 1e6),
    ("gigabytes", "GB", 1e9),
    ("terabytes", "TB", 1e12),
)
#: The most decimals of a column, and the numbers from which on a power of ten is shorter.
MOST_DECIMALS, LARGEST = 8, 1e7
NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


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


def seconds_left(seconds: float) -> str:
    """Say how long something still takes.

    Examples
    --------
    >>> seconds_left(12.3), seconds_left(200)
    ('12 s left', 'about 3 min left')
    """
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


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


def times(n: int) -> str:
    """Write how often something happened.

    Examples
    --------
    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if n == 1 else f"{n} times"


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    Examples
    --------
    >>> counted(1, "round"), counted(3000, "round")
    ('1 round', '3,000 rounds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(names: Sequence[str], most: int) -> list[str]:
    """Return the names; if they are too many, the first ones and how many more there are.

    Examples
    --------
    >>> shortened(["a", "b", "c"], most=2), shortened(["a", "b", "c", "d"], most=2)
    (['a', 'b', 'c'], ['a', 'b', '2 more'])
    """
    more = len(names) - most
    return [*names[:most], f"{more} more"] if more > 1 else list(names)


def decimals_of(values: Iterable[float], digits: int = 3) -> int:
    """Return how many decimals a column needs to show its smallest number with ``digits`` digits.

    Examples
    --------
    >>> decimals_of([0.583, 4.137])
    3
    >>> decimals_of([128.0, 17.25], digits=2)
    0
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value != 0]
    if not sizes:
        return 0
    leading = math.floor(math.log10(float(f"{min(sizes):.{digits - 1}e}")))
    return min(MOST_DECIMALS, max(0, digits - 1 - leading))


def fixed(value: float, decimals: int, *, sign: bool = False) -> str:
    """Write a number with these decimals, a true minus sign, and a dash for NaN.

    Examples
    --------
    >>> fixed(0.5827, 3), fixed(-0.04, 1, sign=True)
    ('0.583', '0.0')
    """
    if math.isnan(value):
        return NOTHING
    if abs(value) >= LARGEST:
        return f"{value:.3g}".replace("-", MINUS)
    text = f"{value:.{decimals}f}"
    is_zero = not text.strip("-0.")
    if is_zero:
        return text.lstrip("-")
    return f"{'+' if sign and value > 0 else ''}{text}".replace("-", MINUS)


def per_cent(share: float, decimals: int = 1) -> str:
    """Write a share in per cent: ``81.5 %``."""
    text = fixed(100 * share, decimals)
    return text if text == NOTHING else f"{text} %"


def small_share(share: float) -> str:
    """Write the share of one of many in per cent, below 1 % with two digits.

    Examples
    --------
    >>> small_share(0.815), small_share(0.00126), small_share(0.0000061), small_share(0.0)
    ('81.5 %', '0.13 %', '0.00061 %', '0.0 %')
    """
    small = 0 < share < 0.01
    return per_cent(share, min(8, 1 - math.floor(math.log10(100 * share))) if small else 1)


def fitting_unit(largest: float, units: Units) -> tuple[str, str, float]:
    """Return the largest unit that is not larger than ``largest``, or the smallest unit.

    Examples
    --------
    >>> fitting_unit(0.36, SECONDS)
    ('milliseconds', 'ms', 0.001)
    >>> fitting_unit(5400, SECONDS)[0]
    'hours'
    """
    return next((unit for unit in reversed(units) if unit[2] <= largest), units[0])


def plain_table(*headings: str, left: tuple[str, ...] = (), min_width: int = 0) -> Table:
    """Return a table without a frame. Align the first column and those in ``left`` to the left.

    With ``min_width``, only the first column may wrap, down to this width. Without it, all may.
    """
    from rich import box  # only who prints a table needs it
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        is_left = place == 0 or heading in left
        table.add_column(
            heading,
            justify="left" if is_left else "right",
            overflow="fold" if min_width and place == 0 else "ellipsis",
            min_width=min_width if place == 0 else None,
            no_wrap=bool(min_width) and place > 0,
        )
    return table


def printed(*parts: Any) -> str:
    """Return what rich prints of texts, tables and other parts, plain and of 80 columns."""
    from rich.console import Console

    console = Console(
        width=COLUMNS, file=StringIO(), color_system=None, force_jupyter=False,
        legacy_windows=False, markup=False, emoji=False, highlight=False,
    )  # fmt: skip
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
