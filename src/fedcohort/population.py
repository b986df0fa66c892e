"""The clients, and how much each of them counts."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from numbers import Real
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import (
    UNIT_LIMIT,
    as_array,
    as_name,
    as_range,
    brief,
    checked_ids,
    is_list,
    named_values,
    ordered_ids,
)
from fedcohort._display import html_table
from fedcohort.errors import PopulationError

#: Importances that are not sizes become this many integer units.
IMPORTANCE_UNITS = 2**40
#: How far the importances' sum may lie from 1.
IMPORTANCE_TOLERANCE = 1e-9

#: The name of a group.
Label = str | int
#: The group of clients without a label.
UNLABELLED = "unlabelled"


@final
class Population:
    r"""The clients of a federation and their sizes, in integers.

    Client :math:`i` has :math:`n_i` samples and importance :math:`p_i = n_i / M`, where
    :math:`M = \sum_i n_i`. Importances that are not sizes are turned into integers once, here:
    they become :math:`M = 2^{40}` units by largest remainder, and ``importance`` reports
    units / total from then on. A client of size 0 is a client that is never drawn.

    Parameters
    ----------
    sizes
        Samples per client: whole numbers, at least 0, not all 0. ``2.0`` is a whole number. The
        index of a pandas Series names the clients, unless it is the default one.
    importance
        Instead of sizes: non-negative numbers that sum to 1 within 1e-9.
    ids
        A distinct name for every client; its position by default.
    groups
        A label for every client, a string or an integer, for designs that draw by group. Clients
        labelled None form the group ``"unlabelled"``.

    Examples
    --------
    >>> population = Population([5, 3, 2], ids=["Nice", "Lyon", "Brest"])
    >>> population
    Population(n_clients=3, total=10)
    >>> population.importance.tolist()
    [0.5, 0.3, 0.2]
    >>> Population(importance=[0.25, 0.75]).sizes.tolist()
    [274877906944, 824633720832]
    """

    __slots__ = ("_groups", "_ids", "_sizes", "_total")

    def __init__(
        self,
        sizes: ArrayLike | None = None,
        *,
        importance: ArrayLike | None = None,
        ids: Sequence[Hashable] | None = None,
        groups: Sequence[Label | None] | None = None,
    ) -> None:
        if (sizes is None) == (importance is None):
            given = "neither" if sizes is None else "both"
            raise PopulationError(
                f"Population: needs either sizes or importance; got {given}. "
                f"Pass Population(sizes) or Population(importance=p)."
            )
        numbers: object = importance if sizes is None else sizes
        values = named_values(numbers)
        if isinstance(values, dict) and values is not numbers:  # a Series with names
            values, ids = list(values.values()), list(values) if ids is None else ids
        self._sizes = _as_units(values) if sizes is None else _whole_sizes(values)
        self._sizes.setflags(write=False)
        self._total = int(self._sizes.sum())
        self._ids = _distinct_ids(ids, len(self._sizes))
        labels = named_values(groups)
        if labels is not groups:  # a Series with names
            labels = [labels.get(each) for each in self._ids]
        self._groups = None if labels is None else checked_labels(labels, len(self._sizes))

    @classmethod
    def of_checked(
        cls,
        sizes: NDArray[np.int64],
        ids: Sequence[Hashable],
        groups: tuple[Label, ...] | None,
    ) -> "Population":
        """Make a population of valid parts, without checking them."""
        made = cls.__new__(cls)
        made._sizes, made._ids, made._groups = sizes, ids, groups
        made._sizes.setflags(write=False)
        made._total = int(sizes.sum())
        return made

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples (or units) of every client, shape (n_clients,); read-only."""
        return self._sizes

    @property
    def total(self) -> int:
        """All samples together, M."""
        return self._total

    @property
    def importance(self) -> NDArray[np.float64]:
        """Share of every client, sizes / total, shape (n_clients,)."""
        return self._sizes / self._total

    @property
    def n_clients(self) -> int:
        """How many clients there are, those of size 0 included."""
        return len(self._sizes)

    @property
    def ids(self) -> Sequence[Hashable]:
        """The clients' names, in order."""
        return self._ids

    @property
    def groups(self) -> tuple[Label, ...] | None:
        """The clients' labels, in order; None if no client has one."""
        return self._groups

    def restricted(self, available: ArrayLike) -> "Population":
        r"""Return the same clients; clients that are not available now have size 0.

        Positions and ids stay. With A the available clients, client :math:`i \in A` gets importance
        :math:`p_i / p(A)`, exactly, and the others are never drawn. An unbiased design is then
        unbiased *over A*: its aggregate has the mean :math:`\sum_{i \in A} p_i \Delta_i / p(A)`.
        That is the update of the available clients, not of all clients: in the long run client *i*
        counts :math:`E[p_i / p(A);\ i \in A]`. Clients that are seldom available count for less.
        If all are available equally often, small clients count for a little more than their
        importance.

        Parameters
        ----------
        available
            Whether each client is available, shape (n_clients,), boolean.

        Examples
        --------
        >>> tonight = Population([5, 3, 2]).restricted([False, True, True])
        >>> tonight.sizes.tolist(), tonight.importance.tolist()
        ([0, 3, 2], [0.0, 0.6, 0.4])
        """
        mask = as_array(available)
        if mask.shape != self._sizes.shape or mask.dtype != np.bool_:
            raise PopulationError(
                f"Population: available must be one boolean per client, shape "
                f"({self.n_clients},); got {mask.dtype} of shape {mask.shape}."
            )
        if not (mask & (self._sizes > 0)).any():
            raise PopulationError(
                f"Population: at least one client with samples must be available; got {mask.sum()} "
                f"available, none of them with samples. Wait for one."
            )
        return Population.of_checked(np.where(mask, self._sizes, 0), self._ids, self._groups)

    def in_order_of_ids(self) -> tuple["Population", NDArray[np.int64]]:
        """Return the clients in a selector's order, and the old position of each of them.

        Numbers come first, by value, then names. Ids must be strings or integers.
        """
        if isinstance(self._ids, range):
            return self, np.arange(self.n_clients)
        ids = checked_ids(self._ids)
        position = {each: k for k, each in enumerate(ids)}
        ordered = as_range(ordered_ids(ids))
        places = np.array([position[each] for each in ordered], dtype=np.int64)
        labels = self._groups
        groups = None if labels is None else tuple(labels[k] for k in places)
        return Population.of_checked(self._sizes[places], ordered, groups), places

    def __repr__(self) -> str:
        return f"Population(n_clients={self.n_clients}, total={self.total})"

    def _repr_html_(self) -> str:
        names = ("smallest", "lower quartile", "median", "upper quartile", "largest")
        sizes = np.quantile(self._sizes, [0, 0.25, 0.5, 0.75, 1])
        rows: list[tuple[str, object]] = [("clients", self.n_clients), ("total", self.total)]
        rows += [(f"{name} size", f"{size:g}") for name, size in zip(names, sizes, strict=True)]
        if self._groups is not None:
            rows.append(("groups", len(set(self._groups))))
        return html_table("Population", (), rows)


def _whole_sizes(sizes: object) -> NDArray[np.int64]:
    """Copy the sizes into 64-bit integers, or say which of them is not a size."""
    values = _numbers("sizes", sizes, "whole numbers")
    if values.dtype.kind == "i" and values.min() >= 0 and 0 < values.sum(dtype=float) < 2**62:
        return values.astype(np.int64)  # a million clients take no loop
    _refuse(values, ~_finite(values), "sizes must be finite", "Drop the client or give 0.")
    _refuse(values, values < 0, "sizes must not be negative", "Drop the client or give 0.")
    _refuse(values, values % 1 != 0, "sizes must be whole numbers", "Round it.")
    # Python's integers: neither a size nor the sum may wrap around silently.
    whole = [int(value) for value in values.tolist()]
    if (total := sum(whole)) >= UNIT_LIMIT:
        raise PopulationError(
            f"Population: sizes must sum to less than 2^63; got {brief(total)}. "
            f"Divide all of them by one number."
        )
    if total == 0:
        raise PopulationError(
            "Population: sizes must not all be 0; got no samples at all. "
            "Give at least one client a positive size."
        )
    return np.array(whole, dtype=np.int64)


def _as_units(importance: object) -> NDArray[np.int64]:
    """Turn importances into integers that sum to ``IMPORTANCE_UNITS``, by largest remainder."""
    values = _numbers("importance", importance, "numbers")
    _refuse(values, ~_finite(values), "importance must be finite", "Drop the client.")
    _refuse(values, values < 0, "importance must not be negative", "Drop the client or give 0.")
    _refuse(values, values > 2, "importance must not exceed 1", "Divide it by its sum.")
    values = values.astype(np.float64)
    total = math.fsum(values)
    if abs(total - 1) > IMPORTANCE_TOLERANCE:
        raise PopulationError(
            f"Population: importance must sum to 1 within {IMPORTANCE_TOLERANCE}; got {total!r}. "
            f"Divide it by its sum, or pass sizes."
        )
    # The quotas' rounding errors sum to less than 2^-11 units: the floors cannot exceed the total,
    # and no client of importance 0 gets a unit.
    quotas = values / total * IMPORTANCE_UNITS
    units = np.floor(quotas).astype(np.int64)
    missing = IMPORTANCE_UNITS - int(units.sum())
    units[np.argsort(units - quotas, kind="stable")[:missing]] += 1
    _refuse(
        values,
        (values > 0) & (units == 0),
        f"a positive importance must reach one of {IMPORTANCE_UNITS} units",
        "Give 0, or merge small clients.",
    )
    return units


def _numbers(name: str, values: object, kind: str) -> NDArray[Any]:
    """Validate a flat, non-empty array of real numbers; objects where 64 bits are too few."""
    if isinstance(values, np.ma.MaskedArray):
        if values.ndim == 1:
            masked, way_out = np.ma.getmaskarray(values), "Drop the client or give 0."
            _refuse(values, masked, f"{name} must not be masked", way_out)
        values = values.data
    try:
        array: NDArray[Any] = np.asarray(values)
        if array.dtype.kind in "if" and isinstance(values, (list, tuple)):
            # Lists of several types: as floats, large integers would be rounded, and True is 1.
            kinds = set(map(type, values))
            array = array if len(kinds) == 1 else np.array(values, dtype=object)
    except (ValueError, TypeError, RuntimeError):  # torch's, of a tensor that numpy cannot read
        array = np.empty((0, 0))
    if array.ndim != 1 or array.dtype.kind not in "iufO" or array.size == 0:
        came = "nothing" if array.shape == (0,) else f"{array.dtype} of shape {array.shape}"
        raise PopulationError(
            f"Population: {name} must be a flat list of {kind}, one per client; got {came}. "
            f"Pass for example [5, 3, 2]."
        )
    if array.dtype.kind == "O":
        invalid = [not isinstance(v, Real) or isinstance(v, bool) for v in array]
        _refuse(array, np.array(invalid), f"{name} must be {kind}", "Give a number each.")
    return array


def _finite(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value is finite; Python integers always are."""
    if values.dtype.kind != "O":
        return np.asarray(np.isfinite(values))
    return np.array([isinstance(v, int) or math.isfinite(v) for v in values])


def _refuse(values: NDArray[Any], bad: NDArray[np.bool_], need: str, way_out: str) -> None:
    """Name the first bad client and its value."""
    if bad.any():
        client = int(np.argmax(bad))
        raise PopulationError(
            f"Population: {need}; client {client} has {brief(values.tolist()[client])}"
            f"{f' (and {bad.sum() - 1} more)' if bad.sum() > 1 else ''}. {way_out}"
        )


def _distinct_ids(ids: Sequence[Hashable] | None, n_clients: int) -> Sequence[Hashable]:
    """Validate one distinct id per client; without any, count the clients."""
    if ids is None:
        return range(n_clients)
    if isinstance(ids, range) and ids == range(n_clients):
        return ids
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()  # Python's own integers and strings
    try:
        names = tuple(ids)
        distinct = len(set(names))
    except TypeError as error:
        raise PopulationError(
            f"Population: ids must be a list of names or numbers; got {brief(ids)}. "
            f"Name every client, or leave ids out."
        ) from error
    if len(names) != n_clients:
        raise PopulationError(
            f"Population: ids must be one per client, {n_clients}; got {len(names)}. "
            f"Name every client, or leave ids out."
        )
    if distinct < n_clients:
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise PopulationError(
            f"Population: ids must be distinct; {twice!r} appears more than once. "
            f"Rename one of the clients."
        )
    return names


def checked_labels(groups: object, n_clients: int) -> tuple[Label, ...]:
    """Validate one label per client; None becomes ``UNLABELLED``."""
    given = groups.tolist() if isinstance(groups, np.ndarray) else groups
    each = given if is_list(given) else ()
    labels = [UNLABELLED if label is None else label for label in each]
    if len(labels) != n_clients:
        raise PopulationError(
            f"Population: groups must be one label per client, {n_clients}; got {len(labels)}. "
            f"Label every client with a string or an integer, or None for no label."
        )
    found = [as_name(label) for label in labels]
    if None in found:
        raise PopulationError(
            f"Population: groups must be strings or integers; got "
            f"{brief(labels[found.index(None)])}. Write the label as a string, or None for no "
            f"label."
        )
    return tuple(label for label in found if label is not None)
