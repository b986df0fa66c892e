"""The tree that a design works on: built from updates, or given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Rng, brief, checked_choice, checked_rng
from fedcohort.designs.recipe import Knowledge, Recipe, known_products
from fedcohort.errors import DesignError
from fedcohort.similarity.measures import MEASURES, MeasureName, angles
from fedcohort.similarity.tree_kinds import TREE_KINDS, TreeKind, built_tree, chosen_kind
from fedcohort.similarity.trees import LINKAGES, GroupTree, Linkage, MergeTree, cut_tree, merge_tree

#: A kind of tree to build from updates, or a tree whose leaves are all clients.
Tree = TreeKind | MergeTree | GroupTree
#: Gives all inner products of the updates.
Products = Callable[[], NDArray[np.float64]]


def chosen_tree(
    owner: str,
    masses: NDArray[np.int64],
    capacity: int,
    updates: NDArray[np.floating] | None,
    tree: Tree,
    *,
    measure: MeasureName,
    linkage: Linkage,
    rng: np.random.Generator,
    products: Products | None = None,
) -> tuple[NDArray[np.int64], GroupTree]:
    """Return the clients that have a mass, and the tree over them, cut by capacity.

    ``updates`` are checked before; ``products`` gives all their inner products, where something
    keeps them.
    """
    check_tree(owner, tree)
    if products is not None and not callable(products):
        raise DesignError(
            f"{owner}: products must be a function that returns all inner products of the updates; "
            f"got {brief(products)}. Leave it out, or pass memory.products."
        )
    if (updates is None) == isinstance(tree, str):
        raise DesignError(
            f"{owner}: needs either updates or a tree that is there; got "
            f"{'neither' if updates is None else 'both'}. Pass the clients' last updates."
        )
    if isinstance(tree, str) and updates is not None:
        clients = rng.permutation(np.flatnonzero(masses))
        kind = chosen_kind(owner, tree, len(clients), measure, linkage)
        if kind == "exact" and measure == "arccos" and products is not None:
            known = _checked_products(owner, products(), len(masses))
            distances = angles(known[np.ix_(clients, clients)])
            return clients, cut_tree(merge_tree(distances, linkage), masses[clients], capacity)
        own = (updates[clients], masses[clients])
        return clients, built_tree(owner, *own, capacity, kind, measure, linkage, rng)
    assert not isinstance(tree, str)  # for mypy: checked above
    clients = np.flatnonzero(masses)
    cut = _checked_cut(owner, tree, masses, capacity)
    return clients, GroupTree(cut.groups[clients], cut.merges)


def _checked_products(owner: str, found: object, n: int) -> NDArray[np.float64]:
    """Validate the inner products of all n clients' updates."""
    if not isinstance(found, np.ndarray) or found.shape != (n, n) or found.dtype.kind != "f":
        raise DesignError(
            f"{owner}: products must return the inner products of all updates, shape ({n}, {n}); "
            f"got {brief(found)}. Leave it out, or pass memory.products."
        )
    return found


def check_options(
    owner: str, measure: MeasureName, linkage: Linkage, rng: Rng
) -> np.random.Generator:
    """Validate the options that designs on a tree share, and return the generator."""
    checked_choice(owner, "measure", measure, MEASURES)
    checked_choice(owner, "linkage", linkage, LINKAGES)
    return checked_rng(owner, rng)


def check_tree(owner: str, tree: Tree) -> None:
    """Validate a tree: the name of a kind, or a tree itself."""
    if isinstance(tree, str):
        checked_choice(owner, "tree", tree, TREE_KINDS)
    elif not isinstance(tree, MergeTree | GroupTree):
        raise DesignError(
            f"{owner}: tree must be one of {', '.join(TREE_KINDS)}, or a MergeTree or GroupTree "
            f"over all clients; got {type(tree).__name__}. Leave it out for 'auto'."
        )


def _checked_cut(
    owner: str, tree: MergeTree | GroupTree, masses: NDArray[np.int64], capacity: int
) -> GroupTree:
    """Cut a given tree; refuse what is no tree over all clients."""
    n = len(masses)
    if isinstance(tree, MergeTree):
        return cut_tree(
            MergeTree(_checked_merges(owner, tree.merges, n), tree.heights), masses, capacity
        )
    # The merges say how many groups there are: the last ones may be empty.
    n_groups = len(tree.merges) + 1
    merges = _checked_merges(owner, tree.merges, n_groups)
    groups = _array(tree.groups)
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


def _checked_merges(owner: str, merges: ArrayLike, n_leaves: int) -> NDArray[np.int64]:
    """Validate merges: they join all leaves, children first."""
    wanted = (max(n_leaves - 1, 0), 2)
    pairs = _array(merges)
    if pairs.shape == wanted and (
        _is_whole(pairs)
        and np.array_equal(np.sort(pairs, axis=None), np.arange(2 * wanted[0]))
        and (pairs.max(axis=1) < n_leaves + np.arange(wanted[0])).all()
    ):
        return pairs.astype(np.int64)
    raise DesignError(
        f"{owner}: a tree of {n_leaves} leaves needs integer merges of shape {wanted}, children "
        f"first, each node joined once; got other ones, {pairs.dtype} of shape {pairs.shape}. "
        f"Use merge_tree."
    )


def _array(values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        return np.empty(0, dtype=object)


def _is_whole(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iu" or array.size == 0


class TreeOptions(TypedDict):
    """Keywords of a design that builds a similarity tree."""

    tree: TreeKind
    measure: MeasureName
    linkage: Linkage
    products: Products | None
    rng: np.random.Generator


@dataclass(frozen=True, repr=False)
class TreeRecipe(Recipe):
    """A recipe whose design works on the tree of the clients' last updates.

    Without a memory every update is zero.

    Attributes
    ----------
    measure
        How far two updates are apart: ``"arccos"`` (the angle), ``"l2"`` or ``"l1"``.
    linkage
        ``"ward"``, or another of :data:`fedcohort.similarity.LINKAGES`.
    tree
        ``"exact"`` from all pairs, ``"vector"`` in O(n d) memory (extra ``scale``),
        ``"bisecting"`` for a million clients, ``"auto"`` by their number.
    """

    learns: ClassVar[bool] = True

    measure: MeasureName = "arccos"
    linkage: Linkage = "ward"
    tree: TreeKind = "auto"

    def check(self) -> None:
        """Validate the choices."""
        owner = type(self).__name__
        checked_choice(owner, "measure", self.measure, MEASURES)
        checked_choice(owner, "linkage", self.linkage, LINKAGES)
        checked_choice(owner, "tree", self.tree, TREE_KINDS)

    def _tree_options(self, known: Knowledge) -> TreeOptions:
        return {
            "tree": self.tree,
            "measure": self.measure,
            "linkage": self.linkage,
            "products": known_products(known),
            "rng": known.rng,
        }
