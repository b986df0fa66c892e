"""Runs with planted faults, and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedcohort.participation import Participation
from fedcohort.participation.table import Entry, made

#: Says whether a client fails in a round: (round, client, rng) -> bool.
Fault = Callable[[int, int, np.random.Generator], bool]


def nobody(round_: int, client: int, rng: np.random.Generator) -> bool:
    return False


def run(
    *,
    n_clients: int = 40,
    n_rounds: int = 80,
    cohort_size: int | None = None,
    fault: Fault = nobody,
    rate: float = 0.05,
    seed: int = 0,
    draw: Callable[[np.random.Generator], Any] | None = None,
    late: Callable[[np.random.Generator], set[int]] | None = None,
    seconds: Any = None,
    **more: Any,
) -> Participation:
    """Play a run; every asked client fails at this rate, and where the fault says so.

    With ``late``, these clients of a round fail, and no others.
    """
    rng, m = np.random.default_rng(seed), cohort_size or n_clients
    entries = []
    for round_ in range(n_rounds):
        who = rng.choice(n_clients, m, replace=False) if draw is None else draw(rng)
        lost = None if late is None else late(rng)
        for client in map(int, who):
            fails = (
                rng.random() < rate or fault(round_, client, rng)
                if lost is None
                else client in lost
            )
            took = np.nan if seconds is None or fails else float(seconds[client])
            entries.append(Entry(round_, str(client), not fails, seconds=took))
    sizes = more.pop("sizes", 10.0 * np.arange(1, n_clients + 1))
    ids = [str(client) for client in range(n_clients)]
    return made("a run", "a table", entries, ids=ids, sizes=sizes, **more)
