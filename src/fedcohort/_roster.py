"""The clients that a selector knows, by id: sizes, labels, and who is a member."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import brief
from fedcohort.errors import SelectorError
from fedcohort.population import UNLABELLED, Label, Population, checked_label

#: A client's id.
Id = str | int
#: Sizes as a list or an array (ids 0 ... n - 1), by id, or a population.
Clients = ArrayLike | Mapping[Any, int] | Population
#: Labels in the order of the clients, or by id.
Groups = Sequence[Label | None] | NDArray[Any] | Mapping[Any, Label | None]

#: Units of a client whose importance is not known.
NONE = -1


@final
class Roster:
    """Everyone that the selector knows, in the order of ids: numbers by value, then names.

    Clients that have left are kept, with size 0, so that a client's position changes only when
    others come or are forgotten.

    Attributes
    ----------
    ids
        In order; a ``range`` where they are 0 ... n - 1.
    sizes
        Samples (or units of importance), 0 for those that have left; shape (n_clients,).
    is_member
        Who has not left, shape (n_clients,).
    """

    def __init__(self, groups: Groups | None = None, importance: object = None) -> None:
        self.ids: Sequence[Id] = range(0)
        self.sizes: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.is_member: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._labels: tuple[Label, ...] | None = None
        self._units: NDArray[np.int64] | None = None
        #: Labels and units of importance of clients that have not come yet.
        self._coming_labels: dict[Id, Label] = {}
        self._coming_units: dict[Id, int] = {}
        if isinstance(groups, Mapping):
            self._labels = ()
            self._coming_labels = {checked_id(k): checked_label(v) for k, v in groups.items()}
            groups = None
        if isinstance(importance, Mapping):
            self._units = np.zeros(0, dtype=np.int64)
            units = Population(importance=list(importance.values())).sizes.tolist()
            owners = [checked_id(key) for key in importance]
            self._coming_units = dict(zip(owners, units, strict=True))
            importance = None
        #: Of the first clients, in their order.
        self._first_groups, self._first_importance = groups, importance
        self._position: dict[Id, int] | None = None
        self._population: Population | None = None

    @property
    def n_clients(self) -> int:
        """How many clients are known."""
        return len(self.ids)

    @property
    def population(self) -> Population:
        """Everyone that is known; who has left has size 0."""
        if self._population is None:
            self._population = Population.of_checked(self.sizes.copy(), self.ids, self._labels)
        return self._population

    def members(self) -> dict[Id, int]:
        """Return the members' sizes by id."""
        there = np.flatnonzero(self.is_member)
        return dict(zip(self.names(there), self.sizes[there].tolist(), strict=True))

    def set(
        self, clients: Clients, check: Callable[[Population], object] | None = None
    ) -> NDArray[np.int64] | None:
        """Let these be the members; where they cannot be, or ``check`` raises, nothing changes.

        An empty mapping leaves no member; everyone stays known.

        Returns
        -------
        Each known client's old position, -1 for a new client; None where all keep theirs.
        """
        trial = copy(self)
        order = None
        if isinstance(clients, Mapping) and not clients:
            trial._clear()
        else:
            order = trial._set(clients)
            if check is not None:
                check(trial.population)
        vars(self).update(vars(trial))
        return order

    def remove(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Forget clients; return the old positions of those that stay."""
        stays = np.ones(self.n_clients, dtype=bool)
        stays[self.positions(ids)] = False
        kept = np.flatnonzero(stays)
        self.sizes, self.is_member = self.sizes[kept], self.is_member[kept]
        self._move(_counted(self.names(kept)), kept)
        return kept

    def positions(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Return the clients' positions; refuse ids that are not known."""
        is_point = isinstance(ids, np.ndarray) and ids.ndim == 0
        if isinstance(ids, (str, bytes)) or is_point or not isinstance(ids, Iterable):
            raise SelectorError(
                f"Selector: needs a list of ids; got {brief(ids)}. Put a single id into a list."
            )
        if isinstance(self.ids, range):
            return _counted_positions(ids, len(self.ids))
        if self._position is None:
            self._position = {each: k for k, each in enumerate(self.ids)}
        position = self._position
        try:
            return np.array([position[each] for each in checked_ids(ids)], dtype=np.int64)
        except KeyError as error:
            raise _unknown(error.args[0]) from None

    def names(self, positions: NDArray[np.int64]) -> list[Id]:
        """Return the ids at these positions."""
        numbers: list[int] = positions.tolist()
        return [*numbers] if isinstance(self.ids, range) else [self.ids[k] for k in numbers]

    def presence(self, available: object) -> NDArray[np.bool_]:
        """Return which members are available, shape (n_clients,); None: all of them."""
        if available is None:
            return self.is_member
        is_point = isinstance(available, np.ndarray) and available.ndim == 0
        if isinstance(available, (str, bytes)) or is_point or not isinstance(available, Iterable):
            raise SelectorError(
                f"Selector: available must be ids, or a mask of {self.n_clients} booleans; got "
                f"{brief(available)}. Leave it out where everyone is available."
            )
        if isinstance(available, (list, tuple)) and _is_mask(available):
            available = np.array(available, dtype=bool)
        if isinstance(available, np.ndarray) and available.dtype == np.bool_:
            if available.shape != self.is_member.shape:
                raise SelectorError(
                    f"Selector: a mask of who is available needs one boolean for each of the "
                    f"{self.n_clients} clients; got shape {available.shape}. Pass ids instead."
                )
            return available & self.is_member
        there = np.zeros(self.n_clients, dtype=bool)
        there[self.positions(available)] = True
        return there & self.is_member

    def available(self, present: NDArray[np.bool_]) -> Population | None:
        """Return the clients with those that are away at size 0; None: nobody has samples."""
        sizes = self.sizes if present is self.is_member else np.where(present, self.sizes, 0)
        if not sizes.any():
            return None
        if sizes is self.sizes or np.array_equal(sizes, self.sizes):
            return self.population
        return Population.of_checked(sizes, self.ids, self._labels)

    def numbers(self, name: str, given: object) -> NDArray[np.float64]:
        """Return a signal, given by id or in order, as one number per client; NaN for none."""
        places, numbers = np.arange(self.n_clients), given
        if isinstance(given, Mapping):
            places, numbers = self.positions(given), list(given.values())
        values = np.full(self.n_clients, np.nan)
        try:
            values[places] = np.array(numbers, dtype=np.float64).reshape(places.shape)
        except (TypeError, ValueError) as error:
            raise SelectorError(
                f"Selector: the signal {name!r} must be numbers by id, or one for each of the "
                f"{self.n_clients} clients; got {type(given).__name__} ({error})."
            ) from error
        return values

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is to be kept, as arrays."""
        kept: dict[str, NDArray[Any]] = {"sizes": self.sizes, "is_member": self.is_member}
        if not isinstance(self.ids, range):
            kept["ids"] = _text(list(self.ids))
        if self._units is not None:
            kept["units"] = self._units
        if self._labels is not None:
            names = list(dict.fromkeys(self._labels))
            number = {label: k for k, label in enumerate(names)}
            kept["labels"] = _text(names)
            numbers = [number[label] for label in self._labels]
            kept["label_numbers"] = np.array(numbers, dtype=np.int64)
        for name, coming in (("labels", self._coming_labels), ("units", self._coming_units)):
            if coming:
                kept[f"coming_{name}"] = _text([list(coming), list(coming.values())])
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave.

        Labels and importances by id that this roster was made with count for clients that the
        state does not know, labels also for those that have none there.
        """
        restored = Roster()
        restored.sizes = state["sizes"].astype(np.int64)
        if state["is_member"].dtype != np.bool_:
            raise ValueError("members must be booleans")
        restored.is_member = state["is_member"].copy()
        restored.ids = _read(state["ids"]) if "ids" in state else range(len(restored.sizes))
        if "units" in state:
            restored._units = state["units"].astype(np.int64)
        if "labels" in state:
            names = [checked_label(label) for label in _read(state["labels"])]
            restored._labels = tuple(names[k] for k in state["label_numbers"].tolist())
        if "coming_labels" in state:
            restored._coming_labels = dict(zip(*_read(state["coming_labels"]), strict=True))
        if "coming_units" in state:
            restored._coming_units = dict(zip(*_read(state["coming_units"]), strict=True))
        for each, units in self._coming_units.items():
            if restored._units is not None and not restored._knows(each):
                restored._coming_units.setdefault(each, units)
        restored._label_more(self._coming_labels)
        restored._check()
        vars(self).update(vars(restored))

    def _check(self) -> None:
        """Refuse parts that do not fit each other with a ``ValueError``."""
        n = len(self.sizes)
        parts = [
            self.is_member,
            self.ids,
            *(p for p in (self._labels, self._units) if p is not None),
        ]
        if self.sizes.ndim != 1 or any(len(part) != n for part in parts):
            raise ValueError("sizes, ids, members, labels and shares must be of the same clients")
        if len(set(checked_ids(self.ids))) < n or list(self.ids) != _ordered(list(self.ids)):
            raise ValueError("ids must be distinct and in order")
        if self.sizes.min(initial=0) < 0 or float(self.sizes.sum(dtype=float)) >= 2**63:
            raise ValueError("sizes must not be negative, and sum to less than 2^63")

    def _label_more(self, labels: Mapping[Id, Label]) -> None:
        """Label clients that have no label, now or when they come."""
        known = [each for each in labels if self._knows(each)]
        bare = [
            (each, position)
            for each, position in zip(known, self.positions(known).tolist(), strict=True)
            if self._labels is None or self._labels[position] == UNLABELLED
        ]
        if bare:
            places = np.array([position for _, position in bare])
            self._put_labels(places, [labels[each] for each, _ in bare])
        for each in labels:
            if not self._knows(each):
                self._labels = self._labels or (UNLABELLED,) * self.n_clients
                self._coming_labels.setdefault(each, labels[each])

    def _clear(self) -> None:
        if self._first_groups is not None or self._first_importance is not None:
            raise SelectorError(
                "Selector: groups and importance in the order of the clients need clients; got "
                "none. Pass both by id."
            )
        self.sizes, self.is_member = np.zeros_like(self.sizes), np.zeros_like(self.is_member)
        self._population = None

    def _set(self, clients: Clients) -> NDArray[np.int64] | None:
        ids, population = _by_id(clients)
        every = self._every(ids)
        order = None if every == self.ids else self._old_positions(every)
        if order is not None:
            self._move(every, order)
        there = np.arange(len(ids)) if every == ids else self.positions(ids)
        self._take_labels(there, population.groups)
        self._take_units(ids, there)
        sizes = population.sizes if self._units is None else self._units[there]
        self.sizes, self.is_member = np.zeros(len(every), np.int64), np.zeros(len(every), bool)
        self.sizes[there], self.is_member[there] = sizes, True
        self._population = None
        return order

    def _every(self, ids: Sequence[Id]) -> Sequence[Id]:
        """Return the known clients and these, in order."""
        known = self.ids
        if isinstance(ids, range) and isinstance(known, range):
            return ids if len(ids) >= len(known) else known
        every = dict.fromkeys([*known, *ids])  # ids that are in order stay so, and sort fast
        return known if len(every) == len(known) else _counted(_ordered(list(every)))

    def _old_positions(self, every: Sequence[Id]) -> NDArray[np.int64]:
        if isinstance(every, range) and isinstance(self.ids, range):
            old = np.full(len(every), -1)
            old[: self.n_clients] = np.arange(self.n_clients)
            return old
        if not self.n_clients:
            return np.full(len(every), -1)
        position = {each: k for k, each in enumerate(self.ids)}
        return np.array([position.get(each, -1) for each in every], dtype=np.int64)

    def _move(self, every: Sequence[Id], order: NDArray[np.int64]) -> None:
        """Let these be the known clients; ``order`` gives their old positions, -1 for new ones."""
        if self._labels is not None:
            old = (*self._labels, UNLABELLED)  # the last is at -1
            self._labels = tuple(old[k] for k in order.tolist())
        if self._units is not None:
            self._units = np.append(self._units, NONE)[order]
        self.ids, self._position, self._population = every, None, None

    def _take_labels(self, there: NDArray[np.int64], given: tuple[Label, ...] | None) -> None:
        """Label clients: as the population says, or as the selector was made."""
        if self._first_groups is not None:
            one_each = np.ones(len(there), dtype=np.int64)
            given = Population(one_each, groups=self._first_groups).groups  # type: ignore[arg-type]
            self._first_groups = None
        elif self._coming_labels:
            come = [each for each in self._coming_labels if self._knows(each)]
            labels = [self._coming_labels[each] for each in come]
            self._put_labels(self.positions(come), labels)
            self._coming_labels = _without(self._coming_labels, come)
        if given is not None:
            self._put_labels(there, given)

    def _put_labels(self, there: NDArray[np.int64], labels: Sequence[Label]) -> None:
        if np.array_equal(there, np.arange(self.n_clients)):
            self._labels = tuple(labels)
            return
        every = list(self._labels or [UNLABELLED] * self.n_clients)
        for position, label in zip(there.tolist(), labels, strict=True):
            every[position] = label
        self._labels = tuple(every)

    def _take_units(self, ids: Sequence[Id], there: NDArray[np.int64]) -> None:
        """Give clients their units of importance; refuse those without any."""
        if self._first_importance is not None:
            shares: Any = self._first_importance
            units, self._first_importance = Population(importance=shares).sizes, None
            if len(units) != len(ids):
                raise SelectorError(
                    f"Selector: importance must be one share for each of the {len(ids)} clients; "
                    f"got {len(units)}. Give one each, or shares by id."
                )
            self._units = np.full(self.n_clients, NONE)
            self._units[there] = units
        if self._units is None:
            return
        new, self._units = there[self._units[there] == NONE], self._units.copy()
        for each, position in zip(self.names(new), new.tolist(), strict=True):
            if each not in self._coming_units:
                raise SelectorError(
                    f"Selector: importance has no entry for client {brief(each)}. Give sizes, "
                    f"or the importance of every client that may come."
                )
            self._units[position] = self._coming_units[each]
        self._coming_units = _without(self._coming_units, self.names(new))

    def _knows(self, each: Id) -> bool:
        if isinstance(self.ids, range):
            return each in self.ids
        if self._position is None:
            self._position = {known: k for k, known in enumerate(self.ids)}
        return each in self._position


def in_order_of_ids(population: Population) -> tuple[Population, NDArray[np.int64]]:
    """Return the clients in the order of ids, and where each of them stood, shape (n_clients,)."""
    if isinstance(population.ids, range):
        return population, np.arange(population.n_clients)
    roster = Roster()
    roster.set(population)
    place = {each: k for k, each in enumerate(population.ids)}
    places = np.array([place[each] for each in roster.population.ids], dtype=np.int64)
    return roster.population, places


def checked_id(value: object) -> Id:
    """Validate a client's id: a string or an integer."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise SelectorError(
        f"Selector: ids must be strings or integers; got {brief(value)}. Name clients by these."
    )


def checked_ids(values: Iterable[object]) -> list[Id]:
    """Validate clients' ids."""
    ids: list[Any] = list(values)
    # A million at once; numpy's numbers and subclasses of str one by one.
    return ids if set(map(type, ids)) <= {str, int} else [checked_id(each) for each in ids]


def _by_id(clients: Clients) -> tuple[Sequence[Id], Population]:
    """Return the clients' ids, and their population in the same order."""
    if isinstance(clients, Mapping):
        return checked_ids(clients), Population(list(clients.values()))
    population = clients if isinstance(clients, Population) else Population(clients)
    if isinstance(population.ids, range):
        return population.ids, population
    return checked_ids(population.ids), population


def _counted(ids: list[Id]) -> Sequence[Id]:
    """Return a range where the ids are 0 ... n - 1."""
    return range(len(ids)) if ids == list(range(len(ids))) else ids


def _counted_positions(ids: Iterable[object], n: int) -> NDArray[np.int64]:
    """Return ids as positions, where the known ids are 0 ... n - 1."""
    if isinstance(ids, range) and ids == range(min(len(ids), n)):
        return np.arange(len(ids))
    is_array = isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.ndim == 1
    given = ids if is_array else [checked_id(each) for each in ids]
    for each in given if not is_array else ():
        if not isinstance(each, int) or not 0 <= each < n:
            raise _unknown(each)
    found = np.array(given, dtype=np.int64)
    if len(found) and not 0 <= found.min() <= found.max() < n:
        raise _unknown(int(found[(found < 0) | (found >= n)][0]))
    return found


def _is_mask(values: Sequence[object]) -> bool:
    return len(values) > 0 and all(isinstance(each, (bool, np.bool_)) for each in values)


def _without(coming: dict[Id, Any], come: Iterable[Id]) -> dict[Id, Any]:
    gone = set(come)
    return {each: value for each, value in coming.items() if each not in gone} if gone else coming


def _ordered(ids: list[Id]) -> list[Id]:
    """Sort ids: numbers by value, also those written as text, then names."""
    kinds, plain = set(map(type, ids)), cast(list[str], ids)
    if kinds == {int} or (kinds == {str} and not any(map(str.isdecimal, plain))):
        return [*sorted(plain)]
    numbers: list[Id] = []
    names: list[str] = []
    for each in ids:
        if isinstance(each, str) and not (each.isdecimal() and each.isascii() and len(each) < 20):
            names.append(each)
        else:
            numbers.append(each)
    return [*sorted(numbers, key=_value), *sorted(names)]


def _value(each: Id) -> tuple[int, str]:
    return (each, "") if isinstance(each, int) else (int(each), each)


def _unknown(each: object) -> SelectorError:
    return SelectorError(
        f"Selector: {brief(each)} is not the id of a client that it knows. Add the client to "
        f"selector.clients first."
    )


def _text(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _read(array: NDArray[Any]) -> Any:
    return json.loads(array.tobytes())
