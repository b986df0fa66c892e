"""Similarity trees, and their cut into groups that fit a distribution."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

#: Ways to merge clusters, as scipy names them.
Linkage = Literal["ward", "single", "complete", "average", "weighted", "centroid", "median"]
LINKAGES: tuple[Linkage, ...] = get_args(Linkage)


def merge_tree(distances: NDArray[np.float64], linkage: Linkage) -> NDArray[np.int64]:
    """Build the similarity tree of n clients from their condensed distances.

    Returns the merges, children first, shape (n - 1, 2): merge t makes node n + t out of two
    earlier nodes; nodes 0 ... n - 1 are the clients.
    """
    from scipy.cluster.hierarchy import linkage as scipy_linkage

    if distances.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    # A tree does not depend on the unit of length; in this one no square overflows or vanishes.
    largest = distances.max()
    merges = scipy_linkage(distances / largest if largest > 0 else distances, linkage)
    return merges[:, :2].astype(np.int64)


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
