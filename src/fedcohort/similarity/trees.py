"""Trees over clients, built from their updates or passed by the user, and cut by capacity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from logging import getLogger
from typing import Any, Literal, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import (
    as_array,
    brief,
    checked_choice,
    checked_kind,
    checked_numbers,
    checked_rng,
    checked_whole,
)
from fedcohort._display import short_repr
from fedcohort._lazy import import_extra
from fedcohort.errors import DesignError
from fedcohort.similarity.grouping import bisected_groups
from fedcohort.similarity.measures import (
    LARGEST_EXACT,
    MEASURES,
    MeasureName,
    angles,
    centred_points,
    checked_updates,
    unit_vectors,
)

log = getLogger("fedcohort")

Integers = NDArray[np.int64]
#: Ways to merge clusters, as scipy names them.
Linkage = Literal["ward", "single", "complete", "average", "weighted", "centroid", "median"]
#: The linkages by name.
LINKAGES: tuple[Linkage, ...] = get_args(Linkage)
#: ``"exact"`` compares all pairs; ``"vector"`` is Ward's method in O(n d) memory; ``"bisecting"``
#: splits repeatedly by 2-means; ``"auto"`` picks by the number of clients.
TreeKind = Literal["auto", "exact", "vector", "bisecting"]
#: The kinds of trees that can be built from updates.
TREE_KINDS: tuple[TreeKind, ...] = get_args(TreeKind)
#: Returns all inner products of the updates, shape (n_clients, n_clients).
Products = Callable[[], NDArray[np.float64]]

#: ``"auto"`` builds an exact tree up to AUTO_EXACT clients, and a vector tree up to AUTO_VECTOR
#: if fastcluster is installed. Each takes about a second on one core.
AUTO_EXACT = 2_000
AUTO_VECTOR = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class MergeTree:
    """A similarity tree of n leaves.

    Attributes
    ----------
    merges
        Children first, shape (n - 1, 2): merge t joins two earlier nodes into node n + t. Nodes
        0 ... n - 1 are the leaves.
    heights
        The linkage distance of each merge, shape (n - 1,).
    """

    merges: Integers
    heights: NDArray[np.float64]

    def __repr__(self) -> str:
        return short_repr(self, n_leaves=len(self.merges) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class GroupTree:
    """A similarity tree whose leaves are groups that fit into one distribution each.

    Designs do not use the similarity inside a group.

    Attributes
    ----------
    groups
        The group of every client, numbered from 0 to K - 1, shape (n,).
    merges
        Children first, shape (K - 1, 2): merge t joins two earlier nodes into node K + t. Nodes
        0 ... K - 1 are the groups.
    whole
        The full tree down to single clients, if one was built.
    """

    groups: Integers
    merges: Integers
    whole: MergeTree | None = None

    def __repr__(self) -> str:
        return short_repr(self, n_leaves=len(self.groups), n_groups=len(self.merges) + 1)


#: A kind of tree to build from updates, or a tree whose leaves are all clients.
Tree = TreeKind | MergeTree | GroupTree


class TreeOptions(TypedDict, total=False):
    """The keywords that all designs with a tree share: those of :func:`client_tree`."""

    tree: Tree
    measure: MeasureName
    linkage: Linkage
    products: Products | None


def tree_reads(updates: object, options: TreeOptions) -> str:
    """Return what a tree is built from; empty if every update counts as zero."""
    if not isinstance(options.get("tree", "auto"), str):
        return "a given tree of the clients"
    return "" if updates is None else "clients' updates"


@dataclass(frozen=True)
class _Builder:
    """Valid options of a tree; ``tree`` is a kind's name or a tree. Builds trees from updates."""

    owner: str
    tree: Tree = "auto"
    measure: MeasureName = "arccos"
    linkage: Linkage = "ward"
    products: Products | None = None

    def __post_init__(self) -> None:
        checked_choice(self.owner, "measure", self.measure, MEASURES)
        checked_choice(self.owner, "linkage", self.linkage, LINKAGES)
        if isinstance(self.tree, str):
            checked_choice(self.owner, "tree", self.tree, TREE_KINDS)
        elif not isinstance(self.tree, MergeTree | GroupTree):
            raise DesignError(
                f"{self.owner}: tree must be one of {', '.join(TREE_KINDS)}, or a MergeTree or "
                f"GroupTree over all clients; got {type(self.tree).__name__}. Leave it out for "
                f"'auto'."
            )
        if self.products is not None and not callable(self.products):
            raise self._products_error(self.products)

    def built(
        self,
        updates: NDArray[np.floating],
        masses: Integers,
        capacity: int,
        leaves: Integers,
        rng: np.random.Generator,
    ) -> GroupTree:
        """Build a tree of this kind; the arguments are those of :func:`similarity_tree`, valid."""
        kind = self._kind(len(leaves))
        if kind == "exact":
            distances = self._distances(updates, leaves)
            return cut_tree(merge_tree(distances, self.linkage), masses[leaves], capacity)
        points = unit_vectors if self.measure == "arccos" else centred_points
        if kind == "vector":
            tree = _vector_tree(self.owner, points(updates[leaves]))
            return cut_tree(tree, masses[leaves], capacity)
        return bisected(points(updates[leaves]), masses[leaves], capacity, rng)

    def _distances(self, updates: NDArray[np.floating], leaves: Integers) -> NDArray[np.float64]:
        if self.measure != "arccos" or self.products is None:
            return MEASURES[self.measure](updates[leaves])
        known, n = self.products(), len(updates)
        is_array = isinstance(known, np.ndarray) and known.dtype.kind == "f"
        if not is_array or known.shape != (n, n):
            raise self._products_error(known)
        return angles(known[np.ix_(leaves, leaves)])

    def _kind(self, n: int) -> str:
        """Return a kind that suits n clients; raise if the tree cannot be built."""
        has_points, kind = self.measure != "l1" and self.linkage == "ward", str(self.tree)
        if kind == "auto":
            if n <= AUTO_EXACT or not has_points:
                kind = "exact"
            else:
                kind = "vector" if n <= AUTO_VECTOR and find_spec("fastcluster") else "bisecting"
        log.info("%s: %s tree of %d clients", self.owner, kind, n)
        if kind != "exact" and not has_points:
            raise DesignError(
                f"{self.owner}: a {kind} tree needs measure arccos or l2 and linkage ward; got "
                f"{self.measure} and {self.linkage}. Use tree='exact'."
            )
        if kind == "exact" and n > LARGEST_EXACT:
            others = "" if has_points else ", measure arccos or l2, linkage ward"
            raise DesignError(
                f"{self.owner}: an exact tree compares all pairs of at most {LARGEST_EXACT} "
                f"clients; got {n}, and {4e-9 * n * n:.0f} GB of distances. Use tree='bisecting'"
                f"{others}."
            )
        return kind

    def _products_error(self, found: object) -> DesignError:
        return DesignError(
            f"{self.owner}: products must be a function that returns the inner products of all "
            f"updates, shape (n_clients, n_clients); got {brief(found)}. Leave it out, or pass "
            f"memory.products."
        )


def check_tree(owner: str, **options: Unpack[TreeOptions]) -> None:
    """Validate the options of a tree."""
    _Builder(owner, **options)


def client_tree(
    owner: str,
    updates: NDArray[np.floating] | None,
    masses: Integers,
    capacity: int,
    *,
    rng: np.random.Generator,
    **options: Unpack[TreeOptions],
) -> tuple[Integers, GroupTree]:
    """Return the clients with positive mass, and the tree over them, cut by capacity.

    A design passes either validated ``updates`` and a kind of tree, or a tree and no updates.
    """
    builder = _Builder(owner, **options)
    tree = builder.tree
    if (updates is None) == isinstance(tree, str):
        raise DesignError(
            f"{owner}: needs either updates or a tree over all clients; got "
            f"{'neither' if updates is None else 'both'}. Pass the clients' last updates."
        )
    if updates is None or not isinstance(tree, str):
        leaves = np.flatnonzero(masses)
        cut = _cut_given(owner, tree, masses, capacity)
        return leaves, GroupTree(cut.groups[leaves], cut.merges)
    # Random order: ties in the tree must not depend on how clients are numbered.
    leaves = rng.permutation(np.flatnonzero(masses))
    return leaves, builder.built(updates, masses, capacity, leaves, rng)


def similarity_tree(
    owner: str,
    updates: NDArray[np.floating],
    masses: Integers,
    capacity: int,
    *,
    leaves: Integers | None = None,
    kind: TreeKind = "auto",
    measure: MeasureName = "arccos",
    linkage: Linkage = "ward",
    products: Products | None = None,
    rng: np.random.Generator,
) -> GroupTree:
    """Build the similarity tree of these updates, cut by capacity.

    Parameters
    ----------
    owner
        The caller's name, for messages.
    updates
        Shape (n, dimension).
    masses
        At least 1 and at most ``capacity`` each, shape (n,).
    leaves
        The rows to build the tree of, in this order; all by default.
    kind, measure, linkage
        ``"vector"`` and ``"bisecting"`` work with the measures ``"arccos"`` and ``"l2"`` and
        Ward's linkage only.
    products
        A function that returns the inner products of all updates; used by an exact tree of angles.
    """
    builder = _Builder(owner, kind, measure, linkage, products)
    updates = checked_updates(owner, updates)
    masses = checked_numbers(owner, "masses", masses, len(updates), whole=True)
    leaves = np.arange(len(updates)) if leaves is None else _checked_leaves(owner, leaves, updates)
    return builder.built(updates, masses, capacity, leaves, rng)


def merge_tree(distances: NDArray[np.float64], linkage: Linkage) -> MergeTree:
    """Build the similarity tree of n clients from their condensed distances."""
    from scipy.cluster.hierarchy import linkage as scipy_linkage

    checked_choice("merge_tree", "linkage", linkage, LINKAGES)
    distances = checked_numbers("merge_tree", "distances", distances, "n * (n - 1) / 2")
    n = (1 + math.isqrt(1 + 8 * len(distances))) // 2
    if 2 * len(distances) != n * (n - 1) or not np.isfinite(distances).all():
        raise DesignError(
            f"merge_tree: needs a finite distance for each pair of clients; got {len(distances)}. "
            f"Pass for example l2(updates)."
        )
    if distances.size == 0:
        return MergeTree(np.empty((0, 2), dtype=np.int64), np.empty(0))
    # Scale, so that no square overflows or underflows. This does not change the merges.
    unit = distances.max() or 1.0
    merges = scipy_linkage(distances / unit, linkage)
    return MergeTree(merges[:, :2].astype(np.int64), merges[:, 2] * unit)


def cut_tree(tree: MergeTree, masses: Integers, capacity: int) -> GroupTree:
    """Cut the tree into its maximal subtrees whose leaves' masses sum to at most ``capacity``.

    No single mass exceeds the capacity.

    Examples
    --------
    >>> tree = MergeTree(np.array([[0, 1], [3, 2]]), heights=np.array([1.0, 2.0]))
    >>> cut = cut_tree(tree, masses=np.array([2, 3, 4]), capacity=5)
    >>> cut.groups.tolist(), cut.merges.tolist()
    ([1, 1, 0], [[1, 0]])
    """
    checked_kind("cut_tree", "tree", tree, MergeTree, way_out="Use merge_tree.")
    masses = _checked_masses("cut_tree", masses, "n_leaves", capacity)
    n = len(masses)
    mass = masses.tolist()
    pairs = _checked_merges("cut_tree", tree.merges, n).tolist()
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


def bisected(
    points: NDArray[np.float32], masses: Integers, capacity: int, rng: np.random.Generator
) -> GroupTree:
    """Build the tree of :func:`~fedcohort.similarity.grouping.bisected_groups`."""
    points = checked_updates("bisected", points).astype(np.float32, copy=False)
    masses = _checked_masses("bisected", masses, len(points), capacity)
    return GroupTree(*bisected_groups(points, masses, capacity, checked_rng("bisected", rng)))


def _checked_masses(owner: str, masses: Integers, n: int | str, capacity: int) -> Integers:
    """Validate one mass per leaf, from 0 to the capacity: a larger one fits into no group."""
    capacity = checked_whole(owner, "capacity", capacity, least=1)
    found = checked_numbers(owner, "masses", masses, n, whole=True)
    if len(found) and not 0 <= found.min() <= found.max() <= capacity:
        raise DesignError(
            f"{owner}: masses must be 0 to the capacity, {capacity}; got {found.min()} to "
            f"{found.max()}. Raise the capacity."
        )
    return found


def _checked_leaves(owner: str, leaves: Integers, updates: NDArray[np.floating]) -> Integers:
    """Validate positions of updates."""
    found = checked_numbers(owner, "leaves", leaves, "n_leaves", whole=True).astype(np.int64)
    if len(found) and not 0 <= found.min() <= found.max() < len(updates):
        raise DesignError(
            f"{owner}: leaves must be positions of the {len(updates)} updates; got {found.min()} "
            f"to {found.max()}. Count from 0."
        )
    return found


def _vector_tree(owner: str, points: NDArray[np.float32]) -> MergeTree:
    """Build Ward's tree directly from the points, in O(n d) memory."""
    if len(points) < 2:
        return merge_tree(np.empty(0), "ward")
    fastcluster = import_extra("fastcluster", extra="scale", owner=owner)
    merges = fastcluster.linkage_vector(points, method="ward")
    return MergeTree(merges[:, :2].astype(np.int64), merges[:, 2])


def _cut_given(owner: str, tree: Tree, masses: Integers, capacity: int) -> GroupTree:
    """Cut a tree passed by the user; raise if it does not cover all clients."""
    assert not isinstance(tree, str)  # for mypy: check_tree
    n = len(masses)
    if isinstance(tree, MergeTree):
        merges = _checked_merges(owner, tree.merges, n)
        return cut_tree(MergeTree(merges, tree.heights), masses, capacity)
    # The merges determine the number of groups. Some groups may be empty.
    n_groups = len(tree.merges) + 1
    merges = _checked_merges(owner, tree.merges, n_groups)
    groups = as_array(tree.groups)
    fits = groups.shape == (n,) and _is_whole(groups)
    if not fits or not ((groups >= 0) & (groups < n_groups)).all():
        raise DesignError(
            f"{owner}: a tree of {n_groups} groups needs a number from 0 to {n_groups - 1} for "
            f"each of {n} clients; got others, {groups.dtype} of shape {groups.shape}. Number the "
            f"groups of all clients, and join all groups."
        )
    held = np.zeros(n_groups, dtype=np.int64)
    np.add.at(held, groups.astype(np.int64), masses)
    if held.max() > capacity:
        raise DesignError(
            f"{owner}: no group of the tree may have more than {capacity} units; group "
            f"{int(held.argmax())} has {held.max()}. Split it."
        )
    return GroupTree(groups.astype(np.int64), merges)


def _checked_merges(owner: str, merges: ArrayLike, n_leaves: int) -> Integers:
    """Validate merges: children first, and all leaves joined."""
    n_merges = max(n_leaves - 1, 0)
    pairs = as_array(merges)
    if pairs.shape == (n_merges, 2) and (
        _is_whole(pairs)
        and np.array_equal(np.sort(pairs, axis=None), np.arange(2 * n_merges))
        and (pairs.max(axis=1) < n_leaves + np.arange(n_merges)).all()
    ):
        return pairs.astype(np.int64)
    raise DesignError(
        f"{owner}: a tree of {n_leaves} leaves needs integer merges of shape {(n_merges, 2)}, "
        f"children first, each node joined once; got other ones, {pairs.dtype} of shape "
        f"{pairs.shape}. Use merge_tree."
    )


def _is_whole(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iu" or array.size == 0
