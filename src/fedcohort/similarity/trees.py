"""Similarity trees, and their cut into groups that fit a distribution."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

#: Ways to merge clusters, as scipy names them.
Linkage = Literal["ward", "single", "complete", "average", "weighted", "centroid", "median"]
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


def merge_tree(distances: NDArray[np.float64], linkage: Linkage) -> MergeTree:
    """Build the similarity tree of n clients from their condensed distances."""
    from scipy.cluster.hierarchy import linkage as scipy_linkage

    if distances.size == 0:
        return MergeTree(np.empty((0, 2), dtype=np.int64), np.empty(0))
    # A tree does not depend on the unit of length; in this one no square overflows or vanishes.
    unit = distances.max() or 1.0
    merges = scipy_linkage(distances / unit, linkage)
    return MergeTree(merges[:, :2].astype(np.int64), merges[:, 2] * unit)


def capacity_cut(
    merges: NDArray[np.int64], masses: NDArray[np.int64], capacity: int
) -> NDArray[np.int64]:
    """Cut the tree into its maximal subtrees whose clients' masses sum to at most ``capacity``.

    No single mass exceeds the capacity. Returns a group number, from 0, for every client.

    Examples
    --------
    >>> capacity_cut(np.array([[0, 1], [3, 2]]), masses=np.array([2, 3, 4]), capacity=5).tolist()
    [1, 1, 0]
    """
    n = len(masses)
    mass = masses.tolist()
    pairs = merges.tolist()
    for left, right in pairs:
        mass.append(mass[left] + mass[right])
    top = list(range(len(mass)))
    for node in range(len(mass) - 1, n - 1, -1):
        if mass[node] <= capacity:
            left, right = pairs[node - n]
            top[left] = top[right] = top[node]
    return np.unique(np.array(top[:n]), return_inverse=True)[1]
