"""Compute what each client gets: chances and weights, and the model's quality on its samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedcohort.experiments.results import Curve, Results, common_rounds, curve
from fedcohort.experiments.settings import Panel
from fedcohort.experiments.units import PlannedRun
from fedcohort.report.panel_data import Integers, Numbers, band, main_classes, plain, plain_band

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
    """Return the accuracies of the clients, lowest first, against the share of the clients."""
    seeds, _ = common_rounds(results, panel)
    found = [
        results.column("laws", PlannedRun(panel.label, design, seed), "accuracy") for seed in seeds
    ]
    known = [values[~np.isnan(values)] for values in found]
    if not all(map(len, known)):
        return {"x": [], "mean": []}
    values = np.array([np.quantile(each, QUANTILES) for each in known])
    return plain_band(band(Curve(np.arange(len(QUANTILES)), values)), x=QUANTILES)


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
