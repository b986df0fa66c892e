"""Trees and their capacity cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage as scipy_linkage

from fedcohort.similarity import LINKAGES, MergeTree, cut_tree, merge_tree
from fedcohort.similarity.trees import Linkage
from populations import random_merges, rng


@pytest.mark.parametrize("linkage", LINKAGES)
def test_the_tree_is_scipys_whatever_the_unit(linkage: Linkage) -> None:
    distances = rng().random(45)

    expected = scipy_linkage(distances, linkage)

    for unit in (1.0, 2.0**-600, 2.0**600):
        tree = merge_tree(unit * distances, linkage)
        assert (tree.merges == expected[:, :2]).all()
        assert tree.heights / unit == pytest.approx(expected[:, 2], rel=1e-12)


def test_one_client_is_a_tree_without_merges() -> None:
    tree = merge_tree(np.empty(0), "ward")

    assert tree.merges.shape == (0, 2)
    assert cut_tree(tree, np.array([3]), 5).groups.tolist() == [0]


def slow_cut(merges: np.ndarray, masses: list[int], capacity: int) -> set[frozenset[int]]:
    n = len(masses)

    def leaves(node: int) -> frozenset[int]:
        if node < n:
            return frozenset([node])
        left, right = merges[node - n].tolist()
        return leaves(left) | leaves(right)

    def cut(node: int) -> set[frozenset[int]]:
        members = leaves(node)
        if sum(masses[i] for i in members) <= capacity:
            return {members}
        left, right = merges[node - n].tolist()
        return cut(left) | cut(right)

    return cut(2 * n - 2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(3, 20))
def test_the_cut_keeps_the_maximal_subtrees_that_fit(seed: int, n: int, capacity: int) -> None:
    generator = rng(seed)
    masses = generator.integers(0, min(capacity, 6) + 1, size=n)
    merges = random_merges(n, generator)

    cut = cut_tree(MergeTree(merges, np.zeros(n - 1)), masses, capacity)

    groups = cut.groups

    found = {frozenset(np.flatnonzero(groups == g).tolist()) for g in set(groups.tolist())}
    assert found == slow_cut(merges, masses.tolist(), capacity)
    assert set(groups.tolist()) == set(range(len(found)))
