"""Figures: check paths and axes early, draw comparisons and plans, and write files atomically."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief, checked_path
from fedcohort._lazy import import_extra
from fedcohort._whole_file import replace_whole
from fedcohort.colours import class_colours, design_colours, design_dashes
from fedcohort.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SUFFIXES = (".png", ".svg", ".pdf")
#: The style of all figures.
STYLE: dict[str, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.size": 9,
    "legend.frameon": False,
    "savefig.dpi": 160,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fedcohort",
    "text.parse_math": False,  # users choose the labels
}
#: Line styles and bar patterns, for designs of the same colour.
LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
HATCHES = {"solid": "", "dash": "///", "dot": "...", "dashdot": "xxx"}
#: No dates, so that drawing again gives the same bytes.
METADATA: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def checked_figure_path(
    path: str | Path | None, owner: str, argument: str = "--plot"
) -> Path | None:
    """Validate the path of a figure; call it before the long work. None means no file."""
    if path is None:
        return None
    if not isinstance(path, (str, Path)):
        raise InputError(
            f"{owner}: {argument} must be a file name that ends in {', '.join(SUFFIXES)}; got "
            f"{brief(path)}. Pass a string or a Path."
        )
    found = Path(path)
    if found.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{owner}: {argument} must end in {', '.join(SUFFIXES)}; got {brief(found.name)}. "
            f"Rename it."
        )
    checked_path(owner, argument, path, error=InputError)
    import_extra("matplotlib.figure", extra="report", owner=f"{owner} {argument}")
    return found


def check_axes(owner: str, *axes: object) -> None:
    """Raise if something is not an axes of matplotlib."""
    kind = import_extra("matplotlib.axes", extra="report", owner=owner).Axes
    for each in axes:
        if not isinstance(each, kind):
            raise InputError(
                f"{owner}: ax must be axes of matplotlib; got {brief(each)}. Pass for example "
                f"what pyplot.subplots() returned, or leave it out."
            )


def styled(owner: str) -> AbstractContextManager[None]:
    """Return a context in which figures have the style of this package."""
    context: AbstractContextManager[None] = import_extra(
        "matplotlib", extra="report", owner=owner
    ).rc_context(STYLE)
    return context


def new_figure(owner: str, size: tuple[float, float], *, shown: bool) -> Figure:
    """Return a new figure; if it is shown, one of pyplot, since notebooks need that."""
    module, maker = ("matplotlib.pyplot", "figure") if shown else ("matplotlib.figure", "Figure")
    make = getattr(import_extra(module, extra="report", owner=owner), maker)
    figure: Figure = make(figsize=size, layout="constrained")
    return figure


def three_panels(figure: Figure) -> tuple[Axes, Axes, Axes]:
    """Return the axes of curves, of a strip below them that shares their sizes, and of bars."""
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2), height_ratios=(5, 1))
    top = figure.add_subplot(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=top)
    top.tick_params(labelbottom=False)
    return top, below, figure.add_subplot(grid[:, 1])


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix. The same figure gives the same bytes."""
    suffix = path.suffix.lower()
    options: dict[str, Any] = {"format": suffix[1:], "metadata": METADATA.get(suffix)}
    with styled("save_figure"), warnings.catch_warnings():
        # Characters missing from the font are drawn as boxes; no warning is needed.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        replace_whole(path, lambda temporary: figure.savefig(temporary, **options))


#: Sizes that differ by more than this factor get a logarithmic axis.
LOG_FACTOR = 50
#: Up to MOST_POINTS different sizes, each has a point; else sizes are divided into BINS bins.
MOST_POINTS, BINS = 40, 40
#: The part of a bin's clients inside the band.
BAND = (0.05, 0.95)
#: Curves that differ by no more than this factor share a line.
ONE_LINE = 1.02
#: The width of the first line and of the last, so that all lines stay visible if they coincide.
WIDTHS = (3.6, 1.4)
#: Bars of larger ratios are cut off, with an arrow.
LONGEST_BAR = 4.0
#: The longest name of a design beside its bar, or in a legend.
LONGEST_NAME = 34


@dataclass(frozen=True, eq=False)
class Curve:
    """A design's chance by size: a typical value, and a band of nearly all clients."""

    sizes: Floats
    middle: Floats
    low: Floats
    high: Floats

    @property
    def is_band(self) -> bool:
        """Whether clients of similar size differ visibly."""
        return bool((self.high > ONE_LINE * self.low).any())

    def is_close_to(self, other: Curve) -> bool:
        """Return whether two curves would coincide in the figure."""
        return bool(np.allclose(self.middle, other.middle, rtol=ONE_LINE - 1, atol=0))


@dataclass(frozen=True, eq=False)
class SizeBins:
    """Clients with samples, by size: one bin for every size if these are few."""

    sizes: Floats
    edges: Floats | None
    is_log: bool

    @classmethod
    def of(cls, sizes: NDArray[np.int64]) -> SizeBins:
        """Make the bins; ``sizes`` are positive."""
        numbers, is_log = sizes.astype(np.float64), bool(sizes.max() > LOG_FACTOR * sizes.min())
        if len(np.unique(sizes)) <= MOST_POINTS:
            return cls(numbers, None, is_log)
        space = np.geomspace if is_log else np.linspace
        return cls(numbers, space(numbers.min(), numbers.max(), BINS + 1), is_log)

    def curve(self, chances: Floats) -> Curve:
        """Return the median of each bin's chances, and the band."""
        if self.edges is None:
            _, bins = np.unique(self.sizes, return_inverse=True)
        else:
            bins = np.clip(np.searchsorted(self.edges, self.sizes, "right") - 1, 0, BINS - 1)
        order = np.argsort(bins, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(bins[order])) + 1)
        middle = np.array([np.median(chances[part]) for part in parts])
        low, high = np.array([np.quantile(chances[part], BAND) for part in parts]).T
        return Curve(np.array([np.median(self.sizes[part]) for part in parts]), middle, low, high)


def draw_inclusion(axes: Axes, sizes: NDArray[np.int64], chances: Mapping[str, Floats]) -> None:
    """Plot the chance to be in the cohort against the client's size, a line per design.

    Clients of size 0 are left out. Designs whose lines would coincide share one.
    """
    some = sizes > 0
    bins = SizeBins.of(sizes[some])
    curves = {name: bins.curve(chance[some]) for name, chance in chances.items()}
    groups = _together(curves)
    colours, dashes = design_colours(chances), design_dashes(chances)
    widths = np.linspace(*WIDTHS, len(groups)) if len(groups) > 1 else [np.mean(WIDTHS)]
    for names, width in zip(groups, widths, strict=True):
        curve, colour = curves[names[0]], colours[names[0]]
        style = LINE_STYLES[dashes[names[0]]]
        marker = "o" if bins.edges is None else ""
        axes.plot(
            curve.sizes, curve.middle, style, color=colour, linewidth=width, marker=marker,
            markersize=width + 2.5, label=legend_text(names),
        )  # fmt: skip
        if curve.is_band:
            axes.fill_between(
                curve.sizes, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0
            )
    axes.set(xlabel="client size, in samples", ylabel="chance to be in the cohort")
    _scale(axes, bins, curves.values())
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small")


def _scale(axes: Axes, bins: SizeBins, curves: Iterable[Curve]) -> None:
    """Set the axes' scales; chances of 0 need a linear one."""
    axes.set_xscale("log" if bins.is_log else "linear")
    if not bins.is_log:
        axes.locator_params(axis="x", integer=True)
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
    if bins.is_log and min(curve.low.min() for curve in curves) > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda chance, _: f"{100 * chance:.3g} %")


def _together(curves: Mapping[str, Curve]) -> list[list[str]]:
    """Return groups of names whose curves coincide."""
    groups: list[list[str]] = []
    for name, curve in curves.items():
        own = next((each for each in groups if curve.is_close_to(curves[each[0]])), None)
        groups.append([name]) if own is None else own.append(name)
    return groups


def legend_text(names: Sequence[str]) -> str:
    """Join names, a few per line. Pad a leading underscore: matplotlib would hide the entry."""
    lines = [""]
    for place, name in enumerate(map(shortened, names)):
        text = name if place == len(names) - 1 else f"{name}, "
        if lines[-1] and len(lines[-1]) + len(text) > LONGEST_NAME:
            lines.append("")
        lines[-1] += text
    text = "\n".join(line.rstrip() for line in lines)
    return f"\N{THIN SPACE}{text}" if text[:1] == "_" else text


def shortened(name: str) -> str:
    """Cut a name that is too long for a figure."""
    return (
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def draw_size_density(axes: Axes, sizes: NDArray[np.int64]) -> None:
    """Plot how many clients have which size."""
    some = sizes[sizes > 0]
    bins = SizeBins.of(some)
    if bins.edges is None:
        places, counts = np.unique(some, return_counts=True)
        axes.vlines(places, 0, counts, color="#7d7d7d", linewidth=2.5)
    else:
        axes.hist(some, bins=bins.edges.tolist(), color="#b9b9b9")
    axes.set(ylabel="clients", ylim=(0, None))
    axes.locator_params(axis="y", nbins=2, integer=True)


def draw_ratios(
    axes: Axes,
    ratios: Mapping[str, float | None],
    *,
    order: Iterable[str],
    pale: Iterable[str],
    estimated: Iterable[str],
) -> None:
    """Plot a bar per design: its variance over multinomial's; biased ones are ``pale``.

    ``order`` has all names in the order of their colours.
    """
    order, faint, about = list(order), set(pale), set(estimated)
    colours = design_colours(order)
    known = [ratio for ratio in ratios.values() if ratio is not None]
    most = min(LONGEST_BAR, max([1.0, *known])) * 1.02
    dashes = design_dashes(order)
    for place, (name, ratio) in enumerate(ratios.items()):
        axes.barh(
            place, min(ratio or 0.0, most), height=0.7, color=colours[name],
            hatch=HATCHES[dashes[name]], edgecolor="white", linewidth=0,
            alpha=0.35 if name in faint else 1.0,
        )  # fmt: skip
        mark = "~" if name in about else ""
        text = "none" if ratio is None else f"{mark}{_ratio_text(ratio)}"
        text += "  biased" if name in faint else ""
        # Beside the axes, where no bar ends.
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center")
        if (ratio or 0.0) > most:
            axes.text(
                0.98 * most, place, "\N{RIGHTWARDS ARROW}", ha="right", va="center", color="white",
                fontweight="bold",
            )  # fmt: skip
    axes.axvline(1, color="black", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(ratios)), [shortened(name) for name in ratios])
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(0, most), ylim=(len(ratios) - 0.4, -0.6))
    axes.spines["left"].set_visible(False)


def _ratio_text(ratio: float) -> str:
    """Write a ratio with two decimals, or two digits if it is large."""
    if ratio < 0.005:
        return "< 0.01" if ratio else "0.00"
    return f"{ratio:.2f}" if ratio < 100 else f"{float(f'{ratio:.2g}'):,.0f}"


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


def plan_size(n_rows: int) -> tuple[float, float]:
    """Return the width and height of a plan's figure in inches."""
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
