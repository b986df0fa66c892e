"""The tournament: pivotal sampling by duels of two clients along the similarity tree."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Unpack, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Rng, checked_rng, group_numbers
from fedcohort.designs.base import RoundedDesign
from fedcohort.designs.recipe import Knowledge
from fedcohort.designs.similarity_clustered import TreeRecipe
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.similarity.grouping import labelled_groups
from fedcohort.similarity.measures import BLOCK_ENTRIES, checked_updates
from fedcohort.similarity.trees import (
    GroupTree,
    TreeOptions,
    check_tree,
    client_tree,
    tree_reads,
)


@final
class Duels:
    """A tournament of clients with less than M units each, in integers.

    A duel is a merge where the live clients of two nodes meet, with a and b units. *Slots* number
    the places of live clients: the groups first, then the duels.

    Parameters
    ----------
    clients, units
        The clients that take part, and their units, from 1 to M - 1.
    tree
        A tree over these clients. No group has more than ``capacity`` units.
    capacity
        M.
    """

    def __init__(
        self,
        clients: NDArray[np.int64],
        units: NDArray[np.int64],
        tree: GroupTree,
        capacity: int,
    ) -> None:
        by_group = np.argsort(tree.groups, kind="stable")
        self.clients, self.capacity = clients[by_group], capacity
        self._units, groups = units[by_group], tree.groups[by_group]
        n_groups = len(tree.merges) + 1
        self._sizes = np.bincount(groups, minlength=n_groups)
        self._ends = np.cumsum(self._units)
        self._held = np.zeros(n_groups, dtype=np.int64)
        np.add.at(self._held, groups, self._units)
        #: Groups that are not empty. A tree passed by the user may have empty ones.
        self._some = np.flatnonzero(self._held)
        duels = _duels(self._held.tolist(), tree.merges.tolist(), capacity)
        self._levels = _levels(duels, n_groups)
        self._left, self._right, a, b = np.array(duels, dtype=np.int64).reshape(-1, 4).T
        self._is_over, self._selects = a + b > capacity, a + b >= capacity
        a, b = (np.where(self._is_over, capacity - units, units) for units in (a, b))
        self._highs, self._thresholds = a + b, np.where(self._is_over, b, a)
        #: Both slots of every duel, the chance that the left client stays live, and v.
        columns = (self._left, self._right, a / (a + b), a / capacity * (b / capacity))
        self._meetings = list(zip(*(column.tolist() for column in columns), strict=True))

    def draw(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        """Draw the selected clients of ``rounds`` rounds, shape (rounds, total units / M)."""
        highs = np.concatenate([self._held[self._some], self._highs])
        step = max(1, BLOCK_ENTRIES // max(1, len(highs)))
        blocks = [
            self._played(rng.integers(highs, size=(min(step, rounds - start), len(highs))).T)
            for start in range(0, rounds, step)
        ]
        n_selected = int(self._ends[-1]) // self.capacity if len(self._ends) else 0
        return np.concatenate([np.empty((0, n_selected), dtype=np.int64), *blocks])

    def _played(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Play rounds with these random numbers, shape (nonempty groups + duels, rounds)."""
        n_groups, rounds = len(self._held), numbers.shape[1]
        starts = (np.cumsum(self._held) - self._held)[self._some, None]
        live = np.empty((n_groups + len(self._left), rounds), dtype=np.int64)
        lottery = starts + numbers[: len(self._some)]
        live[self._some] = self.clients[np.searchsorted(self._ends, lottery, side="right")]
        wins = numbers[len(self._some) :] < self._thresholds[:, None]
        for duels in self._levels:
            left, right = live[self._left[duels]], live[self._right[duels]]
            stays = wins[duels] != self._is_over[duels, None]
            live[n_groups + duels] = np.where(stays, left, right)
        full = np.flatnonzero(self._held == self.capacity)
        ends = np.flatnonzero(self._selects)
        selected = np.where(wins[ends], live[self._left[ends]], live[self._right[ends]])
        return np.concatenate([live[full], selected]).T

    def covariance(self) -> NDArray[np.float64]:
        """Return the covariances of counts, in the order of ``clients``; 0 on the diagonal.

        Two clients that meet at the merge of nodes a and b have covariance - v q_a(i) q_b(j).
        """
        n_groups = len(self._held)
        between = np.diag(-((self._held / self.capacity) ** 2))
        law = {int(group): {int(group): 1.0} for group in self._some}
        for slot, (one, other, share, v) in enumerate(self._meetings, start=n_groups):
            left, right = law.pop(one), law.pop(other)
            here, there = list(left), list(right)
            product = np.outer(list(left.values()), list(right.values())) * -v
            between[np.ix_(here, there)] = product
            between[np.ix_(there, here)] = product.T
            law[slot] = {key: share * q for key, q in left.items()} | {
                key: (1 - share) * q for key, q in right.items()
            }
        own, chance = self._chances()
        covariance = between[np.ix_(own, own)] * np.outer(chance, chance)
        np.fill_diagonal(covariance, 0.0)
        return covariance

    def _chances(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the group of every client, and its chance to be the group's live client."""
        own = np.repeat(np.arange(len(self._held)), self._sizes)
        return own, self._units / self._held[own]

    def spread(self, updates: NDArray[np.floating]) -> float:
        """Return the expected squared distance of the sum of selected updates from its mean."""
        step = max(1, BLOCK_ENTRIES // max(1, len(self.clients)))
        columns = range(0, updates.shape[1], step)
        parts = (updates[self.clients, start : start + step] for start in columns)
        return math.fsum(self._spread(part.astype(np.float64)) for part in parts)

    def _spread(self, deltas: NDArray[np.float64]) -> float:
        """Return the contribution of some columns; clients are sorted by group."""
        if not len(deltas):
            return 0.0
        n_groups, (own, chance) = len(self._held), self._chances()
        starts = (np.cumsum(self._sizes) - self._sizes)[self._some]
        means = np.zeros((n_groups, deltas.shape[1]))
        means[self._some] = np.add.reduceat(chance[:, None] * deltas, starts)
        rest = deltas - means[own]
        squares = chance * np.einsum("ij,ij->i", rest, rest)
        spreads = np.bincount(own, squares, n_groups)
        mean = dict(enumerate(means))
        spread = dict(enumerate(spreads.tolist()))
        parts = ((self._held / self.capacity) ** 2 * spreads).tolist()
        for slot, (one, other, share, v) in enumerate(self._meetings, start=n_groups):
            right, apart = mean[other], mean.pop(one) - mean.pop(other)
            distance = float(apart @ apart)
            wide, broad = spread.pop(one), spread.pop(other)
            parts.append(v * (wide + broad + distance))
            mean[slot] = right + share * apart
            spread[slot] = share * wide + (1 - share) * broad + share * (1 - share) * distance
        return math.fsum(parts)


#: The slots of the two clients that meet, and their units, more than 0 and less than M.
Duel = tuple[int, int, int, int]


def _duels(held: list[int], merges: list[list[int]], capacity: int) -> list[Duel]:
    """List the merges where two clients meet. Their units do not depend on chance."""
    phi = [units % capacity for units in held]
    slot = list(range(len(held)))
    duels: list[Duel] = []
    for left, right in merges:
        a, b = phi[left], phi[right]
        if a and b:
            slot.append(len(held) + len(duels))
            duels.append((slot[left], slot[right], a, b))
        else:
            slot.append(slot[left] if a else slot[right])
        phi.append((a + b) % capacity)
    return duels


def _levels(duels: list[Duel], n_groups: int) -> list[NDArray[np.int64]]:
    """Sort the duels into levels. Duels of one level are independent of each other."""
    level = [0] * n_groups
    by_level: list[list[int]] = []
    for number, (left, right, _, _) in enumerate(duels):
        own = max(level[left], level[right])
        level.append(own + 1)
        if own == len(by_level):
            by_level.append([])
        by_level[own].append(number)
    return [np.array(numbers, dtype=np.int64) for numbers in by_level]


@final
class TournamentDesign(RoundedDesign):
    r"""Let clients duel along the similarity tree until m are selected.

    1. A client with :math:`m n_i \ge M` is always drawn :math:`\lfloor m n_i / M \rfloor` times.
       Its remaining :math:`u_i = m n_i \bmod M` units take part in the next steps.
    2. Every group of at most M units draws one *live* client by its units.
    3. At each merge of the tree two live clients with a and b units duel. If a + b < M, one stays
       live with all units. If a + b = M, one is selected. If a + b > M, one is selected and the
       other stays live with a + b - M units. The chances give :math:`E[c_i] = m p_i`.

    The count of every client *and of every subtree* is the floor or the ceiling of its
    expectation: each cluster, at every level, gets its share. With :math:`q_v` the law of node
    v's live client, :math:`\phi_v` its units over M, and a, b the children of a merge,

    .. math::

        V = \tfrac1{m^2} \sum_{a,b} v_{ab}\, E\|\Delta_{live(a)} - \Delta_{live(b)}\|^2, \qquad
        v_{ab} = \begin{cases} \phi_a \phi_b & \phi_a + \phi_b \le 1 \\
            (1 - \phi_a)(1 - \phi_b) & \phi_a + \phi_b > 1, \end{cases}

    This is at most multinomial sampling's V, for all updates and trees.

    Parameters
    ----------
    updates
        The clients' last updates, zero before the first; shape (n_clients, dimension). None with
        ``groups``, or if ``tree`` is a tree.
    groups
        The group of every client, n_clients labels of any kind; replaces updates and tree.
    tree, measure, linkage, products
        As in :class:`SimilarityClusteredDesign`; also the attributes ``tree`` and ``leaves``.

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

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        updates: ArrayLike | None = None,
        *,
        groups: Sequence[Hashable] | None = None,
        rng: Rng = None,
        **options: Unpack[TreeOptions],
    ) -> None:
        super().__init__(population, cohort_size)
        rng, n, total = checked_rng(self.name, rng), population.n_clients, population.total
        units = self._units
        if groups is None:
            deltas = None if updates is None else checked_updates(self.name, updates, n)
            self.reads = tree_reads(updates, options)
            self.leaves, self.tree = client_tree(
                self.name, deltas, units, total, rng=rng, **options
            )
        else:
            check_tree(self.name, **options)
            if updates is not None or not isinstance(options.get("tree", "auto"), str):
                raise DesignError(
                    f"{self.name}: needs one of updates, tree and groups; got groups and another. "
                    f"Drop one."
                )
            labels = group_numbers(self.name, groups, n)
            self.leaves = rng.permutation(np.flatnonzero(units))
            own = labels[self.leaves], units[self.leaves]
            self.tree = GroupTree(*labelled_groups(*own, total, rng))
        self._duels = Duels(self.leaves, units[self.leaves], self.tree, total)

    def covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], shape (n_clients, n_clients); never positive between two clients."""
        n = self.population.n_clients
        covariance = np.zeros((n, n))
        own = self._duels.clients
        covariance[np.ix_(own, own)] = self._duels.covariance() / self.cohort_size**2
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def _selected(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        return self._duels.draw(rng, rounds)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        return self._duels.spread(updates) / self.cohort_size**2


@final
@dataclass(frozen=True, repr=False)
class Tournament(TreeRecipe):
    """Recipe of :class:`TournamentDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "tournament"

    def design(self, population: Population, known: Knowledge) -> TournamentDesign:
        return TournamentDesign(**self.arguments(population, known))
