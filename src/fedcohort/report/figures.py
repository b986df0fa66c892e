"""Draw the static figures of a run in the paper's layout: one colour per design."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from fedcohort._display import counted
from fedcohort._figures import LINE_STYLES, legend_text, new_figure, save_figure, styled
from fedcohort._whole_file import make_folder
from fedcohort.colours import class_colours, design_colours, design_dashes
from fedcohort.errors import InputError
from fedcohort.experiments.costs import COSTS, cost_axis, spent
from fedcohort.experiments.results import Results, common_rounds, curve, half_life_of
from fedcohort.experiments.settings import Panel
from fedcohort.report import FIGURE_KINDS
from fedcohort.report.page_data import (
    QUANTILES,
    Band,
    band,
    design_labels,
    main_class_order,
    served,
)

#: Drawn beside columns of the table of rounds: the accuracy of every client at the end.
CLIENTS = "clients"
#: Axis label of each column.
NAMES = {
    "loss": "training loss",
    "accuracy": "test accuracy",
    "distinct_classes": "distinct classes",
    "distinct_clients": "distinct clients",
}


@dataclass(frozen=True, slots=True, eq=False)
class Pen:
    """Draw the columns of a run, with one colour per design."""

    results: Results
    colours: dict[str, str]
    dashes: dict[str, str]

    @classmethod
    def of(cls, results: Results) -> Pen:
        """Make a pen with the colours of a run's designs."""
        labels = design_labels([results])
        return cls(results, design_colours(labels), design_dashes(labels))

    def counted(self, panels: list[Panel]) -> bool:
        """Return whether every cost of every design was counted."""
        return all(
            spent(self.results, panel, entry.label, cost) is not None
            for panel in panels
            for entry in panel.design
            for cost in COSTS
        )

    def _axis(self, panel: Panel, against: str | None) -> tuple[str, float]:
        """Return the label of the axis of rounds or of a cost, and the factor to its unit."""
        if against is None:
            return "rounds", 1.0
        totals = [spent(self.results, panel, entry.label, against) for entry in panel.design]
        largest = max(float(each.mean(axis=0)[-1]) for each in totals if each is not None)
        return cost_axis(against, largest)

    def draw(
        self,
        axes: Axes,
        panel: Panel,
        column: str,
        *,
        smooth: bool,
        against: str | None = None,
    ) -> None:
        """Draw a column, as measured or smoothed, against the rounds or a cost."""
        if column == CLIENTS:
            self._draw_clients(axes, panel)
            return
        half_life = half_life_of(common_rounds(self.results, panel)[1])
        label, factor = self._axis(panel, against)
        for entry in panel.design:
            own = curve(self.results, panel, entry.label, column)
            over = band(own.smoothed(half_life) if smooth else own)
            cost = None if against is None else spent(self.results, panel, entry.label, against)
            places = over.rounds if cost is None else factor * cost.mean(axis=0)[over.rounds - 1]
            self._line(axes, entry.label, places, over, width=1.4 if smooth else 0.8)
        axes.set(xlabel=label, ylabel=NAMES[column])
        if column == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        if against is not None and axes.dataLim.x1 > 0:
            # Costs are compared by ratio; without a positive one there is no such axis.
            axes.set_xscale("log")
        axes.margins(x=0.01)
        axes.grid(alpha=0.25)

    def _draw_clients(self, axes: Axes, panel: Panel) -> None:
        """Draw the clients' accuracies after the last round, lowest first."""
        for entry in panel.design:
            over = served(self.results, panel, entry.label)
            if over is not None:
                self._line(axes, entry.label, QUANTILES, over, width=1.4)
        axes.set(xlabel="clients, worst served first", ylabel="accuracy on own samples")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.margins(x=0.01)
        axes.grid(alpha=0.25)

    def _line(
        self, axes: Axes, label: str, places: NDArray[Any], over: Band, *, width: float
    ) -> None:
        """Draw a design's mean over seeds, and a band from the lowest to the highest seed."""
        colour, style = self.colours[label], LINE_STYLES[self.dashes[label]]
        axes.plot(places, over.mean, style, linewidth=width, color=colour, label=label)
        if over.n_seeds > 1:
            axes.fill_between(places, over.low, over.high, color=colour, alpha=0.18, linewidth=0)


def draw_class_shares(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Draw one bar per client, stacked by class; ``counts`` has shape (n_clients, n_classes)."""
    n_clients, n_classes = counts.shape
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    below = np.zeros(n_clients)
    for label, colour in enumerate(class_colours(n_classes)):
        axes.bar(np.arange(n_clients), shares[:, label], 1.0, below, color=colour, label=str(label))
        below += shares[:, label]
    axes.set(
        xlabel="client", ylabel="share of each class", xlim=(-0.5, n_clients - 0.5), ylim=(0, 1)
    )


def draw_class_samples(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Draw the number of samples of each class, over all clients."""
    n_classes = counts.shape[1]
    axes.barh(np.arange(n_classes), counts.sum(axis=0), color=class_colours(n_classes))
    every = max(1, n_classes // 10)
    axes.set(xlabel="samples", ylabel="class", yticks=range(0, n_classes, every))


WIDTH, HEIGHT = 3.6, 2.7
MOST_COLUMNS = 3
#: Legend: width in inches of an entry's line and of a letter; letters per inch of the title.
LINE_WIDTH, LETTER_WIDTH = 0.6, 0.075
LETTERS_PER_INCH = 15
#: Legend rows that fit without growing the figure, and height in inches of each further row.
ROWS_WITH_ROOM, ROW_HEIGHT = 2, 0.17
OVERVIEW = ("distinct_classes", "loss", "distinct_clients", "accuracy")
#: The content of one axes: a panel, a column, and the cost on the x axis; None for rounds.
Line = tuple[Panel, str, str | None]


def static_figures(results: Results) -> dict[str, Figure]:
    """Draw every figure that the run has data for.

    Returns
    -------
    dict
        ``loss``: the smoothed loss, one axes per panel. ``curves``: raw loss and accuracy, one row
        per panel. ``costs``: loss against rounds, bytes, client work and simulated time. With one
        panel ``overview``: classes, clients, loss and accuracy. With several ``cohorts``: classes
        and clients, one row per panel. ``partition``: the classes of each client; without rounds,
        this is the only figure.
    """
    panels = results.folder.experiment.panels
    begun = [panel for panel in panels if common_rounds(results, panel)[0]]
    with styled("report"):
        figures = {}
        if begun:
            pen = Pen.of(results)
            n_columns = 2 if len(begun) == 4 else min(len(begun), MOST_COLUMNS)
            figures["loss"] = _curves(pen, n_columns, _lines(begun, "loss"))
            both = _lines(begun, "loss", "accuracy")
            figures["curves"] = _curves(pen, 2, both, smooth=False)
            if pen.counted(begun):
                costs = [(panel, "loss", cost) for panel in begun for cost in (None, *COSTS)]
                figures["costs"] = _curves(pen, 2, costs)
            if len(panels) == 1:
                figures["overview"] = _curves(pen, 2, _lines(begun, *OVERVIEW))
            else:
                cohorts = _lines(begun, "distinct_classes", "distinct_clients")
                figures["cohorts"] = _curves(pen, 2, cohorts)
        figures["partition"] = _partition(results, panels)
    return figures


def _lines(panels: list[Panel], *columns: str) -> list[Line]:
    return [(panel, column, None) for panel in panels for column in columns]


def save_figures(results: Results, folder: Path, kind: str) -> list[Path]:
    """Write every figure into ``folder`` as ``png``, ``svg`` or ``pdf``; return the files."""
    if kind not in FIGURE_KINDS:
        raise InputError(
            f"figures: must be {', '.join(FIGURE_KINDS)}; got {kind!r}. Choose one of them."
        )
    make_folder(folder)
    figures = {folder / f"{name}.{kind}": each for name, each in static_figures(results).items()}
    for path, figure in figures.items():
        save_figure(figure, path)
    return list(figures)


def draw_columns(
    results: Results, columns: Sequence[str], *, shown: bool = False, smooth: bool = True
) -> Figure | None:
    """Draw columns of the table of rounds, or ``CLIENTS``, beside each other, one row per panel.

    ``shown``: as a figure of pyplot. None if no round of every design is done.
    """
    panels = [each for each in results.folder.experiment.panels if common_rounds(results, each)[0]]
    if not panels:
        return None
    with styled("report"):
        lines = _lines(panels, *columns)
        return _curves(Pen.of(results), len(columns), lines, smooth=smooth, shown=shown)


def _curves(
    pen: Pen, n_columns: int, lines: list[Line], *, smooth: bool = True, shown: bool = False
) -> Figure:
    """Draw one axes for each line: a panel, its column, and the cost to draw it against."""
    n_rows = math.ceil(len(lines) / n_columns)
    size = (WIDTH * n_columns, HEIGHT * n_rows + 0.5)
    figure = new_figure("report", size, shown=shown)
    every_axes = figure.subplots(n_rows, n_columns, squeeze=False).ravel().tolist()
    panels = list({panel.label: panel for panel, _, _ in lines}.values())
    for axes, (panel, column, cost) in zip(every_axes, lines, strict=False):
        pen.draw(axes, panel, column, smooth=smooth, against=cost)
        if len(panels) > 1:  # with one panel, the figure's title is enough
            axes.set_title(panel.label)
    for axes in every_axes[len(lines) :]:
        axes.remove()
    _explain(figure, pen, panels, smooth=smooth)
    return figure


def _partition(results: Results, panels: list[Panel]) -> Figure:
    figure = Figure(figsize=(2.2 * WIDTH, 0.85 * HEIGHT * len(panels)), layout="constrained")
    grid = figure.subplots(len(panels), 2, width_ratios=(3, 1), squeeze=False)
    for (left, right), panel in zip(grid, panels, strict=True):
        counts = results.class_counts(panel.label, panel.seeds[0])
        draw_class_shares(left, counts[main_class_order(counts)])
        left.set(title=panel.label, xlabel="client, by main class")
        draw_class_samples(right, counts)
    return figure


def _explain(figure: Figure, pen: Pen, panels: list[Panel], *, smooth: bool) -> None:
    """Add one legend below all axes, which explains lines and bands, and a title above them."""
    handles = {}
    for axes in figure.axes:
        handles.update({line.get_label(): line for line in axes.lines})
    done = [common_rounds(pen.results, panel) for panel in panels]
    half_lives = sorted({half_life_of(rounds) for _, rounds in done})
    parts = [f"exponential mean, half-life {_span(half_lives)}"] if smooth else []
    if any(len(seeds) > 1 for seeds, _ in done):
        parts.append("line: mean over seeds, band: lowest to highest seed")
    names = [legend_text([str(label)]) for label in handles]
    width = figure.get_figwidth()
    if len(panels) == 1:
        title = pen.results.folder.experiment.title or panels[0].label
        figure.suptitle(textwrap.fill(title, int(LETTERS_PER_INCH * width)), fontsize="medium")
    entry_width = LINE_WIDTH + LETTER_WIDTH * max(map(len, names), default=0)
    n_columns = max(1, min(len(names), int(width / entry_width)))
    more = max(0, math.ceil(len(names) / n_columns) - ROWS_WITH_ROOM)
    figure.set_figheight(figure.get_figheight() + ROW_HEIGHT * more)
    figure.legend(
        handles.values(),
        names,
        loc="outside lower center",
        ncols=n_columns,
        title=textwrap.fill("; ".join(parts), int(LETTERS_PER_INCH * width)),
        title_fontsize="small",
    )


def _span(rounds: list[int]) -> str:
    first, last = rounds[0], counted(rounds[-1], "round")
    return last if len(rounds) == 1 else f"{first} to {last}"
