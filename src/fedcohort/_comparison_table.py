"""The table of a comparison as text: at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from fedcohort._comparison_row import MEASURED_COHORTS, Row
from fedcohort.designs import AutoDesign

#: The widest line; the usual width of the column of names, and what it may shrink to.
COLUMNS, NAMES, FEWEST = 80, 16, 12

Cell = Callable[[Row], str]

#: Heading and content of every column after the design's label.
SIZES_COLUMNS: dict[str, Cell] = {
    "\nbias": lambda row: "none" if row.unbiased else _mark(row.weights_exact) + f"{row.bias:.3f}",
    "weight\nvar.": lambda row: _mark(row.weights_exact) + short(row.weight_variance),
    "vs\nMD": lambda row: _marked(row.weights_exact, row.weight_variance_ratio),
    "min.\nincl.": lambda row: short(row.smallest_inclusion),
    "mean\nincl.": lambda row: short(row.mean_inclusion),
    "distinct\nclients": lambda row: short(row.expected_distinct, digits=4),
    "max\ndraws": lambda row: short(row.max_count, digits=4),
    "\nbuild": lambda row: in_seconds(row.build_seconds),
    "\ndraw": lambda row: in_seconds(row.draw_seconds),
}
UPDATES_COLUMNS: dict[str, Cell] = {
    "\nV": lambda row: _marked(row.aggregate_variance_exact, row.aggregate_variance),
    "V vs\nMD": lambda row: _marked(row.aggregate_variance_exact, row.aggregate_variance_ratio),
}
#: Columns that make room for V.
LEFT_OUT = ("min.\nincl.", "mean\nincl.", "max\ndraws")

WEIGHTS_TEXT = """\
bias         sum over clients of |E[w] - p|: w aggregation weight, p importance
weight var.  sum over clients of Var[w]; vs MD: divided by multinomial's"""
SIZES_TEXT = f"""{WEIGHTS_TEXT}
incl.        chance to be in the cohort: smallest, and importance-weighted mean
max draws    how often one client can be drawn in one round"""
UPDATES_TEXT = f"""\
V            E|sum w u - sum p u|^2, u the updates: how far a cohort's aggregate
             is from everyone's, bias included; vs MD: divided by multinomial's
{WEIGHTS_TEXT}"""
MEASURED_TEXT = f"""
~            no formula: estimated by Monte Carlo on {MEASURED_COHORTS} drawn cohorts;
             to_frame() and --json have the standard error"""
ESTIMATED_TEXT = """
~            no formula: the design's numbers are estimated on drawn cohorts"""


def cells_of(rows: Iterable[Row], *, has_updates: bool) -> tuple[list[str], list[list[str]]]:
    """Return the headings, of two lines each, and a line of cells for every design."""
    columns = SIZES_COLUMNS
    if has_updates:
        kept = {name: cell for name, cell in SIZES_COLUMNS.items() if name not in LEFT_OUT}
        columns = UPDATES_COLUMNS | kept
    lines = [[row.label, *(cell(row) for cell in columns.values())] for row in rows]
    return ["\ndesign", *columns], lines


def text_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    r"""Write a table: the first column to the left and folded, the others to the right.

    Examples
    --------
    >>> print(text_table(["\ndesign", "weight\nvar."], [["size:whole_rows_first", "0.1"]]))
                     weight
    design             var.
    ───────────────────────
    size:               0.1
    whole_rows_first
    """
    lines = list(lines)
    heads = [heading.split("\n") for heading in headings]
    widths = [max(map(len, [*head, *(line[k] for line in lines)])) for k, head in enumerate(heads)]
    names = [line[0].replace(":", ":\n").split("\n") for line in lines]
    longest = max([NAMES, *(len(part) for parts in names for part in parts)])
    widths[0] = max(FEWEST, min(longest, COLUMNS - sum(widths[1:]) - len(widths[1:])))
    text = [_line([head[k] for head in heads], widths) for k in range(2)]
    text.append("─" * (sum(widths) + len(widths) - 1))
    for parts, line in zip(names, lines, strict=True):
        first, *more = [piece for part in parts for piece in _folded(part, widths[0])]
        text += [_line([first, *line[1:]], widths), *more]
    return "\n".join(text)


def legend(rows: Sequence[Row], *, has_updates: bool) -> str:
    """Say what the columns mean, and what ``auto`` has chosen."""
    text = UPDATES_TEXT if has_updates else SIZES_TEXT
    if has_updates and not all(row.design.exact_moments for row in rows):
        text += MEASURED_TEXT
    elif not all(row.weights_exact for row in rows):
        text += ESTIMATED_TEXT
    chosen = [wrapped(_choice(row)) for row in rows if has_updates and _is_auto(row)]
    return "\n\n".join([text, *chosen])


def wrapped(text: str) -> str:
    """Break a sentence into lines that fit."""
    return textwrap.fill(text, COLUMNS)


def short(value: float | None, digits: int = 3) -> str:
    """Write a number in at most six characters."""
    if value is None:
        return "-"
    if value == 0 or 1e-2 <= abs(value) < 10 ** (digits + 1):
        return f"{value:.{digits}g}"
    for places in (1, 0):
        mantissa, _, exponent = f"{value:.{places}e}".partition("e")
        text = f"{mantissa.removesuffix('.0')}e{int(exponent)}"
        if len(text) <= 6:
            break
    return text


def in_seconds(seconds: float) -> str:
    """Write a time in at most six characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return (
                f"{seconds / size:.3g} {unit}"
                if seconds < 100 * size
                else f"{seconds / size:.0f} {unit}"
            )
    return f"{seconds / 1e-6:.0f} us"


def _is_auto(row: Row) -> bool:
    return isinstance(row.design, AutoDesign)


def _choice(row: Row) -> str:
    assert isinstance(row.design, AutoDesign)  # for mypy: the caller has looked
    predicted = ", ".join(f"{name} {short(v)}" for name, v in row.design.predicted.items())
    return f"{row.label} draws from {row.design.choice}; predicted V: {predicted}"


def _mark(exact: bool | None) -> str:
    return "~" if exact is False else ""


def _marked(exact: bool | None, value: float | None) -> str:
    """Write a number; ``~`` before one that is estimated."""
    return "-" if value is None else _mark(exact) + short(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *more = zip(cells, widths, strict=True)
    line = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in more)]
    return " ".join(line).rstrip()


def _folded(text: str, width: int) -> list[str]:
    return [text[start : start + width] for start in range(0, max(len(text), 1), width)]
