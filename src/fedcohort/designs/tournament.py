"""Tournament sampling: pivotal duels on the similarity tree; beyond the paper."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Rng, group_numbers
from fedcohort.designs.base import Design
from fedcohort.designs.duels import Duels
from fedcohort.designs.recipe import Knowledge, known_updates
from fedcohort.designs.tree_choice import (
    Products,
    Tree,
    TreeRecipe,
    check_options,
    check_tree,
    chosen_tree,
)
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.similarity.group_order import tree_of_groups
from fedcohort.similarity.measures import MeasureName, checked_updates
from fedcohort.similarity.trees import GroupTree, Linkage


@final
class TournamentDesign(Design):
    r"""Let clients duel along the similarity tree until m are selected.

    1. A client with :math:`m n_i \ge M` is drawn :math:`\lfloor m n_i / M \rfloor` times for
       certain; its remaining :math:`u_i = m n_i \bmod M` units take part in the rest.
    2. Every group of at most M units sends one *live* client, drawn by its units.
    3. At each merge of the tree two live clients with a and b units duel. With a + b < M one goes
       on with all units; with a + b = M one is selected; with a + b > M one is selected and the
       other goes on with a + b - M units. Chances are such that :math:`E[c_i] = m p_i`.

    The count of every client *and of every subtree* is the floor or the ceiling of its
    expectation: each cluster, at every level, gets its share. With :math:`q_v` the law of node
    v's live client, :math:`\phi_v` its units over M, and a, b the children of a merge,

    .. math::

        V = \tfrac1{m^2} \sum_{a,b} v_{ab}\, E\|\Delta_{live(a)} - \Delta_{live(b)}\|^2, \qquad
        v_{ab} = \begin{cases} \phi_a \phi_b & \phi_a + \phi_b \le 1 \\
            (1 - \phi_a)(1 - \phi_b) & \phi_a + \phi_b > 1, \end{cases}

    which is never more than multinomial sampling's V, whatever the updates and the tree.

    Parameters
    ----------
    population, cohort_size
        Whom to draw from, and how many draws.
    updates
        The clients' last updates, zero before the first; shape (n_clients, dimension). None with
        ``groups`` or with a ``tree`` that is there.
    tree
        Which tree to build: ``"exact"`` from all pairs, ``"vector"`` in O(n d) memory (extra
        ``scale``), ``"bisecting"`` for a million clients, ``"auto"`` by their number; or a tree
        whose leaves are the clients.
    groups
        Instead of updates: the group of every client, n_clients labels of any kind.
    measure, linkage
        As in :class:`SimilarityClusteredDesign`.
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
    >>> population, rng = Population([1, 1, 1, 1]), np.random.default_rng(0)
    >>> updates = [[1, 0], [0, 1], [2, 0], [0, 3]]
    >>> design = TournamentDesign(population, 2, updates, rng=rng)
    >>> (design.draw_many(3, rng) @ np.array([1, 0, 1, 0])).tolist()
    [1, 1, 1]

    References
    ----------
    J.-C. Deville, Y. Tillé, "Unequal probability sampling without replacement through a splitting
    method", 1998 (pivotal sampling). E. Cohen, G. Cormode, N. Duffield, "Structure-aware
    sampling", 2011 (along a hierarchy).
    """

    unbiased = True

    tree: GroupTree
    leaves: NDArray[np.int64]

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        updates: ArrayLike | None = None,
        *,
        tree: Tree = "auto",
        groups: Sequence[Hashable] | None = None,
        measure: MeasureName = "arccos",
        linkage: Linkage = "ward",
        products: Products | None = None,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = check_options(self.name, measure, linkage, rng)
        check_tree(self.name, tree)
        self._certain, units = np.divmod(self.cohort_size * population.sizes, population.total)
        if groups is not None:
            if updates is not None or not isinstance(tree, str):
                raise DesignError(
                    f"{self.name}: needs one of updates, tree and groups; got groups and another. "
                    f"Drop one."
                )
            labels = group_numbers(self.name, groups, population.n_clients)
            self.leaves = rng.permutation(np.flatnonzero(units))
            self.tree = tree_of_groups(
                labels[self.leaves], units[self.leaves], population.total, rng
            )
        else:
            deltas = None
            if updates is not None:
                deltas = checked_updates(self.name, updates, population.n_clients)
            self.leaves, self.tree = chosen_tree(
                self.name,
                units,
                population.total,
                deltas,
                tree,
                measure=measure,
                linkage=linkage,
                products=products,
                rng=rng,
            )
        self._units = units
        self._duels = Duels(self.leaves, units[self.leaves], self.tree, population.total)

    def weight_variance(self) -> NDArray[np.float64]:
        """Return Var[w], shape (n_clients,): the smallest that any integer counts have."""
        total = self.population.total
        return self._units / total * ((total - self._units) / total) / self.cohort_size**2

    def covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], shape (n_clients, n_clients); no two clients are drawn for each other."""
        n = self.population.n_clients
        covariance = np.zeros((n, n))
        own = self._duels.clients
        covariance[np.ix_(own, own)] = self._duels.covariance() / self.cohort_size**2
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return the chance of each client to be in the cohort, shape (n_clients,)."""
        return np.where(self._certain > 0, 1.0, self._units / self.population.total)

    def max_count(self) -> NDArray[np.int64]:
        """Return how often each client can be drawn at most: its expectation, rounded up."""
        return self._certain + (self._units > 0)

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        """Draw the clients of ``rounds`` cohorts."""
        certain = np.repeat(np.arange(self.population.n_clients), self._certain)
        always = np.broadcast_to(certain, (rounds, len(certain)))
        return np.concatenate([always, self._duels.draw(rng, rounds)], axis=1)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        """Return the aggregate's mean squared distance from its own mean."""
        return self._duels.spread(updates) / self.cohort_size**2


@final
@dataclass(frozen=True, repr=False)
class Tournament(TreeRecipe):
    """Recipe of :class:`TournamentDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "tournament"

    def design(self, population: Population, known: Knowledge) -> TournamentDesign:
        """Make the design from what is known."""
        return TournamentDesign(
            population,
            self.cohort_size,
            known_updates(population, known),
            **self._tree_options(known),
        )
