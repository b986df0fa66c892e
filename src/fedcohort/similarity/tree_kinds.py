"""Which tree to build: exact for hundreds of clients, bisecting for a million."""

from __future__ import annotations

from importlib.util import find_spec
from logging import getLogger
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedcohort._extras import import_extra
from fedcohort.errors import DesignError
from fedcohort.similarity.measures import MEASURES, MeasureName, largest_entries
from fedcohort.similarity.trees import GroupTree, Linkage, MergeTree, bisected, cut_tree, merge_tree

log = getLogger("fedcohort")

#: ``"exact"`` compares all pairs; ``"vector"`` is Ward's method in O(n d) memory; ``"bisecting"``
#: is 2-means, again and again; ``"auto"`` picks by the number of clients.
TreeKind = Literal["auto", "exact", "vector", "bisecting"]
#: The kinds of trees that can be built from updates.
TREE_KINDS: tuple[TreeKind, ...] = get_args(TreeKind)

#: ``"auto"`` compares all pairs up to so many clients, and up to so many more takes Ward's tree of
#: vectors where fastcluster is installed: about a second each on one core.
AUTO_EXACT = 2_000
AUTO_VECTOR = 5_000
#: All pairs of more clients than this do not fit the memory of one machine.
LARGEST_EXACT = 20_000
#: Updates converted to float64 at a time.
BLOCK_ROWS = 2**14


def similarity_tree(
    owner: str,
    updates: NDArray[np.floating],
    masses: NDArray[np.int64],
    capacity: int,
    *,
    kind: TreeKind = "auto",
    measure: MeasureName = "arccos",
    linkage: Linkage = "ward",
    rng: np.random.Generator,
) -> GroupTree:
    """Build the similarity tree of these updates, cut by capacity.

    Parameters
    ----------
    updates
        Shape (n, dimension), in an order that means nothing.
    masses
        At least 1 and at most ``capacity`` each, shape (n,).
    kind, measure, linkage
        ``"vector"`` and ``"bisecting"`` know the measures ``"arccos"`` and ``"l2"`` and Ward's
        linkage only.
    """
    chosen = chosen_kind(owner, kind, len(updates), measure, linkage)
    return built_tree(owner, updates, masses, capacity, chosen, measure, linkage, rng)


def built_tree(
    owner: str,
    updates: NDArray[np.floating],
    masses: NDArray[np.int64],
    capacity: int,
    kind: TreeKind,
    measure: MeasureName,
    linkage: Linkage,
    rng: np.random.Generator,
) -> GroupTree:
    """Build the tree that :func:`chosen_kind` named."""
    if kind == "exact":
        return cut_tree(merge_tree(MEASURES[measure](updates), linkage), masses, capacity)
    points = unit_vectors(updates) if measure == "arccos" else centred_points(updates)
    if kind == "vector":
        return cut_tree(_vector_tree(owner, points), masses, capacity)
    return bisected(points, masses, capacity, rng)


def chosen_kind(
    owner: str, kind: TreeKind, n: int, measure: MeasureName, linkage: Linkage
) -> TreeKind:
    """Say which tree ``"auto"`` builds of n clients, and refuse what cannot be built."""
    if kind == "auto":
        if n <= AUTO_EXACT or not _has_vectors(measure, linkage):
            kind = "exact"
        else:
            kind = "vector" if n <= AUTO_VECTOR and find_spec("fastcluster") else "bisecting"
    log.info("%s: %s tree of %d clients", owner, kind, n)
    if kind == "exact":
        _check_memory(owner, n, measure, linkage)
    elif not _has_vectors(measure, linkage):
        raise DesignError(
            f"{owner}: a {kind} tree needs measure arccos or l2 and linkage ward; got "
            f"{measure} and {linkage}. Use tree='exact'."
        )
    return kind


def _check_memory(owner: str, n: int, measure: MeasureName, linkage: Linkage) -> None:
    if n > LARGEST_EXACT:
        others = "" if _has_vectors(measure, linkage) else ", measure arccos or l2, linkage ward"
        raise DesignError(
            f"{owner}: an exact tree compares all pairs, at most {LARGEST_EXACT} clients; got "
            f"{n}, whose distances take {4e-9 * n * n:.0f} GB. Use tree='bisecting'{others}."
        )


def _has_vectors(measure: MeasureName, linkage: Linkage) -> bool:
    """Say whether Ward's method on points of a Euclidean space has this measure and linkage."""
    return measure != "l1" and linkage == "ward"


def _vector_tree(owner: str, points: NDArray[np.float32]) -> MergeTree:
    """Build Ward's tree from the points themselves, O(n d) memory."""
    if len(points) < 2:
        return merge_tree(np.empty(0), "ward")
    fastcluster = import_extra("fastcluster", extra="scale", owner=owner)
    merges = fastcluster.linkage_vector(points, method="ward")
    return MergeTree(merges[:, :2].astype(np.int64), merges[:, 2])


def unit_vectors(updates: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the updates' directions, shape (n, dimension or one more).

    The distance of two grows with their angle. Zero updates get a direction of their own: at a
    right angle to all others, equal among themselves.

    Examples
    --------
    >>> unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]])).astype(float).round(2).tolist()
    [[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]
    """
    largest = largest_entries(updates)
    zero = largest == 0
    n, dimension = updates.shape
    units = np.zeros((n, dimension + int(zero.any())), dtype=np.float32)
    own = units[:, :dimension]
    # By the largest entry first: squares of 1e-200 would vanish.
    np.divide(updates, np.where(zero, 1.0, largest)[:, None], out=own, casting="same_kind")
    norms = np.sqrt(np.einsum("ij,ij->i", own, own))
    own /= np.where(zero, np.float32(1.0), norms)[:, None]
    if zero.any():
        units[zero, dimension] = 1.0
    return units


def centred_points(updates: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the updates about their mean, in the unit of their largest entry.

    In float32 neither a common shift nor entries of 1e-200 or 1e150 then cost precision.

    Examples
    --------
    >>> centred_points(np.array([[1e9 + 2.0, 0.0], [1e9, 0.0]])).tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """
    points = np.empty(updates.shape, dtype=np.float32)
    if not len(updates):
        return points
    mean = updates.mean(axis=0, dtype=np.float64)
    furthest = np.maximum(updates.max(axis=0) - mean, mean - updates.min(axis=0))
    unit = float(furthest.max(initial=0.0)) or 1.0
    for start in range(0, len(updates), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        points[block] = (updates[block] - mean) / unit
    return points
