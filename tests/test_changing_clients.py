"""Control variates of clients that come and go."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort import Difference

DIMENSION = 7
DIFFERENCES = [Difference(), Difference(0.5), Difference(clusters=2)]


def updates_of(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(n, DIMENSION))


@pytest.mark.parametrize("difference", DIFFERENCES, ids=repr)
def test_another_importance_gives_the_memory_that_always_had_it(difference: Difference) -> None:
    """Client 1 goes away, clients 4 and 5 are new; they are recorded before and after.

    Numbers are of order 1 and sums have at most 6 terms: 1e-12 is thousands of roundings.
    """
    rng, before = np.random.default_rng(0), np.array([0.4, 0.3, 0.2, 0.1])
    after = np.array([0.1, 0.0, 0.3, 0.1, 0.3, 0.2])
    changed = difference.memory(before, np.zeros(DIMENSION))
    always = difference.memory(after, np.zeros(DIMENSION))
    for clients in (np.array([0, 1, 3]), np.array([1, 2])):
        rows = updates_of(rng, len(clients))
        changed.record(clients, rows)
        always.record(clients, rows)
    changed.reweigh(after)

    assert changed.expected() == pytest.approx(always.expected(), abs=1e-12)
    clients, rows = np.array([0, 4]), updates_of(rng, 2)
    changed.record(clients, rows)
    always.record(clients, rows)
    every = np.arange(len(after))
    assert (changed.of(every) == always.of(every)).all()
    assert changed.expected() == pytest.approx(always.expected(), abs=1e-12)
    assert np.abs(changed.of(np.array([1]))).max() > 0  # away, and not forgotten
