"""How alike clients are: measures on their updates, trees, and the trees' capacity cut."""

from fedcohort.similarity.measures import MEASURES, arccos, l1, l2
from fedcohort.similarity.memory import UpdateMemory
from fedcohort.similarity.sketch import CountSketch
from fedcohort.similarity.trees import LINKAGES, MergeTree, capacity_cut, merge_tree

__all__ = [
    "LINKAGES",
    "MEASURES",
    "CountSketch",
    "MergeTree",
    "UpdateMemory",
    "arccos",
    "capacity_cut",
    "l1",
    "l2",
    "merge_tree",
]
