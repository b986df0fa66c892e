"""Figures: check their path early, draw them, and write them atomically."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief
from fedcohort._lazy import import_extra
from fedcohort._whole_file import replace_whole
from fedcohort.designs import Design
from fedcohort.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
MARKERS = "osD^v<>ph*"
LINES = ("-", "--", "-.", ":")
#: The default size, in inches.
SIZE = (7, 4.5)


def check_figure_path(path: Path, owner: str, argument: str = "--plot") -> None:
    """Raise if the figure could not be written; call it before the long work."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{owner}: {argument} must end in {', '.join(SUFFIXES)}; got {brief(path.name)}. "
            f"Rename it."
        )
    import_extra("matplotlib.figure", extra="report", owner=f"{owner} {argument}")


def new_figure(owner: str, size: tuple[float, float], *, shown: bool) -> Figure:
    """Return a new figure; if it is shown, one of pyplot, since notebooks need that."""
    module, maker = ("matplotlib.pyplot", "figure") if shown else ("matplotlib.figure", "Figure")
    make = getattr(import_extra(module, extra="report", owner=owner), maker)
    figure: Figure = make(figsize=size, layout="constrained")
    return figure


def save_figure(figure: Figure, path: Path, metadata: dict[str, Any] | None = None) -> None:
    """Write the figure in the format of the path's suffix."""
    options: dict[str, Any] = {"format": path.suffix.lower()[1:], "metadata": metadata}
    with warnings.catch_warnings():
        # Characters missing from the font are drawn as boxes; no warning is needed.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        replace_whole(path, lambda temporary: figure.savefig(temporary, **options))


def draw_inclusion(axes: Axes, designs: Mapping[str, Design]) -> None:
    """Plot the chance to be in the cohort against the client's size, one curve per design.

    Clients of size 0 are left out.
    """
    axes.set(xlabel="client size", ylabel="chance to be in the cohort")
    for number, (name, design) in enumerate(designs.items()):
        sizes, chance = design.population.sizes, design.inclusion_probability()
        points = _thinned(sizes[sizes > 0].astype(np.float64), chance[sizes > 0])
        # Larger markers first: curves that coincide show as rings around each other.
        axes.plot(
            *points.T,
            LINES[number % len(LINES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=4 + 1.5 * (len(designs) - number),
            fillstyle="none",
            linewidth=1,
            label=name,
        )
        if points[-1, 0] > 50 * points[0, 0]:
            axes.set(xscale="log", yscale="log")
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _thinned(sizes: NDArray[np.float64], chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return distinct points (size, chance), with chances rounded to three digits."""
    # A chance of 0 stays 0.
    digits = 10 ** (2 - np.floor(np.log10(np.where(chance > 0, chance, 1.0))))
    return np.unique(np.column_stack([sizes, np.round(chance * digits) / digits]), axis=0)
