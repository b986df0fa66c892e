"""Compute the numbers behind a panel's plots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiments.results import (
    COSTS,
    Curve,
    Results,
    common_rounds,
    curve,
    spent,
    window_of,
)
from fedcohort.experiments.settings import Panel
from fedcohort.experiments.tables import PlannedRun
from fedcohort.report.client_plots import (
    MOST_CLIENTS,
    cluster_map,
    dendrogram,
    evenly,
    law_points,
    main_class_order,
    plain,
    short,
)

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Mean and range of a curve over seeds. Each array has shape (points,).

    Attributes
    ----------
    rounds
        Number of rounds done at each point, from 1.
    mean, low, high
        Mean, minimum and maximum over seeds.
    n_seeds
        Number of seeds. With one seed, mean, low and high are equal.
    """

    rounds: NDArray[np.int64]
    mean: Numbers
    low: Numbers
    high: Numbers
    n_seeds: int

    def thinned(self, most: int) -> Band:
        """Merge neighbours into one point: mean of means, lowest low, highest high."""
        n = len(self.rounds)
        if n <= most:
            return self
        starts = np.linspace(0, n, most, endpoint=False).astype(np.int64)
        lengths = np.diff([*starts, n])
        return Band(
            self.rounds[starts + lengths - 1],
            np.add.reduceat(self.mean, starts) / lengths,
            np.minimum.reduceat(self.low, starts),
            np.maximum.reduceat(self.high, starts),
            self.n_seeds,
        )


def band(curve: Curve) -> Band:
    """Reduce a curve over its seeds."""
    values = curve.values
    if not values.size:
        nothing = np.empty(0)
        return Band(np.empty(0, np.int64), nothing, nothing, nothing, len(values))
    return Band(
        curve.rounds + 1, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(values)
    )


CURVES = ("loss", "accuracy", "distinct_classes", "distinct_clients")
PARTS = ("draw_seconds", "train_seconds", "measure_seconds")
YARDSTICKS = ("squared_error", "design_variance", "multinomial_variance")
LEVELS = 60


def panel_data(results: Results, panel: Panel, *, most_points: int) -> dict[str, Any]:
    """Return the data of a panel's plots. Curves have at most ``most_points`` points."""
    seeds, rounds = common_rounds(results, panel)
    window = window_of(rounds)
    content: dict[str, Any] = {
        "label": panel.label,
        "seeds": seeds,
        "rounds": rounds,
        "window": window,
        "federation": _federation(results, panel),
        "designs": [],
    }
    if not seeds:
        return content
    levels = _levels(results, panel, window)
    for entry in panel.design:
        content["designs"].append(
            {
                "label": entry.label,
                "curves": _curves(results, panel, entry.label, window, most_points),
                "needed": _needed(curve(results, panel, entry.label, "loss"), window, levels),
                "error": _error(results, panel, entry.label, most_points),
                "seconds": _seconds(results, panel, entry.label, seeds),
                "costs": _costs(results, panel, entry.label, window, most_points),
            }
        )
    content["laws"] = law_points(results, panel)
    content["clusters"] = _clusters(results, panel, seeds[0])
    return content


def _curves(
    results: Results, panel: Panel, design: str, window: int, most: int
) -> dict[str, dict[str, Any]]:
    found = {}
    for column in CURVES:
        values = curve(results, panel, design, column)
        found[column] = {
            "raw": _plain_band(band(values).thinned(most)),
            "rolling": _plain_band(band(values.rolling(window)).thinned(most)),
        }
    return found


def _plain_band(over: Band) -> dict[str, Any]:
    content: dict[str, Any] = {"x": plain(over.rounds), "mean": plain(over.mean)}
    if over.n_seeds > 1:
        content |= {"low": plain(over.low), "high": plain(over.high)}
    return content


def _levels(results: Results, panel: Panel, window: int) -> list[float]:
    """Choose loss levels between the highest and the lowest mean, in equal ratios."""
    means = [
        band(curve(results, panel, entry.label, "loss").rolling(window)).mean
        for entry in panel.design
    ]
    values = np.concatenate(means)
    if not values.size or values.min() <= 0:
        return []
    return [float(v) for v in np.geomspace(values.max(), values.min(), LEVELS)]


def _needed(loss: Curve, window: int, levels: list[float]) -> dict[str, Any]:
    """Return the rounds until the rolling mean reaches each level. All seeds must reach it."""
    rolling = loss.rolling(window)
    found = [(level, rolling.first_below(level)) for level in levels]
    reached = [(level, needed) for level, needed in found if not np.isnan(needed).any()]
    content: dict[str, Any] = {
        "x": [short(level) for level, _ in reached],
        "mean": [short(float(needed.mean())) for _, needed in reached],
    }
    if len(rolling.values) > 1:
        content["low"] = [short(float(needed.min())) for _, needed in reached]
        content["high"] = [short(float(needed.max())) for _, needed in reached]
    return content


def _error(results: Results, panel: Panel, design: str, most: int) -> dict[str, Any]:
    """Return the aggregate's measured squared error and its expectations, means over seeds."""
    bands = [band(curve(results, panel, design, name)).thinned(most) for name in YARDSTICKS]
    means = {name: plain(each.mean) for name, each in zip(YARDSTICKS, bands, strict=True)}
    return {"x": plain(bands[0].rounds), **means}


def _seconds(results: Results, panel: Panel, design: str, seeds: list[int]) -> dict[str, Any]:
    """Return mean seconds of a round. Runs of a unit share its training time evenly."""
    units = [unit for unit in results.folder.units if unit.candidate is None]
    sharing = {run: len(unit.runs) for unit in units for run in unit.runs}
    totals = dict.fromkeys(PARTS, 0.0)
    for seed in seeds:
        run = PlannedRun(panel.label, design, seed)
        for part in PARTS:
            shared_by = sharing[run] if part == "train_seconds" else 1
            totals[part] += float(results.column("rounds", run, part).mean()) / shared_by
    return {part: short(total / len(seeds)) for part, total in totals.items()}


def _costs(
    results: Results, panel: Panel, design: str, window: int, most: int
) -> dict[str, dict[str, Any]]:
    """Return the rolling loss against each cost that was counted."""
    over = band(curve(results, panel, design, "loss").rolling(window)).thinned(most)
    found = {}
    for cost in COSTS:
        total = spent(results, panel, design, cost)
        if total is not None:
            found[cost] = {**_plain_band(over), "x": plain(total.mean(axis=0)[over.rounds - 1])}
    return found


def _clusters(results: Results, panel: Panel, seed: int) -> list[dict[str, Any]]:
    """Return maps and trees of the designs that have a tree or will have one."""
    found = []
    for entry in panel.design:
        run = PlannedRun(panel.label, entry.label, seed)
        tree = dendrogram(results, run)
        if tree is not None or entry.recipe == "similarity":
            clusters = cluster_map(results, run)
            found.append({"label": entry.label, "seed": seed, "map": clusters, "tree": tree})
    return [each for each in found if each["map"] or each["tree"]]


def _federation(results: Results, panel: Panel) -> dict[str, Any]:
    """Return the class counts of the first seed, with clients sorted by main class."""
    seed = panel.seeds[0]
    counts = results.class_counts(panel.label, seed)
    order = main_class_order(counts)
    clients = order[list(evenly(len(order), MOST_CLIENTS))]
    return {
        "seed": seed,
        "n_clients": len(counts),
        "clients": plain(clients),
        "samples": [plain(column) for column in counts[clients].T],
        "class_samples": plain(counts.sum(axis=0)),
    }
