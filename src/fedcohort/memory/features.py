"""Given features: a few numbers that are known about each client before it trains."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._archive import json_array, json_value
from fedcohort._arguments import Id, as_array, brief, is_list
from fedcohort._updates import reordered
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.streams import Stream, stream

#: Features of a client at most; more are projected to this number.
MOST_FEATURES = 63
#: Standardised features are clipped to this size.
FEATURE_CLIP = 10.0
#: How features are given, for errors.
WAY_OUT = "Give numbers or text, the same columns for every client; None where one is not known."

#: The name of a column.
Name = str | int
Floats = NDArray[np.float64]


def rows_by_id(given: Any) -> Any:
    """Return a pandas object as rows: by id if its index has ids, as a list if it only counts.

    Anything else is returned as it is.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(given, (pandas.Series, pandas.DataFrame)):
        return given
    ids, plain = given.index.tolist(), given.astype(object).where(given.notna(), None)
    rows = plain.to_dict("records") if plain.ndim == 2 else plain.tolist()
    if ids == list(range(len(ids))):
        return rows
    if len(set(ids)) < len(ids):
        twice = next(each for k, each in enumerate(ids) if each in ids[:k])
        raise MemoryOfUpdatesError(
            f"Regression: the index of features must name each client once; got {brief(twice)} "
            f"twice. Drop one of the rows."
        )
    return dict(zip(ids, rows, strict=True))


def projection(n: int, seed: int) -> Floats | None:
    """Return a seeded map of n numbers to ``MOST_FEATURES``; None if they are few enough."""
    if n <= MOST_FEATURES:
        return None
    signs = stream(seed, use=Stream.FEATURES).integers(0, 2, (n, MOST_FEATURES))
    return np.asarray((2.0 * signs - 1) / np.sqrt(n))


class Encoded(NamedTuple):
    """The features of all clients, and how they follow from those of the encoding before.

    With a leading 1, feature j is ``factor[j]`` times the old feature ``source[j]`` plus
    ``shift[j]``; it has no old one if ``source[j]`` is -1.
    """

    #: Shape (n_clients, n_features); and which clients have some.
    values: Floats
    known: NDArray[np.bool_]
    source: NDArray[np.int64]
    factor: Floats
    shift: Floats


@final
class FeatureTable:
    """The features of all clients by position, as they were given.

    :meth:`encoded` standardises numbers and makes an indicator of each category of text. A value
    that is missing counts as the mean.
    """

    def __init__(self, seed: int, n_clients: int = 0) -> None:
        self._seed = seed
        #: The columns, with the categories of text; None for numbers.
        self._columns: dict[Name, list[str] | None] = {}
        #: A number, or the position of a category, per client and column; NaN if missing.
        self._given: Floats = np.zeros((n_clients, 0))
        #: Rows of clients that have not joined yet.
        self.coming: dict[Id, Floats] = {}
        #: Mean and standard deviation of each encoded column, by name and category.
        self._fit: dict[tuple[Name, str | None], tuple[float, float]] = {}
        #: Whether something has changed since the last encoding.
        self.has_changed = False

    @property
    def names(self) -> list[Name]:
        """The names of what was given; none if nothing was."""
        return list(self._columns)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which clients have a feature, shape (n_clients,)."""
        return np.asarray(np.isfinite(self._given).any(axis=1))

    @property
    def n_features(self) -> int:
        """The number of features of a client in the last encoding."""
        return min(len(self._fit), MOST_FEATURES)

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return self._given.nbytes + sum(row.nbytes for row in self.coming.values())

    def set(self, ids: Sequence[Id], given: object, places: NDArray[np.int64]) -> None:
        """Take features in the order of ``ids``; replace those of the same clients.

        ``places`` are their positions, -1 for clients that are not known.
        """
        if not len(ids):
            return
        columns, numbers = dict(self._columns), {}
        there = np.isfinite(self._all_rows()).any(axis=0)
        used = {[*columns][k] for k in np.flatnonzero(there).tolist()}
        for name, values in _columns(given, len(ids)).items():
            columns[name], numbers[name] = self._coded(name, values, name in used)
        rows = np.full((len(ids), len(columns)), np.nan)
        for k, name in enumerate(columns):
            if name in numbers:
                rows[:, k] = numbers[name]
        self._columns, self._given = columns, self._widened(self._given, len(columns))
        self._given[places[places >= 0]] = rows[places >= 0]
        for k in np.flatnonzero(places < 0).tolist():
            self.coming[ids[k]] = rows[k].copy()
        self.has_changed = True

    def _coded(
        self, name: Name, values: Sequence[object], is_used: bool
    ) -> tuple[list[str] | None, Floats]:
        """Return the categories of a column, and the values as numbers; NaN if missing.

        ``is_used``: a client has a value of the column, so that its kind cannot change.
        """
        categories = self._columns[name] if is_used else None
        if categories is None and isinstance(values, np.ndarray):
            numbers = values.astype(np.float64)
            if (infinite := np.isinf(numbers)).any():
                raise _not_alike(name, values[infinite][0])
            return None, numbers
        known = [value for value in values if not _is_missing(value)]
        texts = {value for value in known if isinstance(value, str)}
        if categories is None and not texts:
            return None, np.array([_number(name, value) for value in values], dtype=np.float64)
        odd = [value for value in known if not isinstance(value, str)]
        if categories is None and is_used:
            odd += texts
        if odd:
            raise _not_alike(name, odd[0])
        categories = [*(categories or []), *sorted(texts - set(categories or []))]
        codes = {category: float(k) for k, category in enumerate(categories)}
        return categories, np.array(
            [codes.get(v, np.nan) if isinstance(v, str) else np.nan for v in values]
        )

    def _widened(self, rows: Floats, width: int) -> Floats:
        if rows.shape[1] == width:
            return rows
        more = np.full((len(rows), width - rows.shape[1]), np.nan)
        return np.concatenate([rows, more], axis=1)

    def _all_rows(self) -> Floats:
        """Return the rows of all clients, those that have not joined yet at the end."""
        width = len(self._columns)
        rows = [self._given, *(row[None] for row in self.coming.values())]
        return np.concatenate([self._widened(each, width) for each in rows])

    def encoded(self) -> Encoded:
        """Encode all features, by the clients that are known so far, and remember how."""
        keys: list[tuple[Name, str | None]] = []
        columns: list[Floats] = []
        for (name, categories), given in zip(self._columns.items(), self._given.T, strict=True):
            if categories is None:
                keys.append((name, None))
                columns.append(given)
                continue
            keys += [(name, category) for category in categories]
            missing = np.isnan(given)
            columns += [np.where(missing, np.nan, given == k) for k in range(len(categories))]
        # In the order of memory that a saved array has: sums then round the same.
        numbers = np.ascontiguousarray(np.array(columns).reshape(len(keys), len(self._given)).T)
        present = np.isfinite(numbers)
        n = np.maximum(present.sum(axis=0), 1)
        with np.errstate(over="ignore", invalid="ignore"):  # such columns become 0
            centre = np.where(present, numbers, 0.0).sum(axis=0) / n
            deviations = np.where(present, numbers - centre, 0.0)
            scale = np.sqrt((deviations**2).sum(axis=0) / n)
            varies = (scale > 1e-12 * np.abs(centre)) & np.isfinite(scale)
            # Divide by the scale, and never multiply by its inverse: a column that is encoded
            # again has the factor 1 exactly.
            divisor = np.where(varies, scale, np.inf)
            values = np.nan_to_num(deviations / divisor).clip(-FEATURE_CLIP, FEATURE_CLIP)
        previous, previous_place = self._fit, {key: 1 + k for k, key in enumerate(self._fit)}
        fit = np.nan_to_num([centre, np.where(varies, scale, 0.0)])
        self._fit = dict(zip(keys, map(tuple, fit.T.tolist()), strict=True))
        self.has_changed = False
        known, mixed = np.asarray(present.any(axis=1)), projection(len(keys), self._seed)
        if mixed is not None or len(previous) > MOST_FEATURES:
            values = values if mixed is None else values @ mixed
            n_same = values.shape[1] if list(previous) == keys else 0
            source = np.r_[0 : 1 + n_same, np.full(values.shape[1] - n_same, -1)]
            return Encoded(values, known, source, 1.0 * (source >= 0), 0.0 * source)
        previous_fit = np.array([previous.get(key, (0.0, 0.0)) for key in keys]).reshape(-1, 2).T
        source = np.array([0, *(previous_place.get(key, -1) for key in keys)])
        is_old = (source[1:] > 0) & varies
        shift = (
            np.subtract(previous_fit[0], fit[0], out=np.zeros(len(keys)), where=is_old) / divisor
        )
        return Encoded(values, known, source, np.r_[1, previous_fit[1] / divisor], np.r_[0, shift])

    def rearrange(self, order: NDArray[np.int64], ids: Sequence[Id]) -> None:
        """Move to other positions: ``order`` has each client's old one, -1 for a new client."""
        n_before, self._given = len(self._given), reordered(self._given, order, fill=np.nan)
        for place in np.flatnonzero(order < 0).tolist() if self.coming else ():
            if (row := self.coming.pop(ids[place], None)) is not None:
                self._given[place, : len(row)] = row
        self.has_changed = bool(self._columns)
        if not len(order):
            self._fit = {}
        if np.count_nonzero(order >= 0) < n_before:
            self._drop_unused()

    def forget(self, ids: Iterable[Id]) -> None:
        """Erase clients that have not joined yet."""
        for each in set(ids):
            del self.coming[each]
            self.has_changed = True
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop categories that no client has: they could reveal who was forgotten."""
        rows = self._all_rows()
        for k, (name, categories) in enumerate(self._columns.items()):
            if categories is not None:
                is_there = np.isfinite(rows[:, k])
                used = np.unique(rows[is_there, k])
                rows[is_there, k] = np.searchsorted(used, rows[is_there, k])
                self._columns[name] = [categories[int(code)] for code in used]
        n = len(self._given)
        self._given, self.coming = rows[:n], dict(zip(self.coming, rows[n:], strict=True))

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is saved, as arrays; nothing if no features were given."""
        if not self._columns:
            return {}
        rows = self._all_rows()
        head = {
            "columns": [*self._columns.items()],
            "coming": [*self.coming],
            "fit": [[*key, *fit] for key, fit in self._fit.items()],
            "has_changed": self.has_changed,
        }
        values, there = np.nan_to_num(rows, nan=0.0), np.isfinite(rows)
        return {"head": json_array(head), "values": values, "there": there}

    @classmethod
    def of_state(cls, state: Mapping[str, NDArray[Any]], n_clients: int, seed: int) -> FeatureTable:
        """Return the features that :meth:`state` gave; refuse others with a ``ValueError``."""
        table = cls(seed, n_clients)
        if not state:
            return table
        head, values, there = json_value(state["head"]), state["values"], state["there"]
        table._columns = dict(head["columns"])
        shape = (n_clients + len(head["coming"]), len(table._columns))
        if there.dtype != np.bool_ or there.shape != shape or values.shape != shape:
            raise ValueError("features must have one row per client")
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise ValueError("features must be finite")
        rows = np.where(there, values, np.nan)
        table._given, coming = rows[:n_clients], rows[n_clients:]
        table.coming = dict(zip(head["coming"], coming, strict=True))
        table._fit = {(name, text): (mean, by) for name, text, mean, by in head["fit"]}
        table.has_changed = bool(head["has_changed"])
        return table


def _is_missing(value: object) -> bool:
    if type(value) is str:
        return False
    if value is None or value is np.ma.masked:
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _number(name: Name, value: object) -> float:
    """Return a value as a float; NaN if it is missing."""
    if _is_missing(value):
        return np.nan
    try:
        number = float(value)  # type: ignore[arg-type]  # what is no number raises
    except (TypeError, ValueError, OverflowError):
        number = np.inf
    if not np.isfinite(number) or isinstance(value, (str, bytes)):
        raise _not_alike(name, value)
    return number


def _not_alike(name: Name, value: object) -> MemoryOfUpdatesError:
    return MemoryOfUpdatesError(
        f"Regression: feature {brief(name)} must be finite numbers for every client, or text for "
        f"every client; got {brief(value)}. {WAY_OUT}"
    )


def _columns(given: object, n: int) -> dict[Name, Sequence[object]]:
    """Return each feature's values in the order of the clients, by name."""
    if isinstance(given, np.ma.MaskedArray):
        given = given.tolist()  # None where a value is masked
    numbers = as_array(given) if not isinstance(given, list) else np.empty(0)
    if numbers.ndim in (1, 2) and len(numbers) == n and numbers.dtype.kind in "iufb":
        return dict(enumerate(numbers.reshape(n, -1).T))
    if not is_list(given) or len(rows := list(given)) != n:
        raise MemoryOfUpdatesError(
            f"Regression: features must be one row for each of the {n} clients; got "
            f"{brief(given)}. Pass an array of shape ({n}, k), or rows by id."
        )
    if set(map(type, rows)) <= {str, np.str_, int, float, bool}:
        return {0: rows}
    named = [_named(row) for row in rows]
    names = list(dict.fromkeys(name for row in named for name in row))
    return {name: [row.get(name) for row in named] for name in names}


def _named(row: object) -> Mapping[Name, object]:
    """Return a client's features by name; by number if they have none."""
    if row is None or row is np.ma.masked:
        return {}
    if isinstance(row, Mapping):
        for name in row:
            if not isinstance(name, (str, int)):
                raise MemoryOfUpdatesError(
                    f"Regression: names of features must be text or integers; got {brief(name)}. "
                    f"{WAY_OUT}"
                )
        return row
    if isinstance(row, (str, bool, int, float, np.generic)):
        return {0: row}
    if is_list(row):
        values: Iterable[object] = row.tolist() if isinstance(row, np.ndarray) else row
        return dict(enumerate(values))
    raise MemoryOfUpdatesError(
        f"Regression: a client's features must be numbers or text, in a list or by name; got "
        f"{brief(row)}. {WAY_OUT}"
    )
