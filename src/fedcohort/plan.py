"""Plans: the m distributions that a row design draws from, and functions that fill them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import Rng, checked_kind, checked_rng, checked_rounds
from fedcohort._display import html_table, short_repr
from fedcohort._figures import (
    check_axes,
    checked_figure_path,
    draw_plan,
    new_figure,
    plan_size,
    save_figure,
    styled,
)
from fedcohort.errors import PlanError
from fedcohort.population import Population

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """Return the overlaps of two divisions of one line: into pieces, and into cuts.

    Both lists must have the same sum. There are at most
    ``len(piece_lengths) + len(cut_lengths) - 1`` overlaps, in the line's order.

    Examples
    --------
    >>> overlaps(np.array([15, 12, 3]), np.array([10, 10, 10])).units.tolist()
    [10, 5, 5, 7, 3]
    """
    piece_ends, cut_ends = np.cumsum(piece_lengths), np.cumsum(cut_lengths)
    # A stable sort merges two sorted runs several times faster than numpy.unique.
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
    """Return the rows that clients fill alone, and the units that each client has left."""
    full, rest = np.divmod(units, capacity)
    clients = np.repeat(np.arange(len(units)), full)
    alone = np.full(len(clients), capacity, dtype=np.int64)
    return Entries(np.arange(len(clients)), clients, alone), rest


def descending(values: Integers, rng: np.random.Generator) -> Integers:
    """Return positions by decreasing value; ties are random."""
    order = rng.permutation(len(values))
    return order[np.argsort(-values[order], kind="stable")]


def fill_rows(clients: Integers, units: Integers, ranks: Integers, *, capacity: int) -> Entries:
    """Place groups by capacity: the filling of Algorithm 2 (lines 5-19).

    The groups of rank 0 ... m - 1 open the m rows. The clients of the other groups fill the
    remaining room in their order, first row first. A client that does not fit continues in the
    next rows.

    Parameters
    ----------
    clients, units
        The clients in the order of placing, and their units, which sum to m * capacity.
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
    """Rank the groups by decreasing mass and fill the rows; ties and filling order are random.

    ``groups`` has a group number, from 0, for each of ``clients``.
    """
    masses = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(masses, groups, units)
    ranks = np.empty_like(masses)
    ranks[descending(masses, rng)] = np.arange(len(masses))
    order = rng.permutation(len(clients))
    order = order[np.argsort(ranks[groups[order]], kind="stable")]
    return fill_rows(clients[order], units[order], ranks[groups[order]], capacity=capacity)


@final
class Plan:
    r"""m distributions over the clients: row k draws client i with ``units[k, i] / total``.

    The integers satisfy Proposition 1 of Fraboni et al. (2021) as equalities,

    .. math:: \sum_i r'_{k,i} = M, \qquad \sum_k r'_{k,i} = m\, n_i ,

    A plan checks this when it is made. Every plan is therefore unbiased.

    Parameters
    ----------
    units
        Integers, scipy.sparse, shape (cohort_size, n_clients).
    population
        The clients of the columns.

    Examples
    --------
    >>> plan = Plan(csr_array([[10, 0, 0], [0, 6, 4]]), Population([5, 3, 2]))
    >>> plan
    Plan(cohort_size=2, n_clients=3, total=10)
    >>> plan.probabilities.toarray().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.6, 0.4]]
    """

    __slots__ = ("_ends", "_ids", "_total", "_units")

    def __init__(self, units: csr_array, population: Population) -> None:
        way_out = "Pass Population(sizes)."
        checked_kind("Plan", "population", population, Population, way_out=way_out, error=PlanError)
        self._total, self._ids = population.total, population.ids
        self._units = _checked_units(units, population)
        # Every row has M units: in one cumulative sum, row k covers k M ... (k + 1) M.
        self._ends = np.cumsum(self._units.data)

    @classmethod
    def of_entries(cls, entries: Entries, population: Population) -> Plan:
        """Make a plan from entries."""
        shape = (entries.n_rows, population.n_clients)
        where = (entries.rows, entries.clients)
        return cls(csr_array((entries.units, where), shape=shape), population)

    @property
    def units(self) -> csr_array:
        """The integers, shape (cohort_size, n_clients): rows sum to total, columns to m n_i."""
        return self._units

    @property
    def total(self) -> int:
        """Units in every row, M."""
        return self._total

    @property
    def cohort_size(self) -> int:
        """The number of distributions, m."""
        return int(self._units.shape[0])

    @property
    def probabilities(self) -> csr_array:
        """Units / total, shape (cohort_size, n_clients)."""
        units = self._units
        return csr_array((units.data / self._total, units.indices, units.indptr), units.shape)

    def __repr__(self) -> str:
        n_clients = int(self._units.shape[1])
        return short_repr(self, cohort_size=self.cohort_size, n_clients=n_clients, total=self.total)

    def plot(self, path: str | Path | None = None, ax: Axes | None = None) -> Axes:
        """Draw a bar for every distribution, cut into its clients' pieces; return the axes.

        A client that is split over two neighbouring distributions is last in the first and first in
        the second. In a bar of many clients, those below 1 % share a grey piece. Needs the extra
        ``report``.

        Parameters
        ----------
        path
            Also write the figure to this file: .png, .svg or .pdf.
        ax
            The axes to draw on; by default those of a new figure.
        """
        owner = "Plan.plot"
        file = checked_figure_path(path, owner, "path")
        with styled(owner):
            if ax is None:
                figure = new_figure(owner, plan_size(self.cohort_size), shown=path is None)
                axes = figure.add_subplot()
                n = np.count_nonzero(np.diff(self._units.tocsc().indptr))
                figure.suptitle(
                    f"{self.cohort_size:,} distributions of {n:,} clients: one is drawn from each",
                    fontweight="bold",
                )
            else:
                check_axes(owner, ax)
                axes = ax
            draw_plan(axes, self._units, self._total, self._ids)
            if file is not None:
                save_figure(axes.figure.figure, file)
        return axes

    def _repr_html_(self) -> str:
        header = ("distribution", "clients", "client: probability, largest first")
        rows = (self._described(row) for row in range(self.cohort_size))
        return html_table(repr(self), header, rows, n_rows=self.cohort_size)

    def _described(self, row: int, most: int = 5) -> tuple[int, int, str]:
        """Return a row's number, its number of clients, and a text of the largest ones."""
        held = slice(self._units.indptr[row], self._units.indptr[row + 1])
        clients, units = self._units.indices[held], self._units.data[held]
        order = np.argsort(-units, kind="stable")[:most]
        texts = [f"{clients[i]}: {units[i] / self._total:.1%}" for i in order]
        left = ["..."] if len(units) > most else []
        return row, len(units), ", ".join(texts + left)

    def main_rows(self) -> NDArray[np.int64]:
        """Return the row with most units of each client; the first wins ties, -1 if there is none.

        Examples
        --------
        >>> plan = Plan(csr_array([[5, 5, 0], [5, 1, 4]]), Population([5, 3, 2]))
        >>> plan.main_rows().tolist()
        [0, 0, 1]
        """
        entries = self._units.tocoo()
        order = np.lexsort((-entries.row, entries.data))
        found = np.full(entries.shape[1], -1)
        found[entries.col[order]] = entries.row[order]  # the last assignment wins
        return found

    def draw_clients(self, rounds: int, rng: Rng = None) -> NDArray[np.int64]:
        """Draw one client from every row, ``rounds`` times; shape (rounds, cohort_size)."""
        number, generator = checked_rounds("Plan", rounds), checked_rng("Plan", rng)
        m = self.cohort_size
        units = generator.integers(self._total, size=(number, m)) + self._total * np.arange(m)
        return self._units.indices[np.searchsorted(self._ends, units, side="right")].astype(
            np.int64
        )


def _checked_units(units: csr_array, population: Population) -> csr_array:
    """Validate Proposition 1; return a sorted, read-only copy of the matrix."""
    matrix = _integer_matrix(units)
    _check_entries(matrix, population)
    _check_sums(matrix, population)
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.setflags(write=False)
    return matrix


def _integer_matrix(units: csr_array) -> csr_array:
    """Return a sorted copy without zeros."""
    kind = getattr(units, "dtype", None)
    is_whole = getattr(kind, "kind", "") in ("i", "u")
    if not is_whole or len(units.shape) != 2:
        came = f"{kind or type(units).__name__} of shape {getattr(units, 'shape', ())}"
        raise PlanError(
            f"Plan: units must be a matrix of integers; got {came}. Multiply probabilities by the "
            f"total, and pass scipy.sparse.csr_array(units)."
        )
    matrix: csr_array = csr_array(units, copy=True).astype(np.int64, copy=False)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _check_entries(matrix: csr_array, population: Population) -> None:
    n_clients = matrix.shape[1]
    if n_clients != population.n_clients:
        raise PlanError(
            f"Plan: needs a column for each of {population.n_clients} clients; got {n_clients}. "
            f"Give clients that are never drawn a column of zeros."
        )
    if (matrix.data < 0).any():
        raise PlanError(
            f"Plan: units must not be negative; got {matrix.data.min()}. Use 0 or more."
        )


def _check_sums(matrix: csr_array, population: Population) -> None:
    """Refuse rows that do not sum to M, and columns that do not sum to m times the size."""
    m, rows = matrix.shape[0], matrix.sum(axis=1)
    if m == 0 or (rows != population.total).any():
        k = int(np.argmax(rows != population.total)) if m else 0
        raise PlanError(
            f"Plan: every row must sum to {population.total}; "
            f"{f'row {k} sums to {rows[k]}' if m else 'there is no row'}. Fill the rows."
        )
    if ((columns := matrix.sum(axis=0)) != m * population.sizes).any():
        i = int(np.argmax(columns != m * population.sizes))
        raise PlanError(
            f"Plan: column {i} must sum to {m} * {population.sizes[i]}; got {columns[i]}. "
            f"Spread exactly that much of the client over the rows."
        )
