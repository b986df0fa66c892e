"""Integers on a line, against plain loops."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedcohort.plan import Entries, descending, fill_rows, overlaps, whole_rows
from populations import rng


def unit_by_unit(lengths: list[int]) -> list[int]:
    """Name the owner of every unit of the line."""
    return [owner for owner, length in enumerate(lengths) for _ in range(length)]


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw two divisions of one line, empty pieces included."""
    pieces = draw(st.lists(st.integers(0, 6), min_size=1, max_size=8))
    marks = draw(st.lists(st.integers(0, sum(pieces)), max_size=6))
    return pieces, np.diff([0, *sorted(marks), sum(pieces)]).tolist()


@given(lines())
def test_overlaps_equal_counting_unit_by_unit(line: tuple[list[int], list[int]]) -> None:
    pieces, cuts = line
    owners = list(zip(unit_by_unit(pieces), unit_by_unit(cuts), strict=True))

    found = overlaps(np.array(pieces), np.array(cuts))

    counted = [(*pair, owners.count(pair)) for pair in sorted(set(owners))]
    assert list(zip(*(part.tolist() for part in found), strict=True)) == counted
    assert len(found.units) <= max(len(pieces) + len(cuts) - 1, 0)


def test_whole_rows_leave_the_remainders() -> None:
    alone, rest = whole_rows(np.array([25, 9, 10, 0]), 10)

    assert alone.rows.tolist() == [0, 1, 2]
    assert alone.clients.tolist() == [0, 0, 2]
    assert alone.units.tolist() == [10, 10, 10]
    assert rest.tolist() == [5, 9, 0, 0]


def dense(entries: Entries, n_clients: int) -> list[list[int]]:
    rows = np.zeros((entries.n_rows, n_clients), dtype=int)
    np.add.at(rows, (entries.rows, entries.clients), entries.units)
    filled: list[list[int]] = rows.tolist()
    return filled


def test_the_worked_example_of_algorithm_2() -> None:
    """[16, 12, 3, 4, 5], m = 2, groups {1} {2} {3, 4} {5}: {1:32, 3:6, 4:2}, {2:24, 4:6, 5:10}."""
    entries = fill_rows(
        np.arange(5), np.array([32, 24, 6, 8, 10]), np.array([0, 1, 2, 2, 3]), capacity=40
    )

    assert dense(entries, 5) == [[32, 0, 6, 2, 0], [0, 24, 0, 6, 10]]


def test_nothing_is_left_to_place_when_every_group_opens_a_row() -> None:
    entries = fill_rows(np.arange(3), np.array([10, 4, 6]), np.array([0, 1, 1]), capacity=10)

    assert dense(entries, 3) == [[10, 0, 0], [0, 4, 6]]


def slow_fill(units: list[int], ranks: list[int], capacity: int) -> list[list[int]]:
    """Follow the pseudo-code: fill row k until it is full, then go on with the next."""
    m = sum(units) // capacity
    rows = [[u if rank == k else 0 for u, rank in zip(units, ranks, strict=True)] for k in range(m)]
    k = 0
    for i, rank in enumerate(ranks):
        left = units[i] if rank >= m else 0
        while left > 0:
            placed = min(left, capacity - sum(rows[k]))
            rows[k][i] += placed
            left -= placed
            k += sum(rows[k]) == capacity
    return rows


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 12))
def test_filling_equals_the_pseudo_code(seed: int, m: int, capacity: int) -> None:
    """Cut m full rows at random places into groups of one or more clients."""
    generator = rng(seed)
    n_marks = int(generator.integers(0, m * capacity))
    marks = generator.choice(np.arange(1, m * capacity), size=n_marks, replace=False)
    marks = np.unique(np.concatenate([marks, capacity * np.arange(m + 1)])).astype(int)
    units = generator.permutation(np.diff(marks))
    masses = np.sort(units)[::-1]
    ranks = np.argsort(-units, kind="stable").argsort()
    order = np.argsort(ranks)

    entries = fill_rows(np.arange(len(units)), units[order], ranks[order], capacity=capacity)

    assert masses.tolist() == units[order].tolist()
    assert dense(entries, len(units)) == slow_fill(
        units[order].tolist(), ranks[order].tolist(), capacity
    )


def test_equal_values_are_ordered_at_random() -> None:
    orders = {tuple(descending(np.array([1, 5, 1, 1]), rng(seed)).tolist()) for seed in range(200)}

    assert orders == {
        (1, 0, 2, 3),
        (1, 0, 3, 2),
        (1, 2, 0, 3),
        (1, 2, 3, 0),
        (1, 3, 0, 2),
        (1, 3, 2, 0),
    }
