"""Trees over clients: built from distances, by 2-means or from groups, and cut by capacity."""

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


#: Points that the two centres of a split are found on; all points are then assigned to them.
SAMPLE = 4096
#: Lloyd's iterations at most.
ITERATIONS = 10
#: Steps towards the principal axis, where the two centres start.
POWER_STEPS = 3


def bisected(
    points: NDArray[np.float32],
    masses: NDArray[np.int64],
    capacity: int,
    rng: np.random.Generator,
) -> GroupTree:
    """Split the points by weighted 2-means until no group has more mass than ``capacity``.

    O(n d log m) time, one copy of the points. Splits start from the principal axis; a cloud that
    does not split, such as equal points, is split into random halves.

    Parameters
    ----------
    points
        Shape (n, dimension), at least one.
    masses
        At least 1 and at most ``capacity`` each, shape (n,).

    Examples
    --------
    >>> points = np.array([[0.0], [9.0], [1.0], [8.0]], dtype=np.float32)
    >>> tree = bisected(points, np.array([1, 1, 1, 1]), 2, np.random.default_rng(0))
    >>> tree.groups[0] == tree.groups[2], tree.groups[1] == tree.groups[3], tree.merges.tolist()
    (np.True_, np.True_, [[0, 1]])
    """
    order = np.arange(len(points))
    # In this unit of length no square overflows.
    unit = max(points.max(initial=0.0), -points.min(initial=0.0)) or 1.0
    cloud, units = points / np.float32(unit), masses.copy()
    groups = np.empty(len(points), dtype=np.int64)
    n_groups = 0
    #: Segments of the line of points, parents first, and the segments that each was split into.
    segments = [(0, len(points))]
    parts: list[tuple[int, int] | None] = []
    own_group: list[int] = []
    for start, end in segments:
        if int(units[start:end].sum()) <= capacity:
            groups[order[start:end]] = n_groups
            own_group.append(n_groups)
            parts.append(None)
            n_groups += 1
            continue
        is_right = _sides(cloud[start:end], units[start:end], rng)
        inner = np.concatenate([np.flatnonzero(~is_right), np.flatnonzero(is_right)])
        for line in (cloud, units, order):
            line[start:end] = line[start:end][inner]
        middle = end - int(is_right.sum())
        parts.append((len(segments), len(segments) + 1))
        own_group.append(-1)
        segments += [(start, middle), (middle, end)]
    return GroupTree(groups, _merges(parts, own_group, n_groups))


# BLAS raises this flag for finite products now and then, with finite results.
@np.errstate(invalid="ignore")
def _sides(
    cloud: NDArray[np.float32], units: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Say which of two centres each point is nearer to; both have some."""
    n = len(cloud)
    chosen = slice(None) if n <= SAMPLE else np.sort(rng.integers(n, size=SAMPLE))
    points, weights = cloud[chosen], units[chosen].astype(np.float32)
    weights = weights / weights.sum()
    mean = weights @ points
    axis = _principal_axis(points - mean, weights, rng)
    threshold = float(axis @ mean)
    before = points @ axis > threshold
    for _ in range(ITERATIONS):
        share = float(weights @ before)
        if not 0.0 < share < 1.0:
            return _random_halves(n, rng)
        right = (weights * before) @ points / share
        left = (mean - share * right) / (1.0 - share)
        axis = right - left
        threshold = float(axis @ (right + left)) / 2
        now = points @ axis > threshold
        if (now == before).all():
            break
        before = now
    is_right = cloud @ axis > threshold
    return is_right if is_right.any() and not is_right.all() else _random_halves(n, rng)


def _principal_axis(
    centred: NDArray[np.float32], weights: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return about the direction of largest variance."""
    axis = rng.standard_normal((centred.shape[1],), dtype=np.float32)
    for _ in range(POWER_STEPS):
        axis = (weights * (centred @ axis)) @ centred
        length = float(np.linalg.norm(axis))
        if length == 0.0:
            break
        axis = axis / np.float32(length)
    return axis


def _random_halves(n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    is_right = np.zeros(n, dtype=bool)
    is_right[rng.permutation(n)[: n // 2]] = True
    return is_right


def _merges(
    parts: list[tuple[int, int] | None], own_group: list[int], n_groups: int
) -> NDArray[np.int64]:
    """Turn splits, parents first, into merges, children first."""
    node = list(own_group)
    merges: list[tuple[int, int]] = []
    for segment in range(len(parts) - 1, -1, -1):
        pair = parts[segment]
        if pair is not None:
            node[segment] = n_groups + len(merges)
            merges.append((node[pair[0]], node[pair[1]]))
    return np.array(merges, dtype=np.int64).reshape(-1, 2)
