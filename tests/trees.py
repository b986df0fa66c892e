"""What every tree of groups is held to, and what tests ask of trees."""

import numpy as np

from fedcohort.similarity import GroupTree


def held(tree: GroupTree, masses: np.ndarray) -> list[int]:
    """Return the mass below every node: groups first, then merges."""
    mass = [0] * (len(tree.merges) + 1)
    for group, units in zip(tree.groups.tolist(), masses.tolist(), strict=True):
        mass[group] += units
    for left, right in tree.merges.tolist():
        mass.append(mass[left] + mass[right])
    return mass


def is_tree(tree: GroupTree) -> bool:
    """Say whether the groups are 0 ... K - 1 and the merges join each node once, children first."""
    n_groups = len(tree.merges) + 1
    joined = tree.merges.ravel().tolist()
    return (
        set(tree.groups.tolist()) == set(range(n_groups))
        and sorted(joined) == list(range(2 * n_groups - 2))
        and all(max(pair) < n_groups + t for t, pair in enumerate(tree.merges.tolist()))
    )


def depth(tree: GroupTree) -> int:
    """Return how many merges lie between a group and the root, at most."""
    above = [0] * (len(tree.merges) + 1)
    for left, right in tree.merges.tolist():
        above.append(1 + max(above[left], above[right]))
    return above[-1]


def partition(groups: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(groups == g).tolist()) for g in set(groups.tolist())}
