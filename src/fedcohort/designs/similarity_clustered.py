"""Clustered sampling by similarity of the clients' updates: Algorithm 2 of the paper."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Rng, checked_choice
from fedcohort.designs.base import RowDesign
from fedcohort.designs.recipe import Knowledge, known_updates
from fedcohort.designs.tree_choice import Products, Tree, TreeRecipe, check_options, chosen_tree
from fedcohort.errors import DesignError
from fedcohort.plan import Plan, fill_groups, whole_rows
from fedcohort.population import Population
from fedcohort.similarity.measures import MEASURES, MeasureName, checked_updates
from fedcohort.similarity.trees import GroupTree, Linkage, cut_tree, merge_tree

Reading = Literal["distances", "rows-as-points"]
READINGS: tuple[Reading, ...] = get_args(Reading)


@final
class SimilarityClusteredDesign(RowDesign):
    r"""Cluster the clients by their updates, cut the tree by capacity, and fill the distributions.

    1. A client with :math:`m n_i \ge M` gets :math:`\lfloor m n_i / M \rfloor` distributions
       alone; its remaining :math:`u_i = m n_i \bmod M` units take part in the rest.
    2. The similarity tree of the clients with :math:`u_i > 0` is cut into its maximal subtrees of
       at most M units.
    3. The largest groups open the remaining distributions; the clients of the others fill the
       room that is left, larger groups first.

    Clients that never sent an update are all zero: they form a group of their own. Clients are
    permuted before the tree is built, equal groups are ordered at random, and so are the clients
    of a group that is spread: the law does not depend on how clients are numbered.

    Parameters
    ----------
    population, cohort_size
        Whom to draw from, and how many draws.
    updates
        The clients' last updates (client model minus the global model it started from), zero
        before the first; shape (n_clients, dimension). None with a ``tree`` that is there.
    tree
        Which tree to build: ``"exact"`` from all pairs, ``"vector"`` in O(n d) memory (extra
        ``scale``), ``"bisecting"`` for a million clients, ``"auto"`` by their number; or a tree
        whose leaves are the clients.
    measure
        ``"arccos"`` (the angle), ``"l2"`` or ``"l1"``.
    linkage
        ``"ward"``, or another of :data:`fedcohort.similarity.LINKAGES`.
    reading
        ``"distances"`` builds the tree from the pairwise distances, as the paper says;
        ``"rows-as-points"`` from the Euclidean distances between the rows of their matrix, which
        is what the published code computes (with squared L2 distances, and zero updates at angle
        0 to all others); O(n^3), with an exact tree.
    products
        Gives all inner products of the updates, shape (n_clients, n_clients), where something
        keeps them (:meth:`fedcohort.UpdateMemory.products`).
    rng
        Breaks ties.

    Attributes
    ----------
    tree
        The similarity tree and its cut.
    leaves
        The client of each of its leaves.

    Examples
    --------
    >>> population = Population([1, 1, 1, 1])
    >>> updates = [[1, 0], [0, 1], [2, 0], [0, 3]]
    >>> design = SimilarityClusteredDesign(population, 2, updates, rng=0)
    >>> sorted(design.plan.units.toarray().tolist())
    [[0, 2, 0, 2], [2, 0, 2, 0]]

    References
    ----------
    Y. Fraboni et al., "Clustered sampling", ICML 2021, Algorithm 2, with line 12 put right
    (``u_i``, not ``b_i``) and the last paragraph of Section 5 for large clients.
    """

    tree: GroupTree
    leaves: NDArray[np.int64]

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        updates: ArrayLike | None = None,
        *,
        tree: Tree = "auto",
        measure: MeasureName = "arccos",
        linkage: Linkage = "ward",
        reading: Reading = "distances",
        products: Products | None = None,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = check_options(self.name, measure, linkage, rng)
        checked_choice(self.name, "reading", reading, READINGS)
        total = population.total
        deltas = None
        if updates is not None:
            deltas = checked_updates(self.name, updates, population.n_clients)
        alone, rest = whole_rows(self.cohort_size * population.sizes, total)
        if reading == "distances":
            self.leaves, self.tree = chosen_tree(
                self.name,
                rest,
                total,
                deltas,
                tree,
                measure=measure,
                linkage=linkage,
                products=products,
                rng=rng,
            )
        elif deltas is None or tree not in ("auto", "exact"):
            raise DesignError(
                f"{self.name}: reading rows-as-points builds an exact tree from updates; got "
                f"{'no updates' if deltas is None else 'another tree'}. Pass updates and "
                f"tree='exact', or reading='distances'."
            )
        else:
            self.leaves = rng.permutation(np.flatnonzero(rest))
            distances = _between_rows(deltas[self.leaves], measure)
            self.tree = cut_tree(merge_tree(distances, linkage), rest[self.leaves], total)
        left = rest[self.leaves]
        filled = fill_groups(self.leaves, left, self.tree.groups, capacity=total, rng=rng)
        self.plan = Plan.of_entries(filled.below(alone), population)


def _between_rows(updates: NDArray[np.floating], measure: MeasureName) -> NDArray[np.float64]:
    """Return the Euclidean distances between the rows of the published code's matrix.

    In that matrix L2 distances are squared, and a zero update is at angle 0 to every other.
    """
    from scipy.spatial.distance import pdist, squareform

    distances = MEASURES[measure](updates)
    unseen = ~updates.any(axis=1)
    # In this unit of length no square overflows or vanishes.
    matrix = squareform(distances / max(distances.max(initial=0.0), np.finfo(float).tiny))
    if measure == "l2":
        matrix **= 2
    if measure == "arccos":
        matrix[unseen] = 0
        matrix[:, unseen] = 0
    return pdist(matrix)


@final
@dataclass(frozen=True, repr=False)
class SimilarityClustered(TreeRecipe):
    """Recipe of :class:`SimilarityClusteredDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "similarity"

    reading: Reading = "distances"

    def check(self) -> None:
        """Validate the choices."""
        super().check()
        checked_choice(type(self).__name__, "reading", self.reading, READINGS)

    def design(self, population: Population, known: Knowledge) -> SimilarityClusteredDesign:
        """Make the design from what is known."""
        return SimilarityClusteredDesign(
            population,
            self.cohort_size,
            known_updates(population, known),
            reading=self.reading,
            **self._tree_options(known),
        )
