"""Integers on a line: how the clients' units are laid into rows of equal capacity.

A plan has m rows of M units; client i brings ``m * n_i`` units. Everything here moves whole units,
so that nothing is ever lost, rounded or renormalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entry e puts ``units[e] > 0`` of client ``clients[e]`` into row ``rows[e]``."""

    rows: Integers
    clients: Integers
    units: Integers

    @property
    def n_rows(self) -> int:
        """How many rows the entries fill."""
        return int(self.rows.max(initial=-1)) + 1

    def below(self, above: Entries) -> Entries:
        """Stack these rows below those of ``above``."""
        return Entries(
            np.concatenate([above.rows, self.rows + above.n_rows]),
            np.concatenate([above.clients, self.clients]),
            np.concatenate([above.units, self.units]),
        )


class Overlaps(NamedTuple):
    """Piece ``pieces[e]`` and cut ``cuts[e]`` share ``units[e]`` units of the line."""

    pieces: Integers
    cuts: Integers
    units: Integers


def overlaps(piece_lengths: Integers, cut_lengths: Integers) -> Overlaps:
    """Lay the pieces side by side on a line, cut the line, and see what fell into which cut.

    Both lists divide the same line: their sums are equal. At most
    ``len(piece_lengths) + len(cut_lengths) - 1`` overlaps come out, in the line's order.

    Examples
    --------
    >>> overlaps(np.array([15, 12, 3]), np.array([10, 10, 10])).units.tolist()
    [10, 5, 5, 7, 3]
    """
    piece_ends, cut_ends = np.cumsum(piece_lengths), np.cumsum(cut_lengths)
    # Two sorted runs: a stable sort merges them, several times faster than numpy.unique.
    ends = np.sort(np.concatenate([piece_ends, cut_ends]), kind="stable")
    lengths = np.diff(ends, prepend=0)
    some = lengths > 0
    starts = (ends - lengths)[some]
    return Overlaps(
        np.searchsorted(piece_ends, starts, side="right"),
        np.searchsorted(cut_ends, starts, side="right"),
        lengths[some],
    )


def whole_rows(units: Integers, capacity: int) -> tuple[Entries, Integers]:
    """Give every client the rows that it fills alone; return them and what each client has left."""
    full, rest = np.divmod(units, capacity)
    clients = np.repeat(np.arange(len(units)), full)
    alone = np.full(len(clients), capacity, dtype=np.int64)
    return Entries(np.arange(len(clients)), clients, alone), rest


def descending(values: Integers, rng: np.random.Generator) -> Integers:
    """Order positions by decreasing value, equals at random."""
    order = rng.permutation(len(values))
    return order[np.argsort(-values[order], kind="stable")]


def fill_rows(clients: Integers, units: Integers, ranks: Integers, *, capacity: int) -> Entries:
    """Place groups by capacity: the filling of Algorithm 2 (lines 5-19), settled.

    The groups of rank 0 ... m - 1 open the m rows; the others' clients fill the rows' remaining
    room, first row first, in the order in which they stand. A client that does not fit goes on
    into as many following rows as it needs.

    Parameters
    ----------
    clients, units
        What is to be placed, in the order of placing; the units sum to m * capacity.
    ranks
        The rank of each client's group; no group has more than ``capacity`` units.
    capacity
        Units in a full row.
    """
    n_rows = int(units.sum()) // capacity
    opens = ranks < n_rows
    held = np.zeros(n_rows, dtype=np.int64)
    np.add.at(held, ranks[opens], units[opens])
    left = np.flatnonzero(~opens)
    filling = overlaps(units[left], capacity - held)
    return Entries(
        np.concatenate([ranks[opens], filling.cuts]),
        np.concatenate([clients[opens], clients[left[filling.pieces]]]),
        np.concatenate([units[opens], filling.units]),
    )


def fill_groups(
    clients: Integers,
    units: Integers,
    groups: Integers,
    *,
    capacity: int,
    rng: np.random.Generator,
) -> Entries:
    """Rank the groups by decreasing mass and fill the rows; equals and leftovers at random.

    ``groups`` holds a group number, from 0, for each of ``clients``.
    """
    masses = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(masses, groups, units)
    ranks = np.empty_like(masses)
    ranks[descending(masses, rng)] = np.arange(len(masses))
    order = rng.permutation(len(clients))
    order = order[np.argsort(ranks[groups[order]], kind="stable")]
    return fill_rows(clients[order], units[order], ranks[groups[order]], capacity=capacity)
