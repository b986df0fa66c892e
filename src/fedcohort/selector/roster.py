"""The clients that a selector knows, by id: sizes, labels, and who is a member."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._archive import json_array, json_value
from fedcohort._arguments import (
    Id,
    as_array,
    as_range,
    brief,
    checked_id,
    checked_ids,
    checked_list,
    is_list,
    named_values,
    ordered_ids,
)
from fedcohort.errors import SelectorError
from fedcohort.population import UNLABELLED, Label, Population, checked_labels

#: Sizes as a list or an array (ids 0 ... n - 1), by id, or a population.
Clients = ArrayLike | Mapping[Any, int] | Population
#: Labels in the order of the clients, or by id.
Groups = Sequence[Label | None] | NDArray[Any] | Mapping[Any, Label | None]

#: Units of a client whose importance is not known.
NONE = -1
#: Types in a list that is a mask.
BOOLEANS = {bool, np.bool_}


@final
class Roster:
    """Everyone that the selector knows, in the order of ids: numbers by value, then names.

    Clients that have left keep their position, with size 0.

    Parameters
    ----------
    order
        Clients in whose order ``groups`` and ``importance`` may be given. They become members only
        by :meth:`set`.
    groups, importance, chances
        Labels, shares, and chances to be there, also of clients that have not joined yet.
    """

    def __init__(
        self,
        order: Clients = (),
        groups: Groups | None = None,
        importance: Any = None,
        chances: Any = None,
    ) -> None:
        #: In order; a ``range`` where they are 0 ... n - 1.
        self.ids: Sequence[Id] = range(0)
        #: Samples (or units of importance), 0 for those that have left; shape (n_clients,).
        self.sizes: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        #: The clients that have not left, shape (n_clients,).
        self.is_member: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        #: Groups, units of importance and chances to be there by id; None if not given.
        self.labels: dict[Id, Label] | None = None
        self.units: dict[Id, int] | None = None
        self.chances: dict[Id, float] | None = None
        if groups is not None:
            labels, ids = values_and_ids("groups", groups, order)
            self.labels = dict(zip(ids, checked_labels(labels, len(ids)), strict=True))
        if importance is not None:
            shares, ids = values_and_ids("importance", importance, order)
            units = Population(importance=shares).sizes.tolist()
            if len(units) != len(ids):
                raise SelectorError(
                    f"Selector: importance must be one share for each of the {len(ids)} clients; "
                    f"got {len(units)}. Give one each, or shares by id."
                )
            self.units = dict(zip(ids, units, strict=True))
        if chances is not None:
            self.set_chances(chances, order)
        self._position: dict[Id, int] | None = None
        self._chance_of_each: NDArray[np.float64] | None = None
        self._population: Population | None = None

    @property
    def n_clients(self) -> int:
        """How many clients are known."""
        return len(self.ids)

    @property
    def population(self) -> Population:
        """Everyone that is known; who has left has size 0."""
        if self._population is None:
            self._population = Population.of_checked(self.sizes.copy(), self.ids, self._groups())
        return self._population

    def _groups(self) -> tuple[Label, ...] | None:
        labels = self.labels
        return None if labels is None else tuple(labels.get(k, UNLABELLED) for k in self.ids)

    def set_chances(self, chances: Any, order: Clients) -> None:
        """Set each client's chance to be there, by id or in this order; the others have none."""
        given, ids = values_and_ids("chances", chances, order)
        found = as_array(given)
        if found.ndim != 1 or (found.dtype.kind not in "iuf" and found.size):
            found = np.full(1, np.nan)
        if len(found) != len(ids) or not ((found > 0) & (found <= 1)).all():
            raise SelectorError(
                f"Selector: chances must be numbers above 0 and at most 1, by id or one for each "
                f"of the {len(ids)} clients; got {brief(chances)}. Leave out clients whose chance "
                f"is not known: they are not drawn."
            )
        self.chances = dict(zip(ids, found.astype(float).tolist(), strict=True))
        self._chance_of_each = None

    def chance_of_each(self) -> NDArray[np.float64] | None:
        """Return each client's chance to be there, NaN for none; None if no one has one."""
        if self.chances is None:
            return None
        if self._chance_of_each is None:
            each = [self.chances.get(each, np.nan) for each in self.ids]
            self._chance_of_each = np.array(each, dtype=np.float64)
        return self._chance_of_each

    def both(self, some: NDArray[np.bool_], others: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the members that are in both masks; no copy where one of them has all."""
        if others is self.is_member:
            return some
        return others if some is self.is_member else some & others

    def members(self) -> dict[Id, int]:
        """Return the members' sizes by id."""
        there = np.flatnonzero(self.is_member)
        return dict(zip(self.names(there), self.sizes[there].tolist(), strict=True))

    def set(
        self, clients: Clients, check: Callable[[Population], object] | None = None
    ) -> NDArray[np.int64] | None:
        """Replace the members; an error, also one of ``check``, changes nothing.

        An empty mapping leaves no member.

        Returns
        -------
        Each known client's old position, -1 for a new client; None if all keep theirs.
        """
        if isinstance(clients, Mapping) and not clients:
            self.sizes, self.is_member = np.zeros_like(self.sizes), np.zeros_like(self.is_member)
            self._population = None
            return None
        trial = copy(self)
        order = trial._set(clients)
        if check is not None:
            check(trial.population)
        vars(self).update(vars(trial))
        return order

    def remove(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Forget clients; return the old positions of those that stay."""
        stays = np.ones(self.n_clients, dtype=bool)
        stays[self.positions(ids)] = False
        gone, kept = set(self.names(np.flatnonzero(~stays))), np.flatnonzero(stays)
        if self.labels is not None:
            self.labels = {each: v for each, v in self.labels.items() if each not in gone}
        if self.units is not None:
            self.units = {each: v for each, v in self.units.items() if each not in gone}
        if self.chances is not None:
            self.chances = {each: v for each, v in self.chances.items() if each not in gone}
        self.ids, self._position = as_range(self.names(kept)), None
        self._chance_of_each = None
        self.sizes, self.is_member = self.sizes[kept], self.is_member[kept]
        self._population = None
        return kept

    def positions(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Return the clients' positions; refuse ids that are not known."""
        known, n = self.ids, self.n_clients
        if isinstance(known, range):
            if isinstance(ids, range) and ids == known[: len(ids)]:
                return np.arange(len(ids))
            # Subclasses do not count: a masked array hides some ids.
            if type(ids) is np.ndarray and ids.ndim == 1 and ids.dtype.kind in "iu":
                if len(bad := ids[(ids < 0) | (ids >= n)]):
                    raise _unknown(int(bad[0]))
                return ids.astype(np.int64)
        found = checked_ids(checked_list(ids))
        if invalid := [each for each in found if not self._knows(each)]:
            raise _unknown(invalid[0])
        places = found if isinstance(known, range) else [self._index[each] for each in found]
        return np.array(places, dtype=np.int64)

    def places(self, ids: Sequence[Id]) -> NDArray[np.int64]:
        """Return the clients' positions, -1 for those that are not known."""
        if isinstance(self.ids, range) and ids == self.ids:
            return np.arange(self.n_clients)
        known = [each if self._knows(each) else None for each in ids]
        if not isinstance(self.ids, range):
            known = [self._index.get(each) for each in ids]
        return np.array([-1 if place is None else place for place in known], dtype=np.int64)

    @property
    def _index(self) -> dict[Id, int]:
        """Positions by id; not needed if ids are positions."""
        if self._position is None:
            self._position = {each: k for k, each in enumerate(self.ids)}
        return self._position

    def _knows(self, each: Id) -> bool:
        if isinstance(self.ids, range):
            return isinstance(each, int) and 0 <= each < self.n_clients
        return each in self._index

    def names(self, positions: Iterable[int]) -> list[Id]:
        """Return the ids at these positions."""
        numbers = positions.tolist() if isinstance(positions, np.ndarray) else positions
        return [*numbers] if isinstance(self.ids, range) else [self.ids[k] for k in numbers]

    def presence(self, available: object, name: str = "available") -> NDArray[np.bool_]:
        """Return which members are among these, shape (n_clients,); None: all of them."""
        if available is None:
            return self.is_member
        if not is_list(available):
            raise SelectorError(
                f"Selector: {name} must be ids, or a mask of {self.n_clients} booleans; got "
                f"{brief(available)}. Leave it out if everyone is {name}."
            )
        if isinstance(available, (list, tuple)) and set(map(type, available)) <= BOOLEANS:
            available = np.array(available, dtype=bool) if available else ()
        if isinstance(available, np.ndarray) and available.dtype == np.bool_:
            if available.shape != self.is_member.shape:
                raise SelectorError(
                    f"Selector: a mask of who is {name} needs one boolean for each of the "
                    f"{self.n_clients} clients; got shape {available.shape}. Pass ids instead."
                )
            return available & self.is_member
        there = np.zeros(self.n_clients, dtype=bool)
        there[self.positions(available)] = True
        return there & self.is_member

    def available(self, present: NDArray[np.bool_]) -> Population | None:
        """Return the clients, absent ones with size 0; None if none with samples is present."""
        sizes = self.sizes if present is self.is_member else np.where(present, self.sizes, 0)
        if not sizes.any():
            return None
        if sizes is self.sizes or np.array_equal(sizes, self.sizes):
            return self.population
        return Population.of_checked(sizes, self.ids, self.population.groups)

    def numbers(
        self, name: str, given: object, order: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return one number per client, NaN for none; by id, or in this order of positions."""
        places, numbers = np.arange(self.n_clients) if order is None else order, given
        n = len(places)
        if isinstance(given, Mapping):
            places, numbers = self.positions(given), list(given.values())
        values = np.full(self.n_clients, np.nan)
        try:
            found = np.asarray(numbers)
            if found.dtype.kind == "c":
                raise TypeError("complex numbers")
            values[places] = found.astype(np.float64).reshape(places.shape)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise SelectorError(
                f"Selector: {name!r} must be numbers by id, or one for each of the {n} clients; "
                f"got {type(given).__name__} ({str(error)[:80]}). Give NaN to a client without one."
            ) from error
        return values

    def signals(self, given: object) -> dict[str, NDArray[np.float64]]:
        """Return signals by name, one number per client each."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise SelectorError(
                f"Selector: signals must be numbers by the signal's name; got {brief(given)}. "
                f"Pass for example {{'loss': {{'Nice': 0.5}}}}."
            )
        return {name: self.numbers(name, values) for name, values in given.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is saved, as arrays."""
        kept: dict[str, NDArray[Any]] = {"sizes": self.sizes, "is_member": self.is_member}
        if not isinstance(self.ids, range):
            kept["ids"] = json_array(list(self.ids))
        if self.units is not None:
            kept["units"] = np.array([self.units.get(k, NONE) for k in self.ids], dtype=np.int64)
        if self.labels is not None:
            labels = self._groups() or ()
            number = {label: k for k, label in enumerate(dict.fromkeys(labels))}
            kept["labels"] = json_array(list(number))
            kept["label_numbers"] = np.array([number[label] for label in labels], dtype=np.int64)
        if (chances := self.chance_of_each()) is not None:
            kept["chances"] = chances
        by_name = {"labels": self.labels, "units": self.units, "chances": self.chances}
        for name, by_id in by_name.items():
            if coming := self._coming(by_id):
                kept[f"coming_{name}"] = json_array([list(coming), list(coming.values())])
        return kept

    def _coming(self, by_id: Mapping[Id, Any] | None) -> dict[Id, Any]:
        """Return the entries of clients that have not joined yet."""
        return {k: v for k, v in (by_id or {}).items() if not self._knows(k)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave.

        This roster's labels and importances of clients that have not joined yet count if the
        state has none.
        """
        restored = Roster()
        if state["sizes"].dtype.kind not in "iu":
            raise ValueError("sizes must be integers")
        restored.sizes = state["sizes"].astype(np.int64)
        restored.is_member = state["is_member"].copy()
        restored.ids = json_value(state["ids"]) if "ids" in state else range(len(restored.sizes))
        restored._check(state)
        if "labels" in state:
            known = json_value(state["labels"])
            labels = [known[k] for k in state["label_numbers"].tolist()]
            restored.labels = _by_id_of(
                state, "labels", restored.ids, checked_labels(labels, len(labels))
            )
        if "units" in state:
            units = state["units"].astype(np.int64).tolist()
            restored.units = self._coming(self.units)
            restored.units |= _by_id_of(state, "units", restored.ids, units)
        if "chances" in state:
            chances = state["chances"].astype(np.float64)
            if not (np.isnan(chances) | ((chances > 0) & (chances <= 1))).all():
                raise ValueError("chances must be above 0 and at most 1")
            own = _by_id_of(state, "chances", restored.ids, chances.tolist())
            restored.chances = self._coming(self.chances)
            restored.chances |= {each: chance for each, chance in own.items() if chance == chance}
        if more := self._coming(self.labels):
            kept = {k: v for k, v in (restored.labels or {}).items() if v != UNLABELLED}
            restored.labels = {**more, **kept}
        vars(self).update(vars(restored))

    def _check(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Refuse parts that do not fit each other with a ``ValueError``."""
        n = len(self.sizes)
        parts = [self.is_member, self.ids]
        parts += [state[name] for name in ("label_numbers", "units", "chances") if name in state]
        if self.is_member.dtype != np.bool_:
            raise ValueError("members must be booleans")
        if self.sizes.ndim != 1 or any(len(part) != n for part in parts):
            raise ValueError("sizes, ids, members, labels and shares must be of the same clients")
        if len(set(checked_ids(self.ids))) < n or list(self.ids) != ordered_ids(list(self.ids)):
            raise ValueError("ids must be distinct and in order")
        if self.sizes.min(initial=0) < 0 or float(self.sizes.sum(dtype=float)) >= 2**63:
            raise ValueError("sizes must not be negative, and sum to less than 2^63")

    def _set(self, clients: Clients) -> NDArray[np.int64] | None:
        ids, population = _by_id(clients)
        if population.groups is not None:
            self.labels = {**(self.labels or {}), **dict(zip(ids, population.groups, strict=True))}
        order = self._grow(ids)
        there = np.arange(len(ids)) if self.ids == ids else self.positions(ids)
        self.sizes = np.zeros(self.n_clients, np.int64)
        self.is_member = np.zeros(self.n_clients, bool)
        self.sizes[there], self.is_member[there] = self._sizes_of(ids, population), True
        self._population = None
        return order

    def _sizes_of(self, ids: Sequence[Id], population: Population) -> ArrayLike:
        """Return the clients' units of importance, or their sizes without units."""
        if self.units is None:
            return population.sizes
        if missing := [each for each in ids if each not in self.units]:
            raise SelectorError(
                f"Selector: importance has no entry for client {brief(missing[0])}. Give sizes, "
                f"or the importance of every client that may join."
            )
        return [self.units[each] for each in ids]

    def _grow(self, ids: Sequence[Id]) -> NDArray[np.int64] | None:
        """Add these clients; return all old positions, None if all keep theirs."""
        known = self.ids
        if isinstance(ids, range) and isinstance(known, range):
            every: Sequence[Id] = max(ids, known, key=len)
        else:
            every = [*dict.fromkeys([*known, *ids])]
        if len(every) == len(known):
            return None
        if isinstance(every, list):  # ids that are in order stay so, and sort fast
            every = as_range(ordered_ids(every))
        self.ids, self._position, self._chance_of_each = every, None, None
        order = np.full(len(every), -1)
        order[self.positions(known)] = np.arange(len(known))
        return order


def values_and_ids(name: str, given: Any, clients: Clients) -> tuple[Any, Sequence[Id]]:
    """Return values, and the ids that they belong to: their keys, or those of the clients."""
    given = named_values(given)
    if isinstance(given, Mapping):
        return list(given.values()), [checked_id(each) for each in given]
    if isinstance(clients, Mapping) and not clients:
        raise SelectorError(
            f"Selector: {name} in the order of the clients needs clients; got none. Pass it by id."
        )
    return given, _by_id(clients)[0]


def _by_id(clients: Clients) -> tuple[Sequence[Id], Population]:
    """Return the clients' ids, and their population in the same order."""
    if isinstance(clients, Mapping):
        return checked_ids(clients), Population(list(clients.values()))
    population = clients if isinstance(clients, Population) else Population(clients)
    if isinstance(population.ids, range):
        return population.ids, population
    return checked_ids(population.ids), population


def _by_id_of(
    state: Mapping[str, NDArray[Any]], name: str, ids: Sequence[Id], values: Sequence[Any]
) -> dict[Id, Any]:
    """Return values by id, with those of clients that have not joined yet."""
    coming = json_value(state[f"coming_{name}"]) if f"coming_{name}" in state else ((), ())
    return {**dict(zip(*coming, strict=True)), **dict(zip(ids, values, strict=True))}


def _unknown(each: object) -> SelectorError:
    return SelectorError(
        f"Selector: {brief(each)} is not the id of a client that it knows. Add the client to "
        f"selector.clients first."
    )
