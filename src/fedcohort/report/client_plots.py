"""Data of the page's client plots: sampling laws, cluster maps and trees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.experiments.results import Results, common_rounds
from fedcohort.experiments.settings import Panel
from fedcohort.experiments.tables import PlannedRun

Integers = NDArray[np.int64]


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


DIGITS = 5


def plain(values: ArrayLike) -> list[int] | list[float | None]:
    """Convert to a list. Round floats to five digits; NaN and infinity become None."""
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return [int(value) for value in array]
    return [short(float(value)) for value in array]


def short(value: float) -> float | None:
    """Round to five digits. Return None for NaN and infinity."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def evenly(n: int, most: int) -> list[int]:
    """Choose at most ``most`` evenly spaced values of 0 ... n - 1, including both ends."""
    if n <= most:
        return list(range(n))
    return [int(place) for place in np.linspace(0, n - 1, most).round()]


#: With more distinct sizes, clients form at most this many groups of about equal count.
MOST_SIZES = 40
Numbers = NDArray[np.float64]


def law_points(results: Results, panel: Panel) -> dict[str, Any]:
    """Return each design's inclusion and weight variance, for groups of clients of similar size.

    The law is that of the design after the last round; an unfinished run has none. The observed
    values cover all rounds. Both are means over the clients of a group and over seeds.
    """
    seeds, _ = common_rounds(results, panel)
    n_clients = {seed: _n_clients(results, panel, seed) for seed in seeds}
    sizes = [_sizes(results, panel.label, seed, n_clients[seed]) for seed in seeds]
    if not sizes:
        return {"sizes": [], "designs": {}}
    groups, middle = _groups(np.concatenate(sizes))
    designs = {}
    for entry in panel.design:
        parts = [
            _numbers(results, PlannedRun(panel.label, entry.label, seed), n_clients[seed])
            for seed in seeds
        ]
        columns = np.concatenate(parts, axis=1)
        names = ("inclusion", "weight_variance", "observed_inclusion", "observed_weight_variance")
        means = (_group_means(column, groups, len(middle)) for column in columns)
        designs[entry.label] = dict(zip(names, map(plain, means), strict=True))
    return {"sizes": plain(middle), "designs": designs}


def _n_clients(results: Results, panel: Panel, seed: int) -> int:
    """Return the number of clients. The table of class counts omits clients without samples."""
    known = [len(results.class_counts(panel.label, seed))]
    for entry in panel.design:
        run = PlannedRun(panel.label, entry.label, seed)
        known.append(int(results.column("laws", run, "client").max(initial=-1)) + 1)
        known.append(int(results.column("cohorts", run, "client").max(initial=-1)) + 1)
    return max(known)


def _sizes(results: Results, panel: str, seed: int, n_clients: int) -> NDArray[np.int64]:
    held = results.class_counts(panel, seed).sum(axis=1)
    return np.concatenate([held, np.zeros(n_clients - len(held), dtype=np.int64)])


def _groups(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], Numbers]:
    """Return every client's group and the groups' mean sizes, smallest first."""
    distinct, groups = np.unique(sizes, return_inverse=True)
    if len(distinct) <= MOST_SIZES:
        return groups.astype(np.int64), distinct.astype(np.float64)
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, MOST_SIZES + 1)[1:-1]))
    _, groups = np.unique(np.searchsorted(edges, sizes), return_inverse=True)
    return groups.astype(np.int64), np.bincount(groups, sizes) / np.bincount(groups)


def _numbers(results: Results, run: PlannedRun, n_clients: int) -> Numbers:
    """Return the four numbers of every client of a run, shape (4, n_clients)."""
    found = np.full((4, n_clients), np.nan)
    known = results.column("laws", run, "client").astype(int)
    found[0, known] = results.column("laws", run, "inclusion")
    found[1, known] = results.column("laws", run, "weight_variance")
    rounds = results.of("rounds", run).num_rows
    clients = results.column("cohorts", run, "client").astype(int)
    weights = results.column("cohorts", run, "weight")
    if rounds:
        found[2] = np.bincount(clients, minlength=n_clients) / rounds
        # A client that is not drawn has weight 0.
        mean = np.bincount(clients, weights, n_clients) / rounds
        found[3] = np.bincount(clients, weights**2, n_clients) / rounds - mean**2
    return found


def _group_means(values: Numbers, groups: NDArray[np.int64], n_groups: int) -> Numbers:
    known = ~np.isnan(values)
    counts = np.bincount(groups[known], minlength=n_groups)
    sums = np.bincount(groups[known], values[known], n_groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


MOST_ROUNDS = 60
MOST_CLIENTS = 250


def cluster_map(results: Results, run: PlannedRun) -> dict[str, Any] | None:
    """Return the cluster map of a run; None if its distributions were not recorded.

    ``classes`` has shape (rounds, clients), with clients sorted by main class. ``agreeing`` counts,
    for each round, the clients whose main class is the majority class of their distribution.
    """
    counts = results.class_counts(run.panel, run.seed)
    table = results.of("rows", run)
    rounds, noted = np.unique(results.column("rows", run, "round"), return_index=True)
    if not len(rounds) or table.num_rows % len(rounds):
        return None
    rows = results.column("rows", run, "row").astype(int).reshape(len(noted), -1)
    main = main_classes(counts, rows.shape[1])
    majority = np.array([_majority(each, main) for each in rows])
    order = [i for i in main_class_order(counts) if main[i] >= 0]
    clients = [order[place] for place in evenly(len(order), MOST_CLIENTS)]
    times = list(evenly(len(rounds), MOST_ROUNDS))
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


#: In a larger tree only the last merges are drawn. Each subtree below them becomes a leaf.
MOST_MERGES = 400
MIXED = -1


def dendrogram(results: Results, run: PlannedRun) -> dict[str, Any] | None:
    """Return leaves and links; None if the run has no tree (yet).

    A link is ``[left x, left y, right x, right y, height, class]``. The class is -1 if the clients
    below differ in main class. A leaf is a client, or a subtree that is not drawn.
    """
    if not results.of("trees", run).num_rows:
        return None
    names = ("left", "right", "height")
    left, right, height = (results.column("trees", run, name) for name in names)
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
        ends = [short(float(v)) for v in (x[one], y[one], x[other], y[other], y[node])]
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
    classes = np.concatenate([main, np.full(len(pairs), MIXED)])
    members = np.concatenate([np.ones_like(main), np.zeros(len(pairs), dtype=np.int64)])
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
            one, other = pairs[node - n_clients]
            waiting += [int(other), int(one)]
    return found
