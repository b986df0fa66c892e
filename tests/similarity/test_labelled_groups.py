"""Trees of given groups."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedcohort.similarity import GroupTree
from fedcohort.similarity.grouping import labelled_groups
from fedcohort.testing import agree
from populations import rng
from trees import depth, held, is_tree


def below(tree: GroupTree, node: int) -> set[int]:
    """Return the leaves under a node."""
    n_groups = len(tree.merges) + 1
    if node < n_groups:
        return set(np.flatnonzero(tree.groups == node).tolist())
    left, right = tree.merges[node - n_groups].tolist()
    return below(tree, left) | below(tree, right)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 6), st.integers(1, 20))
def test_groups_are_cut_to_the_capacity_and_meet_inside_first(
    seed: int, n: int, n_labels: int, capacity: int
) -> None:
    """No part mixes labels or exceeds the capacity; every label is one subtree."""
    labels = rng(seed).integers(n_labels, size=n)
    masses = rng(seed + 1).integers(1, capacity + 1, size=n)

    tree = GroupTree(*labelled_groups(labels, masses, capacity, rng(seed)))

    n_parts = len(tree.merges) + 1
    assert is_tree(tree)
    assert max(held(tree, masses)[:n_parts]) <= capacity
    assert all(len(set(labels[tree.groups == part].tolist())) == 1 for part in range(n_parts))
    nodes = [below(tree, node) for node in range(2 * n_parts - 1)]
    for label in set(labels.tolist()):
        assert set(np.flatnonzero(labels == label).tolist()) in nodes


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 20))
def test_two_parts_of_a_group_that_meet_first_do_not_fit_into_one(
    seed: int, n: int, capacity: int
) -> None:
    masses = rng(seed).integers(1, capacity + 1, size=n)

    tree = GroupTree(*labelled_groups(np.zeros(n, dtype=int), masses, capacity, rng(seed)))

    n_parts = len(tree.merges) + 1
    assert all(units > capacity for units in held(tree, masses)[n_parts:])


def test_groups_are_joined_by_pairs() -> None:
    """A hundred groups: seven merges deep, not ninety-nine."""
    tree = GroupTree(*labelled_groups(np.arange(100), np.ones(100, dtype=int), 1, rng()))

    assert depth(tree) == 7


def test_no_leaves_make_no_groups() -> None:
    empty = np.empty(0, dtype=np.int64)

    tree = GroupTree(*labelled_groups(empty, empty, 3, rng()))

    assert tree.groups.shape == (0,)
    assert tree.merges.shape == (0, 2)


def test_every_two_groups_meet_first_equally_often() -> None:
    """Four groups, two pairs: a third for each partner of group 0.

    False alarms 1e-6; sees a chance that is off by .05.
    """
    times = 3000
    partners = np.zeros(4)
    for seed in range(times):
        tree = GroupTree(*labelled_groups(np.arange(4), np.ones(4, dtype=int), 1, rng(seed)))
        pair = next(pair for pair in tree.merges[:2].tolist() if 0 in pair)
        partners[sum(pair)] += 1

    assert agree(partners[1:], np.full(3, times / 3), np.full(3, np.sqrt(times * 2 / 9)))
