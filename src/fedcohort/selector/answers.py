"""The answers of a round: updates that are read, ordered, checked and shortened once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief
from fedcohort._updates import (
    LARGEST_ENTRY,
    Array,
    Layout,
    OtherArrays,
    Rows,
    Update,
    as_numpy,
    double,
    order_of,
    row_norms,
)
from fedcohort.cohort import NOBODY
from fedcohort.errors import AggregationError, SelectorError
from fedcohort.selector.max_norm import factors_of


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """A round's updates; :meth:`Selector.receive` reads them once.

    Attributes
    ----------
    round_
        The round that they belong to.
    given
        Positions of all clients that sent an update, in order of arrival.
    clients
        Positions of the clients whose updates can be used, sorted.
    layout
        The arrays of an update; None if no update was read.
    rows
        Their updates, one row each; None if whole updates are not needed, or no client answered.
    kept
        What the memory keeps of each, one row each; None if it keeps nothing.
    norms
        The norm of each of their updates; None if it is not needed.
    outputs
        The output layer's part of each, one row each; None if it is not needed.
    factors
        What each update was multiplied by: less than 1 if it was above ``max_norm``. None without
        a bound.
    reported
        The losses and durations that they reported, by the name of the past signal.
    source
        The updates by id as they came; None if they came as rows.
    """

    round_: int
    given: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    clients: NDArray[np.int64] = field(default_factory=NOBODY.copy)
    layout: Layout | None = None
    rows: Rows | None = None
    kept: NDArray[np.float32] | None = None
    norms: NDArray[np.float64] | None = None
    outputs: NDArray[np.float64] | None = None
    factors: NDArray[np.float64] | None = None
    reported: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    source: Mapping[Any, Update] | None = None

    @property
    def arrived(self) -> NDArray[np.int64]:
        """The same as ``clients``, in order of arrival."""
        return self.given[np.isin(self.given, self.clients)]

    @property
    def unusable(self) -> NDArray[np.int64]:
        """Positions of the clients whose updates cannot be used, sorted."""
        return np.setdiff1d(self.given, self.clients)

    @property
    def scaled(self) -> NDArray[np.int64]:
        """Positions of the clients whose updates were above ``max_norm``, sorted."""
        return NOBODY if self.factors is None else self.clients[self.factors < 1]

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Join answers of one round that were received one after another, in this order.

        A server can receive each update when it comes, so that it reads it only once.
        """
        _check_parts(parts)
        clients = np.concatenate([part.clients for part in parts])
        order = np.argsort(clients)
        read = [part for part in parts if len(part)] or parts[:1]

        def column(values: Sequence[Any]) -> Any:
            return _taken(_joined(values), order)

        names = ("rows", "kept", "norms", "outputs", "factors")
        columns = {name: column([getattr(own, name) for own in read]) for name in names}
        reports = [own.reported for own in read]
        is_by_id = all(part.source is not None for part in parts)
        source = {name: own for part in parts for name, own in (part.source or {}).items()}
        return cls(
            parts[0].round_,
            np.concatenate([part.given for part in parts]),
            clients[order],
            read[0].layout,
            **columns,
            reported={name: column([own[name] for own in reports]) for name in reports[0]},
            source=source if is_by_id else None,
        )

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        return f"Answers({len(self)} of {len(self.given)} usable, round_={self.round_})"


def _check_parts(parts: Sequence[Answers]) -> None:
    """Refuse parts that are not of one round, distinct clients and the same arrays."""
    is_right = isinstance(parts, Sequence) and all(isinstance(each, Answers) for each in parts)
    if not is_right or not parts:
        raise SelectorError(
            f"Answers: joined needs a list of at least one Answers; got {brief(parts)}. Pass what "
            f"receive returned."
        )
    if len(rounds := {part.round_ for part in parts}) > 1:
        raise SelectorError(
            f"Answers: parts must be of one round; got those of rounds {sorted(rounds)}. Join each "
            f"round's answers."
        )
    given, counts = np.unique(np.concatenate([part.given for part in parts]), return_counts=True)
    if (counts > 1).any():
        raise SelectorError(
            f"Answers: parts must be of different clients; position {given[np.argmax(counts)]} is "
            f"in two of them. Receive each update once."
        )
    read = [part for part in parts if len(part)]
    has = [_known_of(part) for part in read]
    if some := {name for own in has for name in own ^ has[0]}:
        raise SelectorError(
            f"Answers: parts must be received with the same arguments; only some have "
            f"{', '.join(sorted(some))}. Pass whole, losses and durations each time or never."
        )
    layouts = [part.layout for part in read if part.layout is not None]
    for other in layouts[1:]:
        if not layouts[0].matches(other):
            raise SelectorError(
                f"Answers: parts must have the same arrays, {layouts[0].shapes}; got "
                f"{other.shapes}. Drop the update that differs: it then counts as lost."
            )


def _known_of(part: Answers) -> set[str]:
    """Return the names of what is known of every usable update."""
    names = ("layout", "rows", "kept", "norms", "outputs", "factors")
    return {name for name in names if getattr(part, name) is not None} | set(part.reported)


class _Read(NamedTuple):
    """Updates that were read, and whether each can be used."""

    layout: Layout | None
    rows: Rows | None
    kept: NDArray[np.float32] | None
    norms: NDArray[np.float64] | None
    outputs: NDArray[np.float64] | None
    factors: NDArray[np.float64] | None
    good: NDArray[np.bool_]

    def usable(self) -> _Read:
        """Leave out the updates that cannot be used."""
        layout, *columns, good = self
        usable = (_taken(each, np.flatnonzero(good)) for each in columns)
        return _Read._make([layout, *usable, good])


def _joined(columns: Sequence[Any]) -> Any:
    """Join columns of one kind, arrays or rows; None if there is none."""
    if columns[0] is None:
        return None
    return Rows.joined(columns) if isinstance(columns[0], Rows) else np.concatenate(columns)


def _taken(column: Any, places: NDArray[np.int64]) -> Any:
    """Return these places of a column; None if there is none."""
    if column is None:
        return None
    return column.taken(places) if isinstance(column, Rows) else column[places]


@final
@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the updates of a round.

    Attributes
    ----------
    whole
        Whether whole updates are needed; otherwise each is dropped once it is read.
    shorten
        What the memory keeps of updates, one row each; None if it keeps nothing.
    sketches
        Whether ``shorten`` sketches, and does not keep whole updates.
    measure
        Whether norms are needed.
    output
        Returns the place of the output layer in updates; None if it is not needed.
    max_norm
        Updates of a larger norm are scaled down to it; None for no bound.
    match
        Returns a layout in the order of earlier rounds' layout; refuses one of other arrays.
    """

    whole: bool
    shorten: Callable[[Array], NDArray[np.float32]] | None
    sketches: bool
    measure: bool
    output: Callable[[Layout], slice] | None
    max_norm: float | None
    match: Callable[[Layout], Layout]

    def read(
        self,
        round_: int,
        updates: Any,
        ids: Sequence[Any],
        positions: NDArray[np.int64],
        norms: NDArray[np.float64] | None = None,
    ) -> Answers:
        """Read the updates of these clients, by id or as rows in their order.

        An update with an entry that is not finite or too large is lost. If whole updates are not
        needed, updates by id are read one at a time, or not at all.
        """
        order = np.argsort(positions, kind="stable")
        by_id, known = isinstance(updates, Mapping), None if norms is None else norms[order]
        try:
            if by_id:
                read = self._by_id(updates, [ids[k] for k in order], known)
            else:
                read = self._of_rows(updates, order, known)
        except AggregationError as error:
            raise SelectorError(str(error)) from error
        source = updates if by_id else None
        if read is None:
            return Answers(round_, positions, positions[order], source=source)
        own = read.usable()._asdict()
        clients = positions[order][own.pop("good")]
        return Answers(round_, positions, clients, **own, source=source)

    def _of_rows(
        self, updates: Any, order: NDArray[np.int64], norms: NDArray[np.float64] | None
    ) -> _Read | None:
        """Read rows, or a list of updates, and order them; None if there are none."""
        is_list = isinstance(updates, Sized) and len(getattr(updates, "shape", (0,))) == 1
        if not isinstance(updates, Rows) and len(order) == 0 and is_list and len(updates) == 0:
            return None
        rows = Rows.of("Selector", updates, len(order)).taken(order)
        return self._read(replace(rows, layout=self.match(rows.layout)), norms)

    def _by_id(
        self, updates: Mapping[Any, Update], ids: list[Any], norms: NDArray[np.float64] | None
    ) -> _Read | None:
        """Read updates by id, each once: a mapping may compute them when they are read."""
        if not ids or not (self.whole or self.shorten or self.output or self.measure):
            return None
        if self.whole:
            return self._read(Rows.joined([*self._each(updates, ids)]), norms)
        if norms is not None and not (self.shorten or self.output):  # nothing else is needed
            bounded, factors = self._bounded(norms)
            return _Read(None, None, None, bounded, None, factors, norms < LARGEST_ENTRY)
        # One at a time: all together may not fit into memory.
        each = zip(self._each(updates, ids), _one_by_one(norms, len(ids)), strict=True)
        read = [self._read(row, norm)._replace(rows=None) for row, norm in each]
        layouts, *columns = zip(*read, strict=True)
        return _Read(layouts[0], *map(_joined, columns))

    def _each(self, updates: Mapping[Any, Update], ids: list[Any]) -> Iterator[Rows]:
        """Yield each update as one row, all in one layout."""
        layout: Layout | None = None
        orders = set[Any]()
        for each in ids:
            update = updates[each]
            orders.add(order_of(update))
            if layout is None:
                layout, vector, counters = Layout.read("Selector", update)
                layout = self.match(layout)
            else:
                try:
                    vector, counters = layout.take(update)
                except OtherArrays as error:
                    raise SelectorError(
                        f"Selector: updates must have the arrays of the others, {layout.shapes}; "
                        f"that of client {each!r} differs: {error}. Drop its update: it then "
                        f"counts as lost."
                    ) from error
            yield Rows(layout, vector[None], [counters], len(orders) == 1)

    def _read(self, rows: Rows, norms: NDArray[np.float64] | None) -> _Read:
        good, factors = rows.usable(norms), None
        if not self.measure:
            norms = None
        else:
            norms, factors = self._bounded(row_norms(rows.flat) if norms is None else norms)
        if factors is not None and (factors < 1).any():
            rows = rows.scaled(factors)
        kept = None if self.shorten is None else self.shorten(rows.flat)
        outputs = None
        if self.output is not None:
            outputs = as_numpy(double(rows.flat[:, self.output(rows.layout)]))
        if kept is not None and self.sketches:  # sums in a sketch can overflow
            good = good & np.isfinite(kept).all(axis=1)
        return _Read(rows.layout, rows, kept, norms, outputs, factors, good)

    def _bounded(
        self, norms: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return norms after scaling, and the factors."""
        if self.max_norm is None:
            return norms, None
        return np.minimum(norms, self.max_norm), factors_of(norms, self.max_norm)


def _one_by_one(norms: NDArray[np.float64] | None, n: int) -> Sequence[NDArray[np.float64] | None]:
    return [None] * n if norms is None else np.split(norms, n)
