"""What the clients of a round answered: whose updates can be used, in the order of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.arrays import Array, joined
from fedcohort.client_records import ClientRecords
from fedcohort.errors import AggregationError, SelectorError
from fedcohort.updates import Layout, Rows, Update

log = getLogger("fedcohort")

#: Numbers by id, or in the order of ids.
Numbers = Mapping[Any, float] | ArrayLike
#: Updates by id, or rows in the order of ids.
Updates = Mapping[Any, Update] | Array | Sequence[Update]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Updates that can be used.

    Attributes
    ----------
    arrived
        Positions of the clients, in order of arrival.
    clients
        The same, sorted.
    places
        Where each of ``clients`` stands among the ids that were given.
    n_given
        How many ids were given.
    rows
        Their updates, one row each; None where nobody needs whole updates.
    kept
        What the memory keeps of each; None where it keeps nothing.
    """

    arrived: NDArray[np.int64]
    clients: NDArray[np.int64]
    places: NDArray[np.int64]
    n_given: int
    rows: Rows | None = None
    kept: NDArray[np.float32] | None = None

    @classmethod
    def read(
        cls,
        updates: Any,
        ids: Sequence[object],
        positions: NDArray[np.int64],
        records: ClientRecords,
        *,
        whole: bool,
    ) -> Answers:
        """Read the updates of these clients, by id or as rows in their order.

        Those that are not finite, also in the type that they are remembered in, are left out.
        Where whole updates are not needed, updates by id are read one at a time, or not at all.
        """
        places = np.argsort(positions, kind="stable")
        try:
            if isinstance(updates, Mapping):
                named = [ids[k] for k in places]
                rows, kept = _one_by_one(updates, named, records, whole=whole)
            else:
                rows, kept = _at_once(updates, places, records)
        except AggregationError as error:
            raise SelectorError(str(error)) from error
        good = np.ones(len(ids), dtype=bool)
        if rows is not None:
            good &= records.finite(rows.flat)
        if kept is not None:
            good &= np.isfinite(kept).all(axis=1)
        if not good.all():
            bad = [ids[k] for k in places[~good]]
            log.warning("updates of these clients are not finite, and count as lost: %.200s", bad)
        clients = positions[places][good]
        return cls(
            positions[np.isin(positions, clients)],
            clients,
            places[good],
            len(ids),
            None if rows is None else rows.taken(np.flatnonzero(good)),
            None if kept is None else kept[good],
        )

    @staticmethod
    def is_usable(update: Update, records: ClientRecords) -> bool:
        """Whether an update is finite, also in the type that it is remembered in."""
        try:
            layout = Layout.of("Selector", update)
            records.check(layout.size)
            row = layout.flat(update)[None]
        except AggregationError as error:
            raise SelectorError(str(error)) from error
        kept = records.shortened(row)
        return bool(records.finite(row)[0]) and (kept is None or bool(np.isfinite(kept).all()))

    @classmethod
    def none(cls) -> Answers:
        """Return the answers of nobody."""
        nobody = np.empty(0, dtype=np.int64)
        return cls(nobody, nobody, nobody, 0)

    def numbers(self, name: str, given: Numbers, ids: Sequence[object]) -> NDArray[np.float64]:
        """Return what these clients reported, in the order of ``clients``; NaN for nothing."""
        if isinstance(given, Mapping):
            return np.array([given.get(each, np.nan) for each in ids], dtype=np.float64)
        values = np.asarray(given, dtype=np.float64)
        if values.shape != (self.n_given,):
            raise SelectorError(
                f"Selector: losses and durations must be numbers by id, or one for each of the "
                f"{self.n_given} updates; got shape {values.shape} for {name}."
            )
        return np.asarray(values[self.places])


def _at_once(
    updates: Any, places: NDArray[np.int64], records: ClientRecords
) -> tuple[Rows | None, NDArray[np.float32] | None]:
    """Read rows, or a list of updates, and order them."""
    if len(places) == 0 and len(getattr(updates, "shape", ())) < 2 and len(updates) == 0:
        return None, None
    rows = Rows.of("Selector", updates, len(places)).taken(places)
    records.check(rows.layout.size)
    return rows, records.shortened(rows.flat)


def _one_by_one(
    updates: Mapping[Any, Update], named: list[Any], records: ClientRecords, *, whole: bool
) -> tuple[Rows | None, NDArray[np.float32] | None]:
    """Read updates by id: whole, or what the memory keeps of each."""
    if not named or not (whole or records.wants_updates):
        return None, None
    layout: Layout | None = None
    flat, kept, counters = [], [], []
    for each in named:
        update = updates[each]
        own = Layout.of("Selector", update)
        if layout is None:
            layout = own
            records.check(layout.size)
        if not layout.matches(own):
            raise SelectorError(
                f"Selector: updates must have the arrays of the others, {layout.shapes}; client "
                f"{each!r} sent {own.shapes}. Drop its update: it then counts as lost."
            )
        vector = layout.flat(update)
        short = records.shortened(vector[None])
        if short is not None:
            kept.append(short[0])
        if whole:
            flat.append(vector)
            counters.append(layout.counters(update))
    assert layout is not None  # for mypy: somebody is named
    rows = Rows(layout, joined(flat, stacked=True), counters) if whole else None
    return rows, np.stack(kept) if kept else None
