"""The tree that a design works on: built from updates, or given."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.arguments import checked_choice
from fedcohort.errors import DesignError
from fedcohort.similarity.measures import MeasureName
from fedcohort.similarity.tree_kinds import TREE_KINDS, TreeKind, similarity_tree
from fedcohort.similarity.trees import GroupTree, Linkage, MergeTree, cut_tree
from fedcohort.similarity.updates import checked_updates

#: A kind of tree to build from updates, or a tree whose leaves are all clients.
Tree = TreeKind | MergeTree | GroupTree


def chosen_tree(
    owner: str,
    masses: NDArray[np.int64],
    capacity: int,
    updates: ArrayLike | None,
    tree: Tree,
    *,
    measure: MeasureName,
    linkage: Linkage,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], GroupTree]:
    """Return the clients that have a mass, and the tree over them, cut by capacity."""
    if (updates is None) == isinstance(tree, str):
        raise DesignError(
            f"{owner}: needs either updates or a tree that is there; got "
            f"{'neither' if updates is None else 'both'}. Pass the clients' last updates."
        )
    if isinstance(tree, str):
        checked_choice(owner, "tree", tree, TREE_KINDS)
        deltas = checked_updates(owner, updates, len(masses))  # type: ignore[arg-type]
        clients = rng.permutation(np.flatnonzero(masses))
        return clients, similarity_tree(
            owner,
            deltas[clients],
            masses[clients],
            capacity,
            kind=tree,
            measure=measure,
            linkage=linkage,
            rng=rng,
        )
    clients = np.flatnonzero(masses)
    cut = _checked_cut(owner, tree, masses, capacity)
    return clients, GroupTree(cut.groups[clients], cut.merges)


def _checked_cut(
    owner: str, tree: MergeTree | GroupTree, masses: NDArray[np.int64], capacity: int
) -> GroupTree:
    """Cut a given tree; refuse what is no tree over all clients."""
    n = len(masses)
    if isinstance(tree, MergeTree):
        _check_merges(owner, tree.merges, n)
        return cut_tree(tree, masses, capacity)
    groups = tree.groups
    if groups.shape != (n,) or groups.dtype.kind not in "iu" or groups.min() < 0:
        raise DesignError(
            f"{owner}: the tree needs a group, numbered from 0, for each of {n} clients; got "
            f"{groups.dtype} of shape {groups.shape}. Number the groups of all clients."
        )
    held = np.zeros(int(groups.max()) + 1, dtype=np.int64)
    np.add.at(held, groups, masses)
    if held.max() > capacity:
        raise DesignError(
            f"{owner}: no group of the tree may have more than {capacity} units; group "
            f"{int(held.argmax())} has {held.max()}. Split it."
        )
    _check_merges(owner, tree.merges, len(held))
    return tree


def _check_merges(owner: str, merges: NDArray[np.int64], n_leaves: int) -> None:
    """Let merges through that join all leaves, children first."""
    wanted = (max(n_leaves - 1, 0), 2)
    if merges.shape == wanted and (
        np.array_equal(np.sort(merges, axis=None), np.arange(2 * wanted[0]))
        and (merges.max(axis=1) < n_leaves + np.arange(wanted[0])).all()
    ):
        return
    raise DesignError(
        f"{owner}: a tree of {n_leaves} leaves needs merges of shape {wanted}, children first, "
        f"each node joined once; got other ones of shape {merges.shape}. Use merge_tree."
    )
