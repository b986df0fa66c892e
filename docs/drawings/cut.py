"""Algorithm 2: the similarity tree, its cut by capacity, and the filled distributions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedcohort import Population
from fedcohort.designs import SimilarityClusteredDesign
from fedcohort.similarity import MergeTree

LETTERS = "ABCDEFGHI"
SIZES, DRAWS = (22, 6, 5, 8, 4, 7, 3, 2, 3), 3
#: Where the updates point, in degrees.
ANGLES = (0, 8, 17, 85, 92, 103, 200, 207, 190)
#: The shade of each client's group, and of what is above the capacity.
SHADES, ABOVE = ("#44aa99", "#88ccee", "#ddcc77"), "#9a9a9a"


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw the tree with the units of its nodes, and the rows below."""
    population = Population(SIZES)
    turn = np.deg2rad(ANGLES)
    updates = np.column_stack([np.cos(turn), np.sin(turn)])
    design = SimilarityClusteredDesign(population, DRAWS, updates, rng=np.random.default_rng(0))
    shade = {client: SHADES[client // 3] for client in range(len(SIZES))}
    figure = Figure(figsize=(5.2, 5.4))
    tree, bars = figure.subplots(2, 1, height_ratios=(2.2, 1.5))
    _draw_tree(tree, design, shade)
    for k, row in enumerate(design.plan.units.toarray()):
        _draw_row(bars, k, row, shade)
    bars.set(xlim=(0, population.total), xticks=range(0, 61, 20), ylim=(DRAWS - 0.5, -0.5))
    bars.set_yticks(range(DRAWS), [f"row {k + 1}" for k in range(DRAWS)])
    bars.set_title("the distributions, filled: 60 units each", loc="left")
    bars.grid(visible=False)
    bars.spines["left"].set_visible(False)
    bars.tick_params(axis="y", length=0)
    return figure


def _draw_tree(axes: Axes, design: SimilarityClusteredDesign, shade: dict[int, str]) -> None:
    """Draw merges as brackets, with the units below each."""
    population, capacity = design.population, design.population.total
    whole = design.tree.whole
    assert isinstance(whole, MergeTree)
    units = (DRAWS * population.sizes % capacity)[design.leaves].tolist()
    n = len(units)
    x = {leaf: float(place) for place, leaf in enumerate(_order(whole, n))}
    y = dict.fromkeys(range(n), 0.0)
    colour = {leaf: shade[client] for leaf, client in enumerate(design.leaves.tolist())}
    for node, (left, right) in enumerate(whole.merges.tolist(), start=n):
        units.append(units[left] + units[right])
        x[node] = (x[left] + x[right]) / 2
        y[node] = y[max(left, right, key=y.__getitem__)] + 1.0  # levels, not heights: readable
        colour[node] = ABOVE if units[node] > capacity else colour[left]
        corners = [x[left], x[left], x[right], x[right]], [y[left], y[node], y[node], y[right]]
        axes.plot(*corners, color=colour[node], linewidth=2.2, solid_joinstyle="miter")
        sign = f"{units[node]} > {capacity}" if units[node] > capacity else f"{units[node]}"
        plain = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(x[node], y[node] + 0.22, sign, ha="center", va="center", fontsize=9, bbox=plain)
    names = [f"{LETTERS[design.leaves[leaf]]}\n{units[leaf]}" for leaf in sorted(x) if leaf < n]
    axes.set_xticks([x[leaf] for leaf in range(n)], names)
    axes.set(ylim=(0, max(y.values()) + 0.7), yticks=[])
    axes.set_title("the tree: units below each node, cut at the capacity 60", loc="left")
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)


def _draw_row(axes: Axes, k: int, row: np.ndarray, shade: dict[int, str]) -> None:
    start = 0
    # The group that opened the row first, then what filled it.
    for client in sorted(np.flatnonzero(row).tolist(), key=lambda i: (i // 3 == 2, i)):
        axes.barh(
            k, row[client], left=start, height=0.7, color=shade[client], edgecolor="white", lw=1.5
        )
        axes.text(
            start + row[client] / 2,
            k,
            f"{LETTERS[client]} {row[client]}",
            ha="center",
            va="center",
            fontsize=9 if row[client] > 4 else 7,
        )
        start += row[client]


def _order(tree: MergeTree, n: int) -> list[int]:
    """Return the leaves from left to right."""
    below: list[list[int]] = [[leaf] for leaf in range(n)]
    for left, right in tree.merges.tolist():
        below.append(below[left] + below[right])
    return below[-1]
