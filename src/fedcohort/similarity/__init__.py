"""Similarity of clients: measures on their updates, and trees cut by capacity."""

from fedcohort._arguments import suggest_names as _suggest_names
from fedcohort.similarity.measures import MEASURES, arccos, l1, l2, unit_vectors
from fedcohort.similarity.trees import (
    LINKAGES,
    TREE_KINDS,
    GroupTree,
    MergeTree,
    bisected,
    cut_tree,
    merge_tree,
    similarity_tree,
)

__all__ = [
    "LINKAGES",
    "MEASURES",
    "TREE_KINDS",
    "GroupTree",
    "MergeTree",
    "arccos",
    "bisected",
    "cut_tree",
    "l1",
    "l2",
    "merge_tree",
    "similarity_tree",
    "unit_vectors",
]

_suggest_names(__name__, __all__)
