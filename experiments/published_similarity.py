"""A design of one's own: Algorithm 2 with the tree that the paper's published code builds.

Experiment files name it ``published_similarity.py:PublishedSimilarity``. That code hands scipy's
``linkage`` the square matrix of distances, and ``linkage`` takes its rows for points. L2 distances
are squared in that matrix, and a zero update is at angle 0 to every other. O(n^3).
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import pdist, squareform

from fedcohort import Plan, Population
from fedcohort.designs import Knowledge, RowDesign, known_updates
from fedcohort.designs.similarity_clustered import TreeRecipe
from fedcohort.errors import DesignError
from fedcohort.plan import fill_groups, whole_rows
from fedcohort.similarity import MEASURES, cut_tree, merge_tree


@final
class PublishedSimilarityDesign(RowDesign):
    """Cut the published code's tree by capacity, and fill the distributions."""

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        updates: ArrayLike,
        *,
        measure: str = "arccos",
        linkage: str = "ward",
        rng: np.random.Generator,
    ) -> None:
        super().__init__(population, cohort_size)
        total = population.total
        alone, units = whole_rows(self.cohort_size * population.sizes, total)
        self.leaves = rng.permutation(np.flatnonzero(units))
        left = units[self.leaves]
        distances = between_rows(np.asarray(updates)[self.leaves], measure)
        self.tree = cut_tree(merge_tree(distances, linkage), left, total)
        filled = fill_groups(self.leaves, left, self.tree.groups, capacity=total, rng=rng)
        self.plan = Plan.of_entries(filled.below(alone), population)


def between_rows(updates: NDArray[np.floating], measure: str) -> NDArray[np.float64]:
    """Return the Euclidean distances between the rows of the published code's matrix."""
    distances = MEASURES[measure](updates)
    # In this unit of length no square overflows or vanishes.
    matrix = squareform(distances / max(distances.max(initial=0.0), np.finfo(float).tiny))
    if measure == "l2":
        matrix **= 2
    if measure == "arccos":
        unseen = ~updates.any(axis=1)
        matrix[unseen] = 0
        matrix[:, unseen] = 0
    return pdist(matrix)


@final
@dataclass(frozen=True, repr=False)
class PublishedSimilarity(TreeRecipe):
    """Recipe of :class:`PublishedSimilarityDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "published-similarity"

    def check(self) -> None:
        """Validate the choices; the tree is exact."""
        super().check()
        if self.tree not in ("auto", "exact"):
            raise DesignError(
                f"PublishedSimilarity: tree must be exact; got {self.tree!r}. Leave it out."
            )

    def design(self, population: Population, known: Knowledge) -> PublishedSimilarityDesign:
        """Make the design from what is known."""
        return PublishedSimilarityDesign(
            population,
            self.cohort_size,
            known_updates(population, known),
            measure=self.measure,
            linkage=self.linkage,
            rng=known.rng,
        )
