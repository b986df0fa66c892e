"""The tournament of five clients: who meets whom, with how many units."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedcohort import Population

POPULATION, DRAWS = Population([3, 3, 2, 1, 1], ids="ABCDE"), 2
CAPACITY = POPULATION.total
UNITS = dict(zip("ABCDE", (DRAWS * POPULATION.sizes % CAPACITY).tolist(), strict=True))


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the tree from the clients up, a box for every meeting."""
    figure = Figure(figsize=(5.2, 4.1))
    axes = figure.subplots()
    meeting = UNITS["A"] + UNITS["B"]
    group = UNITS["C"] + UNITS["D"] + UNITS["E"]
    left = meeting - CAPACITY
    places = dict(zip(UNITS, (0.6, 2.6, 4.7, 6.4, 8.1), strict=True))
    for name, x in places.items():
        axes.text(x, 0, f"{name}\n{UNITS[name]}", ha="center", va="center", fontsize=11)
    for name, top in (("A", (1.6, 1.7)), ("B", (1.6, 1.7))):
        _join(axes, (places[name], 0.45), top, colours)
    for name in "CDE":
        _join(axes, (places[name], 0.45), (6.4, 1.7), colours)
    _join(axes, (1.6, 2.7), (4.1, 4.2), colours)
    _join(axes, (6.4, 2.7), (4.1, 4.2), colours)
    _box(
        axes,
        1.6,
        2.2,
        f"a duel: {UNITS['A']} + {UNITS['B']} > {CAPACITY}\none is selected",
        colours,
    )
    _box(axes, 6.4, 2.2, f"a group: {group} < {CAPACITY}\none goes on, by units", colours)
    _box(axes, 4.1, 4.7, f"a duel: {left} + {group} = {CAPACITY}\none is selected", colours)
    axes.text(2.35, 3.5, f"the other,\nwith {left}", ha="right", va="center")
    axes.text(5.75, 3.5, f"with {group}", ha="left", va="center")
    axes.set(xlim=(-0.8, 9.2), ylim=(-0.5, 5.4))
    axes.axis("off")
    return figure


def _join(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colours: Mapping[str, str]
) -> None:
    arrow = {"arrowstyle": "-|>", "color": colours["tournament"], "linewidth": 1.8}
    axes.annotate("", end, start, arrowprops={**arrow, "shrinkA": 0, "shrinkB": 1})


def _box(axes: Axes, x: float, y: float, text: str, colours: Mapping[str, str]) -> None:
    frame = {
        "boxstyle": "round,pad=0.4",
        "facecolor": "#fbf1f6",
        "edgecolor": colours["tournament"],
        "linewidth": 1.5,
    }
    axes.text(x, y, text, ha="center", va="center", bbox=frame)
