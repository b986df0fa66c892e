"""The difference estimator's memory of clients that come and go."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort import Difference
from fedcohort.errors import MemoryOfUpdatesError

DIMENSION = 7
DIFFERENCES = [Difference(), Difference(0.5), Difference(keep="int8")]


def updates_of(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=(n, DIMENSION))


@pytest.mark.parametrize("difference", DIFFERENCES, ids=repr)
def test_new_clients_and_another_importance_give_the_memory_that_always_had_them(
    difference: Difference,
) -> None:
    """Client 1 goes away, clients 4 and 5 are new; clients are recorded before and after.

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
    changed.rearrange(np.array([0, 1, 2, 3, -1, -1]))
    changed.reweigh(after)

    assert changed.expected() == pytest.approx(always.expected(), abs=1e-12)
    clients, rows = np.array([0, 4]), updates_of(rng, 2)
    changed.record(clients, rows)
    always.record(clients, rows)
    every = np.arange(len(after))
    assert (changed.of(every) == always.of(every)).all()
    assert changed.expected() == pytest.approx(always.expected(), abs=1e-12)
    assert np.abs(changed.of(np.array([1]))).max() > 0  # away, and not forgotten


@pytest.mark.parametrize("difference", DIFFERENCES, ids=repr)
def test_another_importance_changes_nothing_of_the_callers(difference: Difference) -> None:
    """Neither the zeros, which a sum in their own type would be written into, nor p."""
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    zeros, shares = torch.zeros(DIMENSION, dtype=torch.float64), np.array([0.25, 0.75])
    memory = difference.memory(np.array([0.5, 0.5]), zeros)
    memory.record(np.array([0, 1]), torch.ones((2, DIMENSION), dtype=torch.float64))

    memory.reweigh(shares)
    memory.reweigh(shares)
    shares[:] = 7.0

    assert (zeros == 0).all()
    assert (memory.expected() == difference.shrink).all()


@pytest.mark.parametrize("difference", DIFFERENCES, ids=repr)
def test_clients_that_there_were_cannot_be_left_out(difference: Difference) -> None:
    memory = difference.memory(np.full(3, 1 / 3), np.zeros(DIMENSION))

    with pytest.raises(MemoryOfUpdatesError, match=r"per client \(3\).*; got shape \(2,\).* 0 for"):
        memory.reweigh([0.5, 0.5])


@pytest.mark.parametrize("difference", DIFFERENCES, ids=repr)
def test_clients_move_to_other_places_with_what_is_remembered(difference: Difference) -> None:
    """Order 2, new, 0, 1: shares are eighths and updates small integers, so that sums are exact.

    The largest entry is 127, so that int8 keeps them exactly, too.
    """
    rows = np.random.default_rng(1).integers(-8, 9, size=(3, DIMENSION)).astype(float)
    rows[:, 2] = 127
    memory = difference.memory([0.5, 0.25, 0.25], np.zeros(DIMENSION))
    memory.record(np.arange(3), rows)
    before = memory.of(np.arange(3))

    memory.rearrange(np.array([2, -1, 0, 1]))
    memory.reweigh([0.125, 0.5, 0.25, 0.125])

    after = memory.of(np.arange(4))
    assert (after == np.stack([before[2], np.zeros(DIMENSION), before[0], before[1]])).all()
    assert (memory.expected() == np.array([0.125, 0.5, 0.25, 0.125]) @ after).all()


def test_a_client_that_is_left_out_is_forgotten() -> None:
    memory = Difference().memory([0.5, 0.25, 0.25], np.zeros(1))
    memory.record(np.arange(3), np.array([[4.0], [8.0], [2.0]]))

    memory.rearrange(np.array([0, 2]))
    memory.reweigh([0.5, 0.5])

    assert memory.of(np.arange(2)).tolist() == [[4.0], [2.0]]
    assert memory.expected().tolist() == [3.0]
