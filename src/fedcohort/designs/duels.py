"""The duels of a tournament: who meets whom, the draw, and its exact second moments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort.similarity.trees import GroupTree

#: Random numbers drawn at a time, 32 MB.
BLOCK_ENTRIES = 2**22


@dataclass(frozen=True, slots=True)
class Duel:
    r"""Two nodes' live clients meet.

    Attributes
    ----------
    left, right
        Slots: the groups come first, then the duels.
    a, b
        Their units, each more than 0 and less than M.
    """

    left: int
    right: int
    a: int
    b: int


@final
class Duels:
    """A tournament over clients of less than M units each, in integers.

    Parameters
    ----------
    clients, units
        Who takes part, and each one's units, from 1 to M - 1.
    tree
        Over these clients; no group has more than ``capacity`` units.
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
        #: Groups that someone is in: a given tree may have empty ones.
        self._some = np.flatnonzero(held)
        self._duels = _duels(held.tolist(), tree.merges.tolist(), capacity)
        self._levels = _levels(self._duels, n_groups)
        self._left, self._right = _column(self._duels, "left"), _column(self._duels, "right")
        a, b = _column(self._duels, "a"), _column(self._duels, "b")
        self._is_over = a + b > capacity
        self._selects = a + b >= capacity
        # Both numbers are below 2^63 where they are used; twice the capacity need not be.
        self._highs = np.where(self._is_over, (capacity - a) + (capacity - b), a + b)
        self._thresholds = np.where(self._is_over, capacity - b, a)

    def draw(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        """Draw the selected clients, ``rounds`` times; shape (rounds, total units / M)."""
        highs = np.concatenate([self._held[self._some], self._highs])
        step = max(1, BLOCK_ENTRIES // max(1, len(highs)))
        blocks = [
            self._played(rng.integers(highs, size=(min(step, rounds - start), len(highs))).T)
            for start in range(0, rounds, step)
        ]
        n_selected = int(self._ends[-1]) // self.capacity if len(self._ends) else 0
        return np.concatenate([np.empty((0, n_selected), dtype=np.int64), *blocks])

    def _played(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Play rounds on given random numbers, shape (groups with someone + duels, rounds)."""
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
        """Return the counts' covariances, clients in the order of ``clients``; 0 on the diagonal.

        Two clients of different nodes have - v q_a(i) q_b(j) at the merge where they meet.
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
        """Return the expected squared distance of the selected clients' sum from its mean."""
        step = max(1, BLOCK_ENTRIES // max(1, len(self.clients)))
        columns = range(0, updates.shape[1], step)
        parts = (updates[self.clients, start : start + step] for start in columns)
        return math.fsum(self._spread(part.astype(np.float64)) for part in parts)

    def _spread(self, deltas: NDArray[np.float64]) -> float:
        """Return the part of some columns; the clients come group by group."""
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
    """Play the masses, which no chance touches: list the merges where two clients meet."""
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
    """Sort the duels into levels: those of one level do not wait for each other."""
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
    """Return the chance that the left client is the one that goes on."""
    if duel.a + duel.b <= unit:
        return duel.a / (duel.a + duel.b)
    return (unit - duel.a) / (2 * unit - duel.a - duel.b)


def _column(duels: list[Duel], name: str) -> NDArray[np.int64]:
    return np.array([getattr(duel, name) for duel in duels], dtype=np.int64)
