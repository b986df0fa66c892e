"""The numbers of the page: a panel's plots, and what each client gets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._display import SECONDS, fitting_unit
from fedcohort.experiments.costs import COSTS, cost_axis, spent
from fedcohort.experiments.results import Curve, Results, common_rounds, curve, half_life_of
from fedcohort.experiments.settings import Panel
from fedcohort.experiments.units import PlannedRun

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

CURVES = ("loss", "accuracy", "worst_accuracy", "distinct_classes", "distinct_share")
PARTS = ("draw_seconds", "train_seconds", "measure_seconds")
YARDSTICKS = ("squared_error", "design_variance", "multinomial_variance", "design_floor")
LEVELS = 60
#: In a larger tree only the last merges are drawn. Each subtree below them becomes a leaf.
MOST_MERGES = 400
MOST_ROUNDS = 60
MOST_CLIENTS = 250
#: With more distinct sizes, clients form at most this many groups of about equal count.
MOST_SIZES = 40
#: Points of the curve of accuracies over the clients.
QUANTILES = np.linspace(0, 1, 51)
AT_THE_END = (
    "Each client's loss and accuracy are measured when its run ends; until then they are missing."
)
OLDER = (
    "An older version of fedcohort made this run. It did not record {}: run the experiment again "
    "to see them."
)


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Mean, minimum and maximum of a curve over seeds, after each number of rounds from 1."""

    rounds: Integers
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
    values = curve.values if curve.values.size else np.empty((1, 0))
    ends = values.min(axis=0), values.max(axis=0)
    return Band(curve.rounds + 1, values.mean(axis=0), *ends, len(curve.values))


def design_labels(results: Iterable[Results]) -> list[str]:
    """Return the labels of all designs, in order of first appearance."""
    panels = [panel for each in results for panel in each.folder.experiment.panels]
    return list(dict.fromkeys(entry.label for panel in panels for entry in panel.design))


def panel_data(results: Results, panel: Panel, *, most_points: int) -> dict[str, Any]:
    """Return the data of a panel's plots. Curves have at most ``most_points`` points."""
    seeds, rounds = common_rounds(results, panel)
    half_life = half_life_of(rounds)
    content: dict[str, Any] = {
        "label": panel.label,
        "seeds": seeds,
        "rounds": rounds,
        "half_life": half_life,
        "federation": _federation(results, panel),
        "designs": [],
    }
    if not seeds:
        return content
    levels = _levels(results, panel, half_life)
    content["designs"] = [
        {
            "label": entry.label,
            "curves": _curves(results, panel, entry.label, half_life, most_points),
            "needed": _needed(curve(results, panel, entry.label, "loss"), half_life, levels),
            "error": _error(results, panel, entry.label, most_points),
            "seconds": _seconds(results, panel, entry.label, seeds),
            "costs": _costs(results, panel, entry.label, half_life, most_points),
        }
        for entry in panel.design
    ]
    content["axes"] = _axes(content["designs"])
    content["clusters"] = _clusters(results, panel, seeds[0])
    return content


def _curves(
    results: Results, panel: Panel, design: str, half_life: int, most: int
) -> dict[str, dict[str, Any]]:
    found = {}
    for column in CURVES:
        own = curve(results, panel, design, column)
        found[column] = {
            "raw": plain_band(band(own).thinned(most)),
            "smoothed": plain_band(band(own.smoothed(half_life)).thinned(most)),
        }
    return found


def plain_band(over: Band, x: ArrayLike | None = None) -> dict[str, Any]:
    """Return a band for JSON, against ``x`` if given, else against the rounds."""
    x = over.rounds if x is None else x
    content: dict[str, Any] = {"x": plain(x), "mean": plain(over.mean)}
    if over.n_seeds > 1:
        content |= {"low": plain(over.low), "high": plain(over.high)}
    return content


def _levels(results: Results, panel: Panel, half_life: int) -> list[float]:
    """Choose loss levels between the highest and the lowest mean, in equal ratios."""
    losses = [curve(results, panel, entry.label, "loss") for entry in panel.design]
    values = np.concatenate([band(loss.smoothed(half_life)).mean for loss in losses])
    if not values.size or values.min() <= 0:
        return []
    return [float(v) for v in np.geomspace(values.max(), values.min(), LEVELS)]


def _needed(loss: Curve, half_life: int, levels: list[float]) -> dict[str, Any]:
    """Return the rounds until the smoothed loss reaches each level. All seeds must reach it."""
    smoothed = loss.smoothed(half_life)
    found = np.array([smoothed.first_below(level) for level in levels])
    found = found.reshape(len(levels), len(smoothed.values))
    reached = np.flatnonzero(~np.isnan(found).any(axis=1))
    return plain_band(band(Curve(reached, found[reached].T)), x=np.array(levels)[reached])


def _error(results: Results, panel: Panel, design: str, most: int) -> dict[str, Any]:
    """Return the aggregate's squared error, its expectations and floor, means over seeds.

    A line that was never measured is empty; one that was not measured in some rounds has gaps.
    """
    found = {name: curve(results, panel, design, name) for name in YARDSTICKS}
    every = found["squared_error"]
    content = {"x": plain(band(every).thinned(most).rounds)}
    for name, own in found.items():
        values = np.full(every.values.shape, math.nan)
        values[:, np.isin(every.rounds, own.rounds)] = own.values
        mean = band(Curve(every.rounds, values)).thinned(most).mean
        content[name] = plain(mean) if len(own.rounds) else []
    return content


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
    return {part: rounded(total / len(seeds)) for part, total in totals.items()}


def _costs(
    results: Results, panel: Panel, design: str, half_life: int, most: int
) -> dict[str, dict[str, Any]]:
    """Return the smoothed loss against each cost that was counted."""
    over = band(curve(results, panel, design, "loss").smoothed(half_life)).thinned(most)
    found = {}
    for cost in COSTS:
        if (total := spent(results, panel, design, cost)) is not None:
            found[cost] = plain_band(over, x=total.mean(axis=0)[over.rounds - 1])
    return found


def _axes(designs: list[dict[str, Any]]) -> dict[str, tuple[str, float]]:
    """Return the axis of each cost and of a round's time: label, and factor to a unit that fits."""
    found = {}
    for cost in COSTS:
        lines = [each["costs"][cost]["x"] for each in designs if cost in each["costs"]]
        ends = [line[-1] for line in lines if line]
        found[cost] = cost_axis(cost, max(ends, default=0))
    slowest = max(sum(each["seconds"].values()) for each in designs)
    unit, _, size = fitting_unit(slowest, SECONDS)
    return {**found, "seconds": (f"{unit} a round", 1 / size)}


def _clusters(results: Results, panel: Panel, seed: int) -> list[dict[str, Any]]:
    """Return maps and trees of the designs that have a tree or will have one."""
    found = []
    for entry in panel.design:
        run = PlannedRun(panel.label, entry.label, seed)
        tree = dendrogram(results, run)
        has_map = tree is not None or entry.recipe == "similarity"
        clusters = cluster_map(results, run) if has_map else None
        if tree or clusters:
            found.append({"label": entry.label, "seed": seed, "map": clusters, "tree": tree})
    return found


def _federation(results: Results, panel: Panel) -> dict[str, Any]:
    """Return the class counts of the first seed, with clients sorted by main class."""
    seed = panel.seeds[0]
    counts = results.class_counts(panel.label, seed)
    order = main_class_order(counts)
    clients = order[evenly(len(order), MOST_CLIENTS)]
    return {
        "seed": seed,
        "n_clients": len(counts),
        "clients": plain(clients),
        "samples": [plain(column) for column in counts[clients].T],
        "class_samples": plain(counts.sum(axis=0)),
    }


def main_classes(counts: Integers, n_clients: int) -> Integers:
    """Return each client's most frequent class; -1 for a client without samples."""
    main = np.full(n_clients, -1)
    held = counts.sum(axis=1) > 0
    main[: len(counts)][held] = counts.argmax(axis=1)[held]
    return main


def main_class_order(counts: Integers) -> Integers:
    """Sort clients by main class, and within a class by its share, largest first."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    main = counts.argmax(axis=1)
    return np.lexsort((-shares.max(axis=1, initial=0.0), main))


def plain(values: ArrayLike) -> list[int] | list[float | None]:
    """Convert to a list. Round floats to five digits; NaN and infinity become None."""
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return [int(value) for value in array]
    return [rounded(float(value)) for value in array]


def rounded(value: float) -> float | None:
    """Round to five digits. Return None for NaN and infinity."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def evenly(n: int, most: int) -> list[int]:
    """Choose at most ``most`` evenly spaced values of 0 ... n - 1, including both ends."""
    return [int(place) for place in np.linspace(0, n - 1, min(n, most)).round()]


def cluster_map(results: Results, run: PlannedRun) -> dict[str, Any] | None:
    """Return the cluster map of a run; None if its distributions were not recorded.

    ``classes`` has shape (rounds, clients), with clients sorted by main class. ``agreeing`` counts,
    for each round, the clients whose main class is the majority class of their distribution.
    """
    counts = results.class_counts(run.panel, run.seed)
    rounds, noted = np.unique(results.column("rows", run, "round"), return_index=True)
    if not len(rounds) or results.of("rows", run).num_rows % len(rounds):
        return None
    rows = results.column("rows", run, "row").astype(int).reshape(len(noted), -1)
    main = main_classes(counts, rows.shape[1])
    majority = np.array([_majority(each, main) for each in rows])
    order = [i for i in main_class_order(counts) if main[i] >= 0]
    clients = [order[place] for place in evenly(len(order), MOST_CLIENTS)]
    times = evenly(len(rounds), MOST_ROUNDS)
    return {
        "rounds": plain(rounds[times].astype(int) + 1),
        "clients": plain(clients),
        "main": plain(main[clients]),
        "classes": [plain(each) for each in majority[np.ix_(times, clients)]],
        "rows": [plain(each) for each in rows[np.ix_(times, clients)]],
        "agreeing": plain((majority[times] == main)[:, main >= 0].sum(axis=1)),
        "n_clients": len(order),
        "n_classes": int(counts.shape[1]),
    }


def _majority(rows: Integers, main: Integers) -> Integers:
    """Return, for each client, the most common main class in its distribution."""
    shared = np.zeros((rows.max(initial=0) + 1, main.max(initial=0) + 1), dtype=np.int64)
    known = (rows >= 0) & (main >= 0)
    np.add.at(shared, (rows[known], main[known]), 1)
    return np.where(known, shared.argmax(axis=1)[np.maximum(rows, 0)], -1)


def dendrogram(results: Results, run: PlannedRun) -> dict[str, Any] | None:
    """Return leaves and links; None if the run has no tree (yet).

    A link is ``[left x, left y, right x, right y, height, class]``. The class is -1 if the clients
    below differ in main class. A leaf is a client, or a subtree that is not drawn.
    """
    if not results.of("trees", run).num_rows:
        return None
    left, right, height = (results.column("trees", run, n) for n in ("left", "right", "height"))
    n_clients = results.of("laws", run).num_rows
    main = main_classes(results.class_counts(run.panel, run.seed), n_clients)
    pairs = np.column_stack([left, right]).astype(int)
    classes, members = _below(pairs, main)
    first = n_clients + max(0, len(pairs) - MOST_MERGES)
    leaves = _leaves(pairs, n_clients, first)
    x, y = np.zeros(n_clients + len(pairs)), np.zeros(n_clients + len(pairs))
    x[leaves] = np.arange(len(leaves))
    links = []
    for node in range(first, n_clients + len(pairs)):
        one, other = pairs[node - n_clients]
        x[node], y[node] = (x[one] + x[other]) / 2, height[node - n_clients]
        ends = [rounded(float(v)) for v in (x[one], y[one], x[other], y[other], y[node])]
        links.append([*ends, int(classes[node])])
    return {
        "leaves": plain(leaves),
        "classes": plain(classes[leaves]),
        "members": plain(members[leaves]),
        "links": links,
        "n_clients": n_clients,
        "n_classes": int(main.max(initial=0)) + 1,
    }


def _below(pairs: Integers, main: Integers) -> tuple[Integers, Integers]:
    """Return every node's class (-1 if its clients differ) and its number of clients."""
    classes = np.append(main, np.full(len(pairs), -1))
    members = np.append(np.ones_like(main), np.zeros(len(pairs), dtype=np.int64))
    for node, (one, other) in enumerate(pairs, start=len(main)):
        if classes[one] == classes[other]:
            classes[node] = classes[one]
        members[node] = members[one] + members[other]
    return classes, members


def _leaves(pairs: Integers, n_clients: int, first: int) -> list[int]:
    """Return the drawn leaves from left to right: nodes numbered below ``first``."""
    waiting, found = [n_clients + len(pairs) - 1], []
    while waiting:
        node = waiting.pop()
        if node < first:
            found.append(node)
        else:
            waiting += pairs[node - n_clients, ::-1].tolist()
    return found


def client_data(results: Results, panel: Panel, *, most_rows: int) -> dict[str, Any]:
    """Return the data of the plots and tables about clients, with at most ``most_rows`` rows."""
    seeds, _ = common_rounds(results, panel)
    if not seeds:
        return {}
    return {
        "laws": law_points(results, panel),
        "served": {entry.label: _served(results, panel, entry.label) for entry in panel.design},
        "clients": client_tables(results, panel, most_rows=most_rows),
        "clients_note": missing_note(results, panel),
    }


def client_tables(results: Results, panel: Panel, *, most_rows: int) -> dict[str, Any]:
    """Return every client's numbers by seed and design, as columns.

    If all seeds have more than ``most_rows`` rows, the first ones that fit are kept. If even one
    seed has more, every design keeps the clients that it serves worst: those of the lowest
    accuracy, or of the highest loss if accuracy was not measured.
    """
    seeds, rounds = common_rounds(results, panel)
    n_clients = len(_sizes(results, panel, seeds[0]))
    rows = n_clients * len(panel.design)
    kept = seeds[: max(1, most_rows // rows)]
    most = n_clients if rows <= most_rows else max(1, most_rows // len(panel.design))
    return {
        "rounds": rounds,
        "n_clients": n_clients,
        "most": most,
        "left_out": len(seeds) - len(kept),
        "seeds": [_seed_tables(results, panel, seed, most) for seed in kept],
    }


def _seed_tables(results: Results, panel: Panel, seed: int, most: int) -> dict[str, Any]:
    sizes = _sizes(results, panel, seed)
    main = main_classes(results.class_counts(panel.label, seed), len(sizes))
    runs = {entry.label: PlannedRun(panel.label, entry.label, seed) for entry in panel.design}
    designs = {label: _client_columns(results, run, len(sizes)) for label, run in runs.items()}
    return {
        "seed": seed,
        "samples": plain(sizes),
        "main": plain(main),
        "designs": {label: _worst(columns, most) for label, columns in designs.items()},
    }


def _client_columns(results: Results, run: PlannedRun, n_clients: int) -> dict[str, Numbers]:
    """Return the rounds that drew each client, its mean weight, and its loss and accuracy."""
    rounds = max(1, results.of("rounds", run).num_rows)
    clients = results.column("cohorts", run, "client").astype(int)
    weights = results.column("cohorts", run, "weight")
    columns = {
        "drawn": np.bincount(clients, minlength=n_clients).astype(np.float64),
        "weight": np.bincount(clients, weights, n_clients) / rounds,
    }
    known = results.column("laws", run, "client").astype(int)
    for name in ("loss", "accuracy"):
        columns[name] = np.full(n_clients, math.nan)
        columns[name][known] = results.column("laws", run, name)
    return columns


def _worst(columns: dict[str, Numbers], most: int) -> dict[str, Any]:
    """Return the columns for JSON: all clients, or the ``most`` worst served with their numbers."""
    n_clients = len(columns["drawn"])
    if n_clients <= most:
        return {name: plain(values) for name, values in columns.items()}
    accuracy, loss = columns["accuracy"], columns["loss"]
    served = -loss if np.isnan(accuracy).all() else accuracy
    served = columns["drawn"] if np.isnan(served).all() else served
    chosen = np.sort(np.argsort(served, kind="stable")[:most])
    return {
        "client": plain(chosen),
        **{name: plain(values[chosen]) for name, values in columns.items()},
    }


def _served(results: Results, panel: Panel, design: str) -> dict[str, Any]:
    """Return the band of :func:`served`, for JSON."""
    over = served(results, panel, design)
    return {"x": [], "mean": []} if over is None else plain_band(over, x=QUANTILES)


def served(results: Results, panel: Panel, design: str) -> Band | None:
    """Return the accuracies of the clients, lowest first, at ``QUANTILES`` of the clients."""
    seeds, _ = common_rounds(results, panel)
    found = [
        results.column("laws", PlannedRun(panel.label, design, seed), "accuracy") for seed in seeds
    ]
    known = [values[~np.isnan(values)] for values in found]
    if not known or not all(map(len, known)):
        return None
    values = np.array([np.quantile(each, QUANTILES) for each in known])
    return band(Curve(np.arange(len(QUANTILES)), values))


def missing_note(results: Results, panel: Panel) -> str:
    """Say why numbers about clients are missing; empty if they are all there."""
    seeds, _ = common_rounds(results, panel)
    runs = [PlannedRun(panel.label, entry.label, seed) for entry in panel.design for seed in seeds]
    if any(not results.of("laws", run).num_rows for run in runs):
        return AT_THE_END
    working = [run for run in runs if not (results.column("rounds", run, "diverged") == 1).any()]
    lost = [np.isnan(results.column("laws", run, "loss")).all() for run in working]
    has_accuracy, has_worst = (
        all(len(curve(results, panel, entry.label, name).rounds) for entry in panel.design)
        for name in ("accuracy", "worst_accuracy")
    )
    parts = ["each client's loss and accuracy"] if any(lost) else []
    parts += (
        ["the accuracy of the worst tenth of clients"] if has_accuracy and not has_worst else []
    )
    return OLDER.format(" and ".join(parts)) if parts else ""


def law_points(results: Results, panel: Panel) -> dict[str, Any]:
    """Return each design's inclusion and weight variance, for groups of clients of similar size.

    The law is that of the design after the last round; an unfinished run has none. The observed
    values cover all rounds. Both are means over the clients of a group and over seeds.
    """
    seeds, _ = common_rounds(results, panel)
    sizes = {seed: _sizes(results, panel, seed) for seed in seeds}
    if not sizes:
        return {"sizes": [], "designs": {}}
    groups, middle = _groups(np.concatenate(list(sizes.values())))
    designs = {}
    for entry in panel.design:
        parts = [
            _law_and_record(results, PlannedRun(panel.label, entry.label, seed), len(own))
            for seed, own in sizes.items()
        ]
        columns = np.concatenate(parts, axis=1)
        names = ("inclusion", "weight_variance", "observed_inclusion", "observed_weight_variance")
        means = (_group_means(column, groups, len(middle)) for column in columns)
        designs[entry.label] = dict(zip(names, map(plain, means), strict=True))
    return {"sizes": plain(middle), "designs": designs}


def _sizes(results: Results, panel: Panel, seed: int) -> Integers:
    """Return every client's size. The table of class counts omits clients without samples."""
    held = results.class_counts(panel.label, seed).sum(axis=1)
    runs = [PlannedRun(panel.label, entry.label, seed) for entry in panel.design]
    known = [results.column(name, run, "client") for name in ("laws", "cohorts") for run in runs]
    n_clients = max(len(held), *(int(clients.max(initial=-1)) + 1 for clients in known))
    return np.concatenate([held, np.zeros(n_clients - len(held), dtype=np.int64)])


def _groups(sizes: Integers) -> tuple[Integers, Numbers]:
    """Return every client's group and the groups' mean sizes, smallest first."""
    distinct, groups = np.unique(sizes, return_inverse=True)
    if len(distinct) <= MOST_SIZES:
        return groups.astype(np.int64), distinct.astype(np.float64)
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, MOST_SIZES + 1)[1:-1]))
    _, groups = np.unique(np.searchsorted(edges, sizes), return_inverse=True)
    return groups.astype(np.int64), np.bincount(groups, sizes) / np.bincount(groups)


def _law_and_record(results: Results, run: PlannedRun, n_clients: int) -> Numbers:
    """Return the four numbers of every client of a run, shape (4, n_clients)."""
    found = np.full((4, n_clients), np.nan)
    known = results.column("laws", run, "client").astype(int)
    for place, name in enumerate(("inclusion", "weight_variance")):
        found[place, known] = results.column("laws", run, name)
    rounds = results.of("rounds", run).num_rows
    clients = results.column("cohorts", run, "client").astype(int)
    weights = results.column("cohorts", run, "weight")
    if rounds:
        found[2] = np.bincount(clients, minlength=n_clients) / rounds
        # A client that is not drawn has weight 0.
        mean = np.bincount(clients, weights, n_clients) / rounds
        found[3] = np.bincount(clients, weights**2, n_clients) / rounds - mean**2
    return found


def _group_means(values: Numbers, groups: Integers, n_groups: int) -> Numbers:
    known = ~np.isnan(values)
    counts = np.bincount(groups[known], minlength=n_groups)
    sums = np.bincount(groups[known], values[known], n_groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
