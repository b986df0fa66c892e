"""What recipes of designs on the similarity tree have in common."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

import numpy as np

from fedcohort.designs.recipe import Knowledge, Recipe, known_products
from fedcohort.designs.tree_choice import Products
from fedcohort.similarity.measures import MeasureName
from fedcohort.similarity.tree_kinds import TreeKind
from fedcohort.similarity.trees import Linkage


class TreeOptions(TypedDict):
    """Keywords of a design that builds a similarity tree."""

    tree: TreeKind
    measure: MeasureName
    linkage: Linkage
    products: Products | None
    rng: np.random.Generator


@dataclass(frozen=True)
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

    def _tree_options(self, known: Knowledge) -> TreeOptions:
        return {
            "tree": self.tree,
            "measure": self.measure,
            "linkage": self.linkage,
            "products": known_products(known),
            "rng": known.rng,
        }
