"""Clusters over time: which class is in the majority in every client's distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiments.results import Results
from fedcohort.experiments.units import Trial
from fedcohort.report.main_class import main_class_order, main_classes
from fedcohort.report.plain_values import evenly, plain

MOST_ROUNDS = 60
MOST_CLIENTS = 250
Integers = NDArray[np.int64]


def cluster_map(results: Results, trial: Trial) -> dict[str, Any] | None:
    """Return the map of a run; None where its distributions were not noted.

    ``classes`` has shape (rounds, clients), clients sorted by the class that they hold most of;
    ``agreeing`` counts the clients whose distribution's majority shares their class, round by
    round.
    """
    counts = results.class_counts(trial.panel, trial.seed)
    table = results.of("rows", trial)
    rounds, noted = np.unique(results.column("rows", trial, "round"), return_index=True)
    if not len(rounds) or table.num_rows % len(rounds):
        return None
    rows = results.column("rows", trial, "row").astype(int).reshape(len(noted), -1)
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
    """Return the commonest main class among those that share each client's distribution."""
    shared = np.zeros((rows.max(initial=0) + 1, main.max(initial=0) + 1), dtype=np.int64)
    known = (rows >= 0) & (main >= 0)
    np.add.at(shared, (rows[known], main[known]), 1)
    return np.where(known, shared.argmax(axis=1)[np.maximum(rows, 0)], -1)
