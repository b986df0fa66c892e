"""Similarity trees, and their cut into groups that fit a distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcohort._display import short_repr

#: Ways to merge clusters, as scipy names them.
Linkage = Literal["ward", "single", "complete", "average", "weighted", "centroid", "median"]
#: The linkages by name.
LINKAGES: tuple[Linkage, ...] = get_args(Linkage)


@dataclass(frozen=True, slots=True, eq=False)
class MergeTree:
    """A similarity tree of n leaves.

    Attributes
    ----------
    merges
        Children first, shape (n - 1, 2): merge t makes node n + t out of two earlier nodes; nodes
        0 ... n - 1 are the leaves.
    heights
        The linkage's distance of the two, shape (n - 1,).
    """

    merges: NDArray[np.int64]
    heights: NDArray[np.float64]

    def __repr__(self) -> str:
        return short_repr(self, n_leaves=len(self.merges) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class GroupTree:
    """A similarity tree above groups of clients that fit into one distribution.

    What a tree looks like inside a group makes no difference to any design.

    Attributes
    ----------
    groups
        The group of every leaf, numbered from 0 to K - 1, shape (n,).
    merges
        Children first, shape (K - 1, 2): merge t makes node K + t out of two earlier nodes; nodes
        0 ... K - 1 are the groups.
    whole
        The tree down to single leaves, where one was built.
    """

    groups: NDArray[np.int64]
    merges: NDArray[np.int64]
    whole: MergeTree | None = None

    def __repr__(self) -> str:
        return short_repr(self, n_leaves=len(self.groups), n_groups=len(self.merges) + 1)


def merge_tree(distances: NDArray[np.float64], linkage: Linkage) -> MergeTree:
    """Build the similarity tree of n clients from their condensed distances."""
    from scipy.cluster.hierarchy import linkage as scipy_linkage

    if distances.size == 0:
        return MergeTree(np.empty((0, 2), dtype=np.int64), np.empty(0))
    # A tree does not depend on the unit of length; in this one no square overflows or vanishes.
    unit = distances.max() or 1.0
    merges = scipy_linkage(distances / unit, linkage)
    return MergeTree(merges[:, :2].astype(np.int64), merges[:, 2] * unit)


def cut_tree(tree: MergeTree, masses: NDArray[np.int64], capacity: int) -> GroupTree:
    """Cut the tree into its maximal subtrees whose leaves' masses sum to at most ``capacity``.

    No single mass exceeds the capacity.

    Examples
    --------
    >>> tree = MergeTree(np.array([[0, 1], [3, 2]]), heights=np.array([1.0, 2.0]))
    >>> cut = cut_tree(tree, masses=np.array([2, 3, 4]), capacity=5)
    >>> cut.groups.tolist(), cut.merges.tolist()
    ([1, 1, 0], [[1, 0]])
    """
    n = len(masses)
    mass = masses.tolist()
    pairs = tree.merges.tolist()
    for left, right in pairs:
        mass.append(mass[left] + mass[right])
    top = list(range(len(mass)))
    for node in range(len(mass) - 1, n - 1, -1):
        if mass[node] <= capacity:
            left, right = pairs[node - n]
            top[left] = top[right] = top[node]
    tops, groups = np.unique(np.array(top[:n], dtype=np.int64), return_inverse=True)
    number = {int(node): group for group, node in enumerate(tops)}
    merges: list[tuple[int, int]] = []
    for node, (left, right) in enumerate(pairs, start=n):
        if mass[node] > capacity:
            number[node] = len(tops) + len(merges)
            merges.append((number[left], number[right]))
    return GroupTree(groups, np.array(merges, dtype=np.int64).reshape(-1, 2), tree)
