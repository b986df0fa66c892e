"""What a comparison prints: the table of its rows, and the legend."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedcohort._comparison_rows import MEASURED_COHORTS, Row, note_on
from fedcohort.designs import AutoDesign

#: The longest line, and the smallest width of the column of names.
COLUMNS, FEWEST = 80, 12
#: The digits of the numbers in a column, and the longest number before it becomes 1.2e-5.
DIGITS, LONGEST = 3, 7


class Line(NamedTuple):
    """A printed line, and how a terminal shows it: ``bold``, ``dim`` or plain."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column: its two-line heading, and the cells of some rows."""

    heading: str
    cells: Callable[[Sequence[Row]], list[str]]


def _bias(rows: Sequence[Row]) -> list[str]:
    texts = numbers([row.bias for row in rows], exact=[row.weights_exact for row in rows], places=3)
    return ["none" if row.unbiased else text for row, text in zip(rows, texts, strict=True)]


def _clients(rows: Sequence[Row]) -> list[str]:
    """Write how many different clients a cohort has, ± its deviation if its size is random."""
    most = max(row.expected_distinct for row in rows)
    places = 2 if most < 100 else 1 if most < 1000 else 0
    exact = [row.law.exact_counts for row in rows]
    means = numbers([row.expected_distinct for row in rows], exact=exact, places=places)
    spreads = [f" ± {row.size_deviation:.{places}f}" if row.size_deviation else "" for row in rows]
    width = max(map(len, spreads))
    return [f"{mean}{spread:<{width}}" for mean, spread in zip(means, spreads, strict=True)]


def _weights(name: str, places: int | None = None) -> Callable[[Sequence[Row]], list[str]]:
    """Make the cells of a number that follows from the weights."""
    return lambda rows: numbers(
        [getattr(row, name) for row in rows],
        exact=[row.weights_exact for row in rows],
        places=places,
    )


def _aggregates(name: str, places: int | None = None) -> Callable[[Sequence[Row]], list[str]]:
    """Make the cells of a number that follows from the updates."""
    return lambda rows: numbers(
        [getattr(row, name) for row in rows],
        exact=[bool(row.aggregate_variance_exact) for row in rows],
        places=places,
    )


BIAS = Column("\nbias", _bias)
VARIANCE = Column("weight\nvariance", _weights("weight_variance"))
CLIENTS = Column("clients\na round", _clients)
TIME = Column(
    "\ntime", lambda rows: [in_seconds(row.build_seconds + row.draw_seconds) for row in rows]
)
SIZES_COLUMNS = (
    BIAS,
    VARIANCE,
    Column("vs multi-\nnomial", _weights("weight_variance_ratio", 3)),
    Column(
        "smallest\nchance",
        lambda rows: numbers(
            [row.smallest_inclusion for row in rows],
            exact=[row.law.exact_counts for row in rows],
        ),
    ),
    CLIENTS,
    TIME,
)
UPDATES_COLUMNS = (
    Column("\nV", _aggregates("aggregate_variance")),
    Column("vs multi-\nnomial", _aggregates("aggregate_variance_ratio", 3)),
    BIAS,
    VARIANCE,
    CLIENTS,
    TIME,
)

V_TEXT = """\
V                E|sum w u - sum p u|^2, u the updates: how far a cohort's
                 aggregate is from that of all clients, bias included"""
WEIGHTS_TEXT = """\
bias             sum over the clients of |E[w] - p|, w the weight of a client
                 in a round, p its importance: its share of all samples
weight variance  sum over the clients of Var[w]"""
RATIO_TEXT = "vs multinomial   divided by the same of multinomial sampling"
CHANCE_TEXT = "smallest chance  of any client with samples to be in the cohort"
ROUND_TEXT = """\
clients a round  different clients on average; ± standard deviation if the
                 number of draws is random
time             to build the design and to draw once"""


@dataclass(frozen=True)
class Table:
    """The rows of a comparison and what is missing, ready to be printed.

    Attributes
    ----------
    unbiased, biased
        The rows, in this order.
    left_out
        The reasons, by design.
    has_updates
        Whether there is a V.
    """

    unbiased: list[Row]
    biased: list[Row]
    left_out: Mapping[str, str]
    has_updates: bool

    @classmethod
    def of(cls, rows: Iterable[Row], left_out: Mapping[str, str], *, has_updates: bool) -> Table:
        """Put biased rows last."""
        every = list(rows)
        unbiased = [row for row in every if row.unbiased]
        biased = [row for row in every if not row.unbiased]
        return cls(unbiased, biased, left_out, has_updates)

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of the table."""
        return [*self.unbiased, *self.biased]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the two-line headings, and a line of cells for every row."""
        columns = UPDATES_COLUMNS if self.has_updates else SIZES_COLUMNS
        found = [[row.label for row in self.rows], *(each.cells(self.rows) for each in columns)]
        headings = ["\ndesign", *(each.heading for each in columns)]
        return headings, [list(line) for line in zip(*found, strict=True)]

    def lines(self, width: int = COLUMNS) -> list[Line]:
        """Write the table: the names left-aligned and wrapped, the numbers right-aligned."""
        headings, cells = self.cells()
        heads = [heading.split("\n") for heading in headings]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        widths = [max(w, *map(len, head)) for w, head in zip(widths, heads, strict=True)]
        gap = 2 if widths[0] + sum(widths[1:]) + 2 * len(widths[1:]) <= width else 1
        room = width - sum(widths[1:]) - gap * len(widths[1:])
        widths[0] = max(FEWEST, min(max([widths[0], *map(len, self.left_out)]), room))
        whole = sum(widths) + gap * len(widths[1:])
        found = [Line(_joined([head[k] for head in heads], widths, gap)) for k in range(2)]
        found.append(Line("─" * whole))
        n = len(self.unbiased)
        for line in cells[:n]:
            found += [Line(text) for text in _row(line, widths, gap)]
        if self.biased:
            found.append(Line(f"── biased {'─' * (whole - 10)}" if n else "biased", "dim"))
        for line in cells[n:]:
            found += [Line(text, "dim") for text in _row(line, widths, gap)]
        for name, reason in self.left_out.items():
            found += _left_out(name, reason, widths[0] + gap, width)
        return found

    def legend(self) -> str:
        """Return the meaning of the columns, of ``~``, and what ``auto`` has chosen."""
        parts = [V_TEXT] if self.has_updates else []
        parts += [RATIO_TEXT] if self.has_updates else []
        parts.append(WEIGHTS_TEXT)
        parts += [] if self.has_updates else [RATIO_TEXT, CHANCE_TEXT]
        parts += [ROUND_TEXT, *self._estimates()]
        notes = [note_on(row.label, row.design) for row in self.rows]
        extra = [*(note for note in notes if note is not None), *self._chosen()]
        return "\n\n".join(["\n".join(parts), *map(wrapped, extra)])

    def _estimates(self) -> list[str]:
        """Explain ``~``: what was estimated, from how many cohorts, and how well."""
        texts = []
        for row in self.rows:
            if not row.weights_exact:
                number = f"{row.law.estimate_cohorts:,} drawn cohorts"
                errors = (row.bias_standard_error, row.weight_variance_standard_error)
                texts.append(f"{row.label}: weights from {number}{_errors(*errors)}")
            if row.aggregate_variance_exact is False:
                error = _errors(row.aggregate_variance_standard_error)
                texts.append(f"{row.label}: V from {MEASURED_COHORTS} drawn cohorts{error}")
        if not texts:
            return []
        filled = textwrap.fill(
            f"estimated, with standard errors. {'; '.join(texts)}", COLUMNS - 17,
            break_on_hyphens=False,
        )  # fmt: skip
        return [f"~                {filled}".replace("\n", "\n" + 17 * " ")]

    def _chosen(self) -> Iterable[str]:
        """Say what ``auto`` draws from."""
        for row in self.rows if self.has_updates else ():
            if isinstance(row.design, AutoDesign):
                names, values = row.design.predicted.keys(), list(row.design.predicted.values())
                known = zip(names, numbers(values), strict=True)
                predicted = ", ".join(f"{name} {text}" for name, text in known)
                yield f"{row.label} draws from {row.design.choice}; predicted V: {predicted}"


def _errors(*errors: float | None) -> str:
    """Write ``, bias ± 0.001, variance ± 0.002`` or ``, ± 0.003``; nothing if unknown."""
    known = [error for error in errors if error is not None]
    if len(known) == 2:
        return f", bias ± {known[0]:.2g} and variance ± {known[1]:.2g}"
    return f", ± {known[0]:.2g}" if known else ""


def _left_out(name: str, reason: str, indent: int, width: int) -> list[Line]:
    why = reason.partition(". ")[0].rstrip(".")
    first = f"{name:<{indent - 1}} " if len(name) < indent else f"{name} "
    found = textwrap.wrap(
        f"left out: {why}", width, initial_indent=first,
        subsequent_indent=" " * indent, break_on_hyphens=False,
    )  # fmt: skip
    return [Line(text, "dim") for text in found]


def _row(line: Sequence[str], widths: Sequence[int], gap: int) -> list[str]:
    """Write a row: the numbers stand in the last line of a name that takes several."""
    *before, last = _folded(line[0], widths[0])
    return [*before, _joined([last, *line[1:]], widths, gap)]


def _joined(cells: Sequence[str], widths: Sequence[int], gap: int) -> str:
    first, *more = zip(cells, widths, strict=True)
    texts = [f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in more)]
    return (gap * " ").join(texts).rstrip()


def _folded(name: str, width: int) -> list[str]:
    """Break a name that is too long, behind a colon if possible."""
    if len(name) <= width:
        return [name]
    cut = name[:width].rfind(":") + 1 or width
    return [name[:cut], *_folded(name[cut:], width)]


def wrapped(text: str) -> str:
    """Break a sentence into lines that fit; names stay whole."""
    return textwrap.fill(text, COLUMNS, break_on_hyphens=False)


def numbers(
    values: Sequence[float | None],
    *,
    exact: Sequence[bool] | None = None,
    places: int | None = None,
) -> list[str]:
    """Write the numbers of a column with equal decimals, ``~`` before estimates, ``-`` for None.

    ``places`` is their number; by default as many as show three digits of most numbers. If these
    need too much room, all numbers are written as 1.23e-5.

    Examples
    --------
    >>> numbers([0.0987, 0.08754, 0.00001], exact=[True, False, True])
    ['0.0987', '~0.0875', '<0.0001']
    >>> numbers([3e-9, 2e-9, None, 0])
    ['3.00e-9', '2.00e-9', '-', '0']
    """
    known = [abs(value) for value in values if value]
    if places is None:
        typical = float(np.quantile(known, 0.25)) if known else 1.0  # of the smaller ones
        places = max(0, DIGITS - 1 - math.floor(math.log10(typical)))
        fits = len(f"{max(known, default=0.0):.{places}f}") <= LONGEST
        places = places if fits else None
    marks = exact if exact is not None else [True] * len(values)
    return [
        _number(value, places, "" if sure else "~")
        for value, sure in zip(values, marks, strict=True)
    ]


def _number(value: float | None, places: int | None, mark: str) -> str:
    """Write a number with this many decimals; with an exponent if that is None or too long."""
    if value is None:
        return "-"
    least = 0.0 if places is None else 10.0**-places
    if 0 < abs(value) < least / 2:
        return f"<{least:.{places}f}"
    text = f"{value:.{places}f}" if places is not None else "0"
    if value and (places is None or len(text) > LONGEST):
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    return mark + text


def in_seconds(seconds: float) -> str:
    """Write a time in at most six characters."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        number = seconds / size
        if number >= 0.9995:
            return f"{number:.3g} {unit}" if number < 100 else f"{number:.0f} {unit}"
    return f"{seconds / 1e-6:.0f} us"
