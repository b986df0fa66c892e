"""Groups of bounded mass and the merges that join them, by 2-means or by labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
#: The group of every leaf, and the merges of the groups: a :class:`GroupTree`'s first two fields.
GroupsAndMerges = tuple[Integers, Integers]

#: The most points used to find the two centres of a split. All points are then assigned.
SAMPLE = 4096
#: The largest number of Lloyd's iterations.
ITERATIONS = 10
#: Power iterations to find the principal axis, where a split starts.
POWER_STEPS = 3


def bisected_groups(
    points: NDArray[np.float32], masses: Integers, capacity: int, rng: np.random.Generator
) -> GroupsAndMerges:
    """Split the points by weighted 2-means until no group has more mass than ``capacity``.

    Takes O(n d log m) time and one copy of the points. Splits start from the principal axis.
    Points that 2-means cannot split, such as equal ones, are split into random halves.

    Parameters
    ----------
    points
        Shape (n, dimension), at least one.
    masses
        At least 1 and at most ``capacity`` each, shape (n,).

    Examples
    --------
    >>> points = np.array([[0.0], [9.0], [1.0], [8.0]], dtype=np.float32)
    >>> groups, merges = bisected_groups(points, np.ones(4, dtype=int), 2, np.random.default_rng(0))
    >>> groups[0] == groups[2], groups[1] == groups[3], merges.tolist()
    (np.True_, np.True_, [[0, 1]])
    """
    order = np.arange(len(points))
    # Scale, so that no square overflows.
    unit = max(points.max(initial=0.0), -points.min(initial=0.0)) or 1.0
    cloud, units = points / np.float32(unit), masses.copy()
    groups = np.empty(len(points), dtype=np.int64)
    n_groups = 0
    #: Segments of the ordered points, parents first: the group of each, or the two parts.
    segments = [(0, len(points))]
    inside: list[int | tuple[int, int]] = []
    for start, end in segments:
        if int(units[start:end].sum()) <= capacity:
            groups[order[start:end]] = n_groups
            inside.append(n_groups)
            n_groups += 1
            continue
        is_right = _sides(cloud[start:end], units[start:end], rng)
        inner = np.concatenate([np.flatnonzero(~is_right), np.flatnonzero(is_right)])
        for line in (cloud, units, order):
            line[start:end] = line[start:end][inner]
        middle = end - int(is_right.sum())
        inside.append((len(segments), len(segments) + 1))
        segments += [(start, middle), (middle, end)]
    return groups, _merges(inside, n_groups)


# BLAS sometimes raises this flag although the products and results are finite.
@np.errstate(invalid="ignore")
def _sides(
    cloud: NDArray[np.float32], units: Integers, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return whether each point is nearer to the right centre; both sides get some points."""
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
    """Return the approximate direction of largest variance."""
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


def _merges(inside: list[int | tuple[int, int]], n_groups: int) -> Integers:
    """Turn splits (parents first) into merges (children first)."""
    node = [0] * len(inside)
    merges: list[tuple[int, int]] = []
    for segment, content in reversed(list(enumerate(inside))):
        if isinstance(content, int):
            node[segment] = content
        else:
            node[segment] = n_groups + len(merges)
            merges.append((node[content[0]], node[content[1]]))
    return np.array(merges, dtype=np.int64).reshape(-1, 2)


def labelled_groups(
    labels: Integers, masses: Integers, capacity: int, rng: np.random.Generator
) -> GroupsAndMerges:
    """Cut the clients of every label into groups. Join the groups of a label, then the labels.

    Parameters
    ----------
    labels, masses
        The label of every leaf, and its mass, at most ``capacity``; leaves in random order.

    Examples
    --------
    >>> labels, masses = np.array([0, 1, 0, 0]), np.array([2, 1, 2, 2])
    >>> groups, merges = labelled_groups(labels, masses, 4, np.random.default_rng(0))
    >>> groups.tolist(), merges.tolist()
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
    return groups, np.array(merges, dtype=np.int64).reshape(-1, 2)


def _joined(nodes: list[int], n_parts: int, merges: list[tuple[int, int]]) -> int:
    """Join the nodes in pairs, level by level; return the last node."""
    while len(nodes) > 1:
        above = []
        for left, right in zip(nodes[::2], nodes[1::2], strict=False):
            above.append(n_parts + len(merges))
            merges.append((left, right))
        nodes = above + nodes[2 * len(above) :]
    return nodes[0]
