"""Draw a plan: a bar for every distribution, cut into the pieces of its clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort.colours import class_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Integers = NDArray[np.int64]

#: At most this many bars are drawn: the first and the last distributions.
MOST_BARS = 60
#: In a bar of more than MANY clients, shares below OWN_PIECE become one grey piece: the rest.
OWN_PIECE, MANY = 0.01, 40
#: The number of slices of the rest, and the shades of its largest and smallest clients.
SLICES, DARKEST, LIGHTEST = 24, 0.62, 0.96
#: With more bars than this, only some are numbered and none has names.
MOST_NAMED_BARS = 30
#: The width of a letter at the size of the names, as a share of a bar.
LETTER_SHARE = 0.0105
#: The shortest beginning that is left out of all names.
SHORTEST_PREFIX = 4
COLOURS, REST_COLOUR = 10, "#dedede"
#: The width of the figure, and the height of a bar and of the rest, in inches.
WIDTH, BAR_HEIGHT, LOWEST_BAR, REST_HEIGHT = 9.0, 0.36, 0.13, 1.0


@dataclass(frozen=True, eq=False)
class Bar:
    """The pieces of one distribution, from left to right; client -1 is the rest.

    ``rest`` has the shares of the clients in the rest, largest first.
    """

    clients: list[int]
    shares: list[float]
    rest: NDArray[np.float64]


def figure_size(n_rows: int) -> tuple[float, float]:
    """Return the width and height of a figure in inches."""
    bars = min(n_rows, MOST_BARS + 1)
    return WIDTH, REST_HEIGHT + max(2, bars) * max(LOWEST_BAR, min(BAR_HEIGHT, 9 / bars))


def draw_plan(axes: Axes, units: csr_array, total: int, ids: Sequence[object]) -> None:
    """Draw the distributions from top to bottom; each client has one colour.

    A client that is split over two neighbouring distributions is last in the first one and first
    in the next. Clients with small shares in a distribution of many are drawn as one grey piece.
    """
    m = units.shape[0]
    shown = list(range(m))
    if m > MOST_BARS:
        shown = [*range(MOST_BARS // 2), -1, *range(m - MOST_BARS // 2, m)]
    bars = {place: bar_of(units, total, row) for place, row in enumerate(shown) if row >= 0}
    colours = _colours(bars.values())
    known = {client for bar in bars.values() for client in bar.clients if client >= 0}
    prefix = _shared_prefix([str(ids[client]) for client in known])
    is_named = False
    for place, bar in bars.items():
        _draw_bar(axes, bar, place, colours)
        if len(shown) <= MOST_NAMED_BARS:
            is_named |= _write_names(axes, bar, place, ids, skip=len(prefix))
    _shade_rests(axes, bars)
    _label(axes, shown)
    notes = [f"names without {prefix!r}"] if prefix and is_named else []
    notes += ["grey: many clients, the darker the larger"] if _has_rest(bars) else []
    axes.set_xlabel("; ".join(["chance of each client to be drawn from the distribution", *notes]))


def _has_rest(bars: Mapping[int, Bar]) -> bool:
    return any(len(bar.rest) for bar in bars.values())


def _label(axes: Axes, shown: Sequence[int]) -> None:
    """Write the numbers of the distributions; -1 stands for those that are not drawn."""
    every = max(1, len(shown) // MOST_NAMED_BARS)
    ticks = [place for place, row in enumerate(shown) if row < 0 or place % every == 0]
    texts = ["..." if shown[place] < 0 else str(shown[place] + 1) for place in ticks]
    axes.set_yticks(ticks, texts)
    axes.set(xlim=(0, 1), ylim=(len(shown) - 0.45, -0.55), ylabel="distribution")
    axes.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
    axes.tick_params(axis="y", length=0)


def _shade_rests(axes: Axes, bars: Mapping[int, Bar]) -> None:
    """Draw every rest in slices; larger clients are darker."""
    if not _has_rest(bars):
        return
    every = np.concatenate([bar.rest for bar in bars.values()])
    low, high = np.log(every.min()), np.log(every.max())
    for place, bar in bars.items():
        if len(bar.rest):
            ends = np.cumsum(bar.rest)
            middles = (np.arange(SLICES) + 0.5) / SLICES * ends[-1]
            typical = np.log(bar.rest[np.searchsorted(ends, middles)])
            shades = LIGHTEST - (LIGHTEST - DARKEST) * (typical - low) / max(high - low, 1e-9)
            left = float(np.cumsum([0.0, *bar.shares])[bar.clients.index(-1)])
            axes.imshow(
                shades[None], cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="bilinear",
                extent=(left, left + ends[-1], place + 0.41, place - 0.41), zorder=1.5,
            )  # fmt: skip


def bar_of(units: csr_array, total: int, row: int) -> Bar:
    """Return the pieces of a row; of many clients, only those with large shares.

    First come clients shared with the row before, then the row's own clients, largest first, then
    those with small shares as one piece, and last the clients shared with the next row.
    """
    entries = slice(units.indptr[row], units.indptr[row + 1])
    clients, amounts = units.indices[entries].astype(np.int64), units.data[entries]
    place = np.isin(clients, _members(units, row + 1)).astype(int)
    place -= np.isin(clients, _members(units, row - 1))
    order = np.lexsort((-amounts, place))
    clients, shares, place = clients[order], amounts[order] / total, place[order]
    is_small = (shares < OWN_PIECE) & (len(clients) > MANY)
    rest = float(shares[is_small].sum())
    at = int(np.count_nonzero(~is_small & (place < 1)))
    kept, own = clients[~is_small].tolist(), shares[~is_small].tolist()
    if rest:
        kept.insert(at, -1)
        own.insert(at, rest)
    return Bar(kept, own, np.sort(shares[is_small])[::-1])


def _members(units: csr_array, row: int) -> Integers:
    """Return the clients of a row; none if there is no such row."""
    if not 0 <= row < units.shape[0]:
        return np.zeros(0, dtype=np.int64)
    members: Integers = units.indices[units.indptr[row] : units.indptr[row + 1]].astype(np.int64)
    return members


def _colours(bars: Iterable[Bar]) -> dict[int, str]:
    """Give colours in turn by first appearance, so that neighbours differ."""
    palette, colours = class_colours(COLOURS), {-1: REST_COLOUR}
    for bar in bars:
        for client in bar.clients:
            colours.setdefault(client, palette[(len(colours) - 1) % COLOURS])
    return colours


def _draw_bar(axes: Axes, bar: Bar, place: int, colours: Mapping[int, str]) -> None:
    shares = np.array(bar.shares)
    ends = np.cumsum(shares)
    axes.barh(
        place, shares, left=ends - shares, height=0.82, linewidth=0.6, edgecolor="white",
        color=[colours[client] for client in bar.clients],
    )  # fmt: skip


def _write_names(axes: Axes, bar: Bar, place: int, ids: Sequence[object], *, skip: int) -> bool:
    """Write every name that fits into its piece; return whether a client was named."""
    ends, is_named = np.cumsum(bar.shares), False
    for client, share, end in zip(bar.clients, bar.shares, ends, strict=True):
        text = str(ids[client])[skip:] if client >= 0 else _rest_text(bar, share)
        if text and len(text) * LETTER_SHARE <= share:
            is_named |= client >= 0
            axes.text(
                end - share / 2, place, text, ha="center", va="center", fontsize=7,
                parse_math=False, color="black" if client < 0 else _contrast(client, bar, axes),
            )  # fmt: skip
    return is_named


def _contrast(client: int, bar: Bar, axes: Axes) -> str:
    """Return the colour of a client's name, black or white, by the brightness of its piece."""
    patch = axes.containers[-1][bar.clients.index(client)]
    red, green, blue, _ = patch.get_facecolor()
    return "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"


def _rest_text(bar: Bar, share: float) -> str:
    """Describe the grey piece, in as many words as fit."""
    number = f"{len(bar.rest):,}"
    most = f"{100 * bar.rest[0]:.2g} %"
    texts = [f"{number} clients, at most {most} each", f"{number} clients", f"+{number}"]
    return next((text for text in texts if len(text) * LETTER_SHARE <= share), "")


def _shared_prefix(names: Sequence[str]) -> str:
    """Return the prefix of all names, without the first digits of a number."""
    first, last = min(names, default=""), max(names, default="")
    # A prefix of the first and the last name in sorted order is a prefix of all names.
    pairs = enumerate(zip(first, last, strict=False))
    length = next((place for place, (a, b) in pairs if a != b), len(first))
    prefix = first[:length].rstrip("0123456789")
    is_whole = any(len(name) == len(prefix) for name in names)
    return "" if is_whole or len(prefix) < SHORTEST_PREFIX else prefix
