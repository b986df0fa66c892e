"""What the law says of a client of some size, and what was observed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiments.results import Results
from fedcohort.experiments.settings import Setting
from fedcohort.experiments.summary import common_rounds
from fedcohort.experiments.units import Trial
from fedcohort.report.plain_values import plain

#: More distinct sizes than these are put together, as many clients in each group.
MOST_SIZES = 40
Numbers = NDArray[np.float64]


def law_points(results: Results, panel: Setting) -> dict[str, Any]:
    """Return, for groups of clients of like size, inclusion and weight variance of every design.

    The law is that of the next design after the last round (absent in a run that goes on); observed
    are all rounds. Both are means over the clients of a group and over seeds.
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
            _numbers(results, Trial(panel.label, entry.label, seed), n_clients[seed])
            for seed in seeds
        ]
        columns = np.concatenate(parts, axis=1)
        names = ("inclusion", "weight_variance", "observed_inclusion", "observed_weight_variance")
        means = (_group_means(column, groups, len(middle)) for column in columns)
        designs[entry.label] = dict(zip(names, map(plain, means), strict=True))
    return {"sizes": plain(middle), "designs": designs}


def _n_clients(results: Results, panel: Setting, seed: int) -> int:
    """Return how many clients there are; the table of who holds what leaves out empty ones."""
    known = [len(results.class_counts(panel.label, seed))]
    for entry in panel.design:
        trial = Trial(panel.label, entry.label, seed)
        known.append(int(results.column("laws", trial, "client").max(initial=-1)) + 1)
        known.append(int(results.column("cohorts", trial, "client").max(initial=-1)) + 1)
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


def _numbers(results: Results, trial: Trial, n_clients: int) -> Numbers:
    """Return the four numbers of every client of a run, shape (4, n_clients)."""
    found = np.full((4, n_clients), np.nan)
    known = results.column("laws", trial, "client").astype(int)
    found[0, known] = results.column("laws", trial, "inclusion")
    found[1, known] = results.column("laws", trial, "weight_variance")
    rounds = results.of("rounds", trial).num_rows
    clients = results.column("cohorts", trial, "client").astype(int)
    weights = results.column("cohorts", trial, "weight")
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
