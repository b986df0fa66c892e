"""Clustered sampling by similarity of the clients' updates: Algorithm 2 of the paper."""

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack, final

from numpy.typing import ArrayLike

from fedcohort._arguments import Rng, checked_rng
from fedcohort._fields import choice
from fedcohort.designs.base import RowDesign
from fedcohort.designs.recipe import Knowledge, Recipe, known_updates
from fedcohort.plan import Plan, fill_groups, whole_rows
from fedcohort.population import Population
from fedcohort.similarity.measures import MEASURES, MeasureName, checked_updates
from fedcohort.similarity.trees import (
    LINKAGES,
    TREE_KINDS,
    Linkage,
    TreeKind,
    TreeOptions,
    client_tree,
    tree_reads,
)


@final
class SimilarityClusteredDesign(RowDesign):
    r"""Cluster the clients by their updates, cut the tree by capacity, and fill the distributions.

    1. A client with :math:`m n_i \ge M` gets :math:`\lfloor m n_i / M \rfloor` distributions
       alone. Its remaining :math:`u_i = m n_i \bmod M` units take part in the next steps.
    2. The similarity tree of the clients with :math:`u_i > 0` is cut into its maximal subtrees of
       at most M units.
    3. The largest groups open the remaining distributions. The clients of the other groups fill
       the room that is left, larger groups first.

    Clients that never sent an update count as zeros, and so form a group of their own. Clients,
    groups of equal size, and clients that fill room are ordered at random. The law therefore does
    not depend on how clients are numbered.

    Parameters
    ----------
    updates
        The clients' last updates (client model minus the global model it started from), zero
        before the first; shape (n_clients, dimension). None if ``tree`` is a tree.
    tree
        The kind of tree: ``"exact"`` from all pairs, ``"vector"`` in O(n d) memory (extra
        ``scale``), ``"bisecting"`` for up to a million clients, ``"auto"`` by the number of
        clients. Or a tree over all clients.
    measure
        ``"arccos"`` (the angle), ``"l2"`` or ``"l1"``.
    linkage
        ``"ward"``, or another of :data:`fedcohort.similarity.LINKAGES`.
    products
        A function that returns all inner products of the updates, shape (n_clients, n_clients),
        such as :meth:`fedcohort.UpdateMemory.products`.

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
    Y. Fraboni et al., "Clustered sampling", ICML 2021, Algorithm 2, with line 12 corrected
    (``u_i``, not ``b_i``) and the last paragraph of Section 5 for large clients.
    """

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        updates: ArrayLike | None = None,
        *,
        rng: Rng = None,
        **options: Unpack[TreeOptions],
    ) -> None:
        super().__init__(population, cohort_size)
        rng, n, total = checked_rng(self.name, rng), population.n_clients, population.total
        deltas = None if updates is None else checked_updates(self.name, updates, n)
        # Step 1: m n_i units per client; large clients fill distributions alone.
        alone, units = whole_rows(self.cohort_size * population.sizes, total)
        # Step 2: the tree of the clients that have units left, cut into groups of at most M.
        self.reads = tree_reads(updates, options)
        self.leaves, self.tree = client_tree(self.name, deltas, units, total, rng=rng, **options)
        # Step 3: the largest groups open the other distributions, the other groups fill them.
        filled = fill_groups(
            self.leaves, units[self.leaves], self.tree.groups, capacity=total, rng=rng
        )
        self.plan = Plan.of_entries(filled.below(alone), population)


@dataclass(frozen=True, repr=False)
class TreeRecipe(Recipe):
    """The base of recipes whose design uses the similarity tree of the clients' last updates.

    Without a memory every update is zero. The settings are those of
    :class:`SimilarityClusteredDesign`.
    """

    learns: ClassVar[bool] = True

    measure: MeasureName = choice("arccos", MEASURES)
    linkage: Linkage = choice("ward", LINKAGES)
    tree: TreeKind = choice("auto", TREE_KINDS)

    def arguments(self, population: Population, known: Knowledge) -> dict[str, Any]:
        """Return the arguments that all tree designs share."""
        return {
            "population": population,
            "cohort_size": self.cohort_size,
            "updates": known_updates(population, known),
            "tree": self.tree,
            "measure": self.measure,
            "linkage": self.linkage,
            "products": None if known.memory is None else known.memory.products,
            "rng": known.rng,
        }


@final
@dataclass(frozen=True, repr=False)
class SimilarityClustered(TreeRecipe):
    """Recipe of :class:`SimilarityClusteredDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "similarity"

    def design(self, population: Population, known: Knowledge) -> SimilarityClusteredDesign:
        return SimilarityClusteredDesign(**self.arguments(population, known))
