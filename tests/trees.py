"""What every tree of groups is held to, and what tests ask of trees."""

from itertools import pairwise

import numpy as np

from fedcohort import Plan
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


def maximal_subtrees(merges: np.ndarray, masses: list[int], capacity: int) -> list[set[int]]:
    """Cut from the root downwards: keep a node if it fits, else look at its children."""
    n = len(masses)

    def leaves(node: int) -> set[int]:
        if node < n:
            return {node}
        left, right = merges[node - n, :2].astype(int)
        return leaves(left) | leaves(right)

    def cut(node: int) -> list[set[int]]:
        members = leaves(node)
        if sum(masses[i] for i in members) <= capacity:
            return [members]
        left, right = merges[node - n, :2].astype(int)
        return cut(left) + cut(right)

    return cut(2 * n - 2)


def plain_distances(updates: np.ndarray, measure: str) -> np.ndarray:
    """Return the square matrix of distances by the plain formulas."""
    if measure == "arccos":
        norms = np.linalg.norm(updates, axis=1)
        angles = np.arccos(np.clip(updates @ updates.T / norms / norms[:, None], -1, 1))
        np.fill_diagonal(angles, 0)
        return np.asarray(angles)
    off = updates[:, None] - updates[None]
    return np.asarray(np.abs(off).sum(axis=2) if measure == "l1" else np.sqrt((off**2).sum(axis=2)))


def federation_without_ties(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 30 different sizes, and 30 updates of different lengths."""
    generator = np.random.default_rng(seed)
    sizes = generator.choice(np.arange(100, 1000), size=30, replace=False)
    updates = generator.standard_normal((30, 5)) * generator.uniform(0.1, 3, size=(30, 1))
    return sizes, updates


def largest_groups_open_the_rows(plan: Plan, sizes: np.ndarray, merges: np.ndarray) -> bool:
    """Say whether a plan fills its rows as Algorithm 2 does with this tree."""
    m, rows = plan.cohort_size, plan.units.toarray()
    groups = maximal_subtrees(merges, (m * sizes).tolist(), int(sizes.sum()))
    groups.sort(key=lambda group: -sizes[list(group)].sum())
    opened = all(
        (row[sorted(group)] == m * sizes[sorted(group)]).all()
        for row, group in zip(rows, groups[:m], strict=True)
    )
    # What is left fills the first row's room, then the next one's, larger groups first.
    left_rank = {i: rank for rank, group in enumerate(groups[m:]) for i in group}
    present = [np.flatnonzero(row).tolist() for row in rows]
    filled = [[left_rank[i] for i in clients if i in left_rank] for clients in present]
    return opened and all(
        max(above) <= min(below) for above, below in pairwise(filled) if above and below
    )
