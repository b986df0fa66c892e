"""Draw how the clients are cut into distributions, as in the paper's appendix C."""

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedcohort.designs import RowDesign
from fedcohort.errors import InputError

PER_LINE = 5
MOST_ROWS = 100
MOST_PIECES = 10_000
#: Narrowest piece that is labelled, and width of a letter, as shares of a distribution.
NAMED_SHARE = 0.035
LETTER_SHARE = 0.028
EDGED_SHARE = 0.012
LONGEST_NAME = 11


def allocation_figure(design: RowDesign) -> Figure:
    """Draw every distribution as a box of its clients' pieces, five boxes a line.

    Each client has one colour. If a client is split over two neighbouring distributions, its two
    pieces touch at the cut.
    """
    m, n_pieces = design.cohort_size, design.plan.units.nnz
    if m > MOST_ROWS or n_pieces > MOST_PIECES:
        raise InputError(
            f"allocation figure: draws at most {MOST_ROWS} distributions of {MOST_PIECES} pieces "
            f"together; got {m} of {n_pieces}. Write the plan to a CSV file instead."
        )
    n_lines = math.ceil(m / PER_LINE)
    figure = Figure(figsize=(12, 0.6 + 1.15 * n_lines), layout="constrained")
    figure.suptitle(
        f"$m$ = {m} distributions of $M$ = {design.plan.total} units; client $i$ takes $m\\,n_i$"
    )
    numbers = _by_appearance(design)
    every_axes = figure.subplots(n_lines, 1, squeeze=False)[:, 0]
    for line, axes in enumerate(every_axes):
        for k in range(line * PER_LINE, min(m, (line + 1) * PER_LINE)):
            _draw_row(axes, design, k, numbers, left=k - line * PER_LINE)
        axes.set(xlim=(-0.01, PER_LINE + 0.01), ylim=(-0.35, 1.05))
        axes.axis("off")
    return figure


def _draw_row(
    axes: Axes, design: RowDesign, k: int, numbers: NDArray[np.int64], *, left: float
) -> None:
    clients, shares = _in_line_order(design, k)
    ends = np.cumsum(shares)
    colours = colormaps["tab20"](numbers[clients] % 20)
    # A white edge would cover a narrow piece.
    edges = np.where(shares >= EDGED_SHARE, 0.8, 0.0)
    axes.barh(
        0.5,
        shares,
        left=left + ends - shares,
        height=1.0,
        color=colours,
        edgecolor="white",
        linewidth=edges,
    )
    for client, share, end in zip(clients, shares, ends, strict=True):
        if share >= NAMED_SHARE:
            name = str(design.population.ids[client])
            _write_name(axes, name, share, middle=left + end - share / 2)
    axes.plot([left, left, left + 1, left + 1, left], [0, 1, 1, 0, 0], color="black", linewidth=1.5)
    axes.text(left + 0.5, -0.28, f"$W_{{{k + 1}}}$", ha="center", fontsize=9)


def _write_name(axes: Axes, name: str, share: float, *, middle: float) -> None:
    """Write a client's name into its piece: shortened if it is long, upright if it is wide."""
    is_long = len(name) > LONGEST_NAME
    axes.text(
        middle,
        0.5,
        f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}" if is_long else name,
        rotation=0 if len(name) * LETTER_SHARE <= share else 90,
        ha="center",
        va="center",
        fontsize=8,
        parse_math=False,
    )


def _by_appearance(design: RowDesign) -> NDArray[np.int64]:
    """Assign numbers by first appearance, so that neighbours differ in colour."""
    line = np.concatenate([_in_line_order(design, k)[0] for k in range(design.cohort_size)])
    clients, first = np.unique(line, return_index=True)
    numbers = np.zeros(design.population.n_clients, dtype=np.int64)
    numbers[clients[np.argsort(first)]] = np.arange(len(clients))
    return numbers


def _in_line_order(design: RowDesign, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return row k's clients and shares: shared with row k - 1, its own, shared with row k + 1."""
    units = design.plan.units
    entries = slice(units.indptr[k], units.indptr[k + 1])
    clients, amounts = units.indices[entries].astype(np.int64), units.data[entries]
    before = units.indices[units.indptr[max(k - 1, 0)] : units.indptr[k]]
    after = units.indices[units.indptr[k + 1] : units.indptr[min(k + 2, design.cohort_size)]]
    place = np.isin(clients, after).astype(int) - np.isin(clients, before)
    order = np.lexsort((-amounts, place))
    return clients[order], amounts[order] / design.plan.total
