"""A tree of given groups: the members of a group meet each other before they meet others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.similarity.trees import GroupTree


def tree_of_groups(
    labels: NDArray[np.int64],
    masses: NDArray[np.int64],
    capacity: int,
    rng: np.random.Generator,
) -> GroupTree:
    """Cut every group into parts of at most ``capacity``, join these, then the groups.

    Parameters
    ----------
    labels, masses
        The group of every leaf, and its mass, at most ``capacity``; leaves in random order.

    Examples
    --------
    >>> labels, masses = np.array([0, 1, 0, 0]), np.array([2, 1, 2, 2])
    >>> tree = tree_of_groups(labels, masses, 4, np.random.default_rng(0))
    >>> tree.groups.tolist(), tree.merges.tolist()
    ([0, 2, 0, 1], [[0, 1], [3, 2]])
    """
    groups = np.empty(len(labels), dtype=np.int64)
    parts_of: dict[int, list[int]] = {}
    room = n_parts = 0
    for leaf in np.argsort(labels, kind="stable").tolist():
        label, mass = int(labels[leaf]), int(masses[leaf])
        if label not in parts_of or mass > room:
            parts_of.setdefault(label, []).append(n_parts)
            n_parts, room = n_parts + 1, capacity
        groups[leaf] = n_parts - 1
        room -= mass
    merges: list[tuple[int, int]] = []
    tops = [_joined(parts, n_parts, merges) for parts in parts_of.values()]
    if tops:
        _joined([tops[i] for i in rng.permutation(len(tops))], n_parts, merges)
    return GroupTree(groups, np.array(merges, dtype=np.int64).reshape(-1, 2))


def _joined(nodes: list[int], n_parts: int, merges: list[tuple[int, int]]) -> int:
    """Join the nodes by pairs, and the pairs by pairs, down to one."""
    while len(nodes) > 1:
        above = []
        for left, right in zip(nodes[::2], nodes[1::2], strict=False):
            above.append(n_parts + len(merges))
            merges.append((left, right))
        nodes = above + nodes[2 * len(above) :]
    return nodes[0]
