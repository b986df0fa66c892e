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
from fedcohort.similarity.measures import checked_updates
from fedcohort.similarity.trees import GroupTree, TreeOptions, check_tree, client_tree

#: Random numbers drawn in one block, 32 MB.
BLOCK_ENTRIES = 2**22


@dataclass(frozen=True, slots=True)
class Duel:
    """A merge where the live clients of two nodes meet.

    Attributes
    ----------
    left, right
        The slots of the two clients. Slots number the groups first, then the duels.
    a, b
        The units of the two clients, each more than 0 and less than M.
    """

    left: int
    right: int
    a: int
    b: int


@final
class Duels:
    """A tournament of clients with less than M units each, in integers.

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
        held = np.zeros(n_groups, dtype=np.int64)
        np.add.at(held, groups, self._units)
        self._held = held
        #: Groups that are not empty. A tree passed by the user may have empty ones.
        self._some = np.flatnonzero(held)
        self._duels = _duels(held.tolist(), tree.merges.tolist(), capacity)
        self._levels = _levels(self._duels, n_groups)
        self._left, self._right = _column(self._duels, "left"), _column(self._duels, "right")
        a, b = _column(self._duels, "a"), _column(self._duels, "b")
        self._is_over = a + b > capacity
        self._selects = a + b >= capacity
        # Both sums are below 2^63 where they are used. 2 * capacity may be above.
        self._highs = np.where(self._is_over, (capacity - a) + (capacity - b), a + b)
        self._thresholds = np.where(self._is_over, capacity - b, a)

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
        live = np.empty((n_groups + len(self._duels), rounds), dtype=np.int64)
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
        n_groups, unit = len(self._held), self.capacity
        between = np.zeros((n_groups, n_groups))
        np.fill_diagonal(between, -((self._held / unit) ** 2))
        law = {int(group): {int(group): 1.0} for group in self._some}
        for number, duel in enumerate(self._duels):
            left, right = law.pop(duel.left), law.pop(duel.right)
            here, there = list(left), list(right)
            product = np.outer(list(left.values()), list(right.values())) * -_v(duel, unit)
            between[np.ix_(here, there)] = product
            between[np.ix_(there, here)] = product.T
            share = _share_left(duel, unit)
            law[n_groups + number] = {key: share * q for key, q in left.items()} | {
                key: (1 - share) * q for key, q in right.items()
            }
        own = np.repeat(np.arange(n_groups), self._sizes)
        chance = self._units / self._held[own]
        covariance = between[np.ix_(own, own)] * np.outer(chance, chance)
        np.fill_diagonal(covariance, 0.0)
        return covariance

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
        n_groups, unit = len(self._held), self.capacity
        own = np.repeat(np.arange(n_groups), self._sizes)
        chance = self._units / self._held[own]
        starts = (np.cumsum(self._sizes) - self._sizes)[self._some]
        means = np.zeros((n_groups, deltas.shape[1]))
        means[self._some] = np.add.reduceat(chance[:, None] * deltas, starts)
        rest = deltas - means[own]
        squares = chance * np.einsum("ij,ij->i", rest, rest)
        spreads = np.bincount(own, squares, n_groups)
        mean = dict(enumerate(means))
        spread = dict(enumerate(spreads.tolist()))
        parts = ((self._held / unit) ** 2 * spreads).tolist()
        for number, duel in enumerate(self._duels):
            left, right = mean.pop(duel.left), mean.pop(duel.right)
            apart = left - right
            distance = float(apart @ apart)
            wide, broad = spread.pop(duel.left), spread.pop(duel.right)
            parts.append(_v(duel, unit) * (wide + broad + distance))
            share = _share_left(duel, unit)
            mean[n_groups + number] = right + share * apart
            spread[n_groups + number] = (
                share * wide + (1 - share) * broad + share * (1 - share) * distance
            )
        return math.fsum(parts)


def _duels(held: list[int], merges: list[list[int]], capacity: int) -> list[Duel]:
    """List the merges where two clients meet. Their units do not depend on chance."""
    phi = [units % capacity for units in held]
    slot = list(range(len(held)))
    duels: list[Duel] = []
    for left, right in merges:
        a, b = phi[left], phi[right]
        if a and b:
            slot.append(len(held) + len(duels))
            duels.append(Duel(slot[left], slot[right], a, b))
        else:
            slot.append(slot[left] if a else slot[right])
        phi.append((a + b) % capacity)
    return duels


def _levels(duels: list[Duel], n_groups: int) -> list[NDArray[np.int64]]:
    """Sort the duels into levels. Duels of one level are independent of each other."""
    level = [0] * n_groups
    by_level: list[list[int]] = []
    for number, duel in enumerate(duels):
        own = max(level[duel.left], level[duel.right])
        level.append(own + 1)
        if own == len(by_level):
            by_level.append([])
        by_level[own].append(number)
    return [np.array(numbers, dtype=np.int64) for numbers in by_level]


def _v(duel: Duel, unit: int) -> float:
    """Return the variance factor v of a duel."""
    a, b = (duel.a, duel.b) if duel.a + duel.b <= unit else (unit - duel.a, unit - duel.b)
    return a / unit * (b / unit)


def _share_left(duel: Duel, unit: int) -> float:
    """Return the chance that the left client stays live after the duel."""
    if duel.a + duel.b <= unit:
        return duel.a / (duel.a + duel.b)
    return (unit - duel.a) / (2 * unit - duel.a - duel.b)


def _column(duels: list[Duel], name: str) -> NDArray[np.int64]:
    return np.array([getattr(duel, name) for duel in duels], dtype=np.int64)


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
        As in :class:`SimilarityClusteredDesign`.
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

    tree: GroupTree
    leaves: NDArray[np.int64]

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
        """Return the expected squared distance of the aggregate from its own mean."""
        return self._duels.spread(updates) / self.cohort_size**2


@final
@dataclass(frozen=True, repr=False)
class Tournament(TreeRecipe):
    """Recipe of :class:`TournamentDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "tournament"

    def design(self, population: Population, known: Knowledge) -> TournamentDesign:
        """Make the design from what is known."""
        return TournamentDesign(**self.arguments(population, known))
