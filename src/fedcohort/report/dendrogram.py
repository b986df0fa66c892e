"""The tree of a run's next design, laid out for drawing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.experiments.results import Results
from fedcohort.experiments.units import Trial
from fedcohort.report.main_class import main_classes
from fedcohort.report.plain_values import plain, short

#: Of a larger tree only the last merges are drawn; what lies below them is a leaf.
MOST_MERGES = 400
MIXED = -1
Integers = NDArray[np.int64]


def dendrogram(results: Results, trial: Trial) -> dict[str, Any] | None:
    """Return leaves and links; None where the run has no tree (yet).

    A link is ``[left x, left y, right x, right y, height, class]``, the class -1 where the clients
    below differ in their main class. A leaf is a client (or the lowest node drawn) with its class.
    """
    if not results.of("trees", trial).num_rows:
        return None
    names = ("left", "right", "height")
    left, right, height = (results.column("trees", trial, name) for name in names)
    n_clients = results.of("laws", trial).num_rows
    main = main_classes(results.class_counts(trial.panel, trial.seed), n_clients)
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
    """Return every node's class, -1 where its clients differ, and how many clients it holds."""
    classes = np.concatenate([main, np.full(len(pairs), MIXED)])
    members = np.concatenate([np.ones_like(main), np.zeros(len(pairs), dtype=np.int64)])
    for node, (one, other) in enumerate(pairs, start=len(main)):
        if classes[one] == classes[other]:
            classes[node] = classes[one]
        members[node] = members[one] + members[other]
    return classes, members


def _leaves(pairs: Integers, n_clients: int, first: int) -> list[int]:
    """Return the nodes below ``first`` that hang on the drawn ones, from left to right."""
    waiting, found = [n_clients + len(pairs) - 1], []
    while waiting:
        node = waiting.pop()
        if node < first:
            found.append(node)
        else:
            one, other = pairs[node - n_clients]
            waiting += [int(other), int(one)]
    return found
