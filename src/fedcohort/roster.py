"""The clients that a selector knows, by id: sizes, labels, and who is a member."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import SelectorError
from fedcohort.population import UNLABELLED, Label, Population, checked_label

#: A client's id.
Id = str | int
#: Sizes as a list or an array (ids 0 ... n - 1), by id, or a population.
Clients = ArrayLike | Mapping[Any, int] | Population
#: Labels in the order of the clients, or by id.
Groups = Sequence[Label | None] | NDArray[Any] | Mapping[Any, Label | None]


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
        self._position: dict[Id, int] | None = None
        self._groups, self._importance = groups, importance
        self._units_of: dict[Id, int] | None = None
        #: Labels by id, also of clients that have not come yet; or one per client, in order.
        self._label_of: dict[Id, Label] | None = None
        self._labels: tuple[Label, ...] | None = None
        self._population: Population | None = None

    @property
    def n_clients(self) -> int:
        """How many clients are known."""
        return len(self.ids)

    @property
    def has_samples(self) -> bool:
        """Whether there is a member that can be drawn."""
        return bool(self.sizes.any())

    @property
    def population(self) -> Population:
        """Everyone that is known; who has left has size 0."""
        if self._population is None:
            self._population = Population.of_checked(self.sizes.copy(), self.ids, self.groups)
        return self._population

    @property
    def groups(self) -> tuple[Label, ...] | None:
        """The label of everyone that is known, in order; None where no client has one."""
        if self._label_of is not None:
            return tuple(self._label_of.get(each, UNLABELLED) for each in self.ids)
        return self._labels

    def members(self) -> dict[Id, int]:
        """Return the members' sizes by id."""
        return {self.ids[k]: int(self.sizes[k]) for k in np.flatnonzero(self.is_member).tolist()}

    def set(self, clients: Clients) -> NDArray[np.int64] | None:
        """Let these be the members.

        Returns
        -------
        Each known client's old position, -1 for a new client; None where all keep theirs.
        """
        ids, population = _by_id(clients)
        sizes = population.sizes if self._importance is None else self._units(ids)
        if self._groups is not None:
            self._set_groups(ids)
        elif population.groups is not None:
            self._label_of = (self._label_of or {}) | dict(zip(ids, population.groups, strict=True))
        known = self.ids
        if isinstance(ids, range) and isinstance(known, range):
            every: Sequence[Id] = ids if len(ids) >= len(known) else known
        else:
            every = _ordered({*known, *ids})
        order = None if every == known else self._old_positions(every)
        self.ids, self._position, self._population = every, None, None
        there = self.positions(ids)
        self.sizes = np.zeros(len(every), dtype=np.int64)
        self.sizes[there] = sizes
        self.is_member = np.zeros(len(every), dtype=bool)
        self.is_member[there] = True
        return order

    def clear(self) -> None:
        """Let nobody be a member; everyone stays known."""
        self.sizes, self.is_member = np.zeros_like(self.sizes), np.zeros_like(self.is_member)
        self._population = None

    def remove(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Forget clients; return the old positions of those that stay."""
        stays = np.ones(self.n_clients, dtype=bool)
        stays[self.positions(ids)] = False
        kept = np.flatnonzero(stays)
        labels = self.groups
        if labels is not None and self._label_of is None:
            self._label_of = dict(zip(self.ids, labels, strict=True))
        self.ids = [self.ids[k] for k in kept.tolist()]
        if self._label_of is not None:
            self._label_of = {each: self._label_of[each] for each in self.ids}
        self.sizes, self.is_member = self.sizes[kept], self.is_member[kept]
        self._position, self._population = None, None
        return kept

    def positions(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Return the clients' positions; refuse ids that are not known."""
        if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and isinstance(self.ids, range):
            found = ids.astype(np.int64)
            if len(found) and not 0 <= found.min() <= found.max() < self.n_clients:
                raise _unknown(ids[(found < 0) | (found >= self.n_clients)][0])
            return found
        if isinstance(ids, range) and ids == range(len(ids)) == self.ids[: len(ids)]:
            return np.arange(len(ids))
        if self._position is None:
            self._position = {each: k for k, each in enumerate(self.ids)}
        position, each = self._position, None
        try:
            return np.array([position[each := checked_id(one)] for one in ids], dtype=np.int64)
        except KeyError:
            raise _unknown(each) from None

    def names(self, positions: NDArray[np.int64]) -> list[Id]:
        """Return the ids at these positions."""
        if isinstance(self.ids, range):
            return [int(each) for each in positions.tolist()]
        return [self.ids[k] for k in positions.tolist()]

    def presence(self, available: object) -> NDArray[np.bool_]:
        """Return which members are available, shape (n_clients,); None: all of them."""
        if available is None:
            return self.is_member
        if isinstance(available, (str, bytes)) or not isinstance(available, Iterable):
            raise SelectorError(
                f"Selector: available must be ids, or a mask of {self.n_clients} booleans; got "
                f"{available!r}. Leave it out where everyone is available."
            )
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

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is to be kept, as arrays."""
        kept: dict[str, NDArray[Any]] = {"sizes": self.sizes, "is_member": self.is_member}
        if self._units_of is not None:
            kept["units_of"] = _text([list(self._units_of), list(self._units_of.values())])
        if not isinstance(self.ids, range):
            kept["ids"] = _text(list(self.ids))
        if self._label_of is not None:
            kept["label_of"] = _text([list(self._label_of), list(self._label_of.values())])
        elif (labels := self.groups) is not None:
            names = list(dict.fromkeys(labels))
            number = {label: k for k, label in enumerate(names)}
            kept["labels"] = _text(names)
            kept["label_numbers"] = np.array([number[label] for label in labels])
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave."""
        self.sizes = state["sizes"].astype(np.int64)
        self.is_member = state["is_member"].astype(bool)
        self.ids = _read(state["ids"]) if "ids" in state else range(len(self.sizes))
        self._label_of, self._labels, self._groups = None, None, None
        if "label_of" in state:
            self._label_of = dict(zip(*_read(state["label_of"]), strict=True))
        elif "labels" in state:
            names = _read(state["labels"])
            self._labels = tuple(names[k] for k in state["label_numbers"].tolist())
        if "units_of" in state:
            self._units_of = dict(zip(*_read(state["units_of"]), strict=True))
            self._importance = self._units_of
        self._position, self._population = None, None

    def _units(self, ids: Sequence[Id]) -> NDArray[np.int64]:
        """Return the units of importance of these clients."""
        if self._units_of is None:
            by_id = isinstance(self._importance, Mapping)
            shares: Any = list(self._importance.values()) if by_id else self._importance  # type: ignore[attr-defined]
            units = Population(importance=shares).sizes
            owners = [checked_id(key) for key in self._importance] if by_id else ids  # type: ignore[attr-defined]
            if len(owners) != len(units):
                raise SelectorError(
                    f"Selector: importance must be one share for each of the {len(owners)} "
                    f"clients; got {len(units)}. Give one each, or shares by id."
                )
            self._units_of = dict(zip(owners, units.tolist(), strict=True))
        if strange := [each for each in ids if each not in self._units_of]:
            raise SelectorError(
                f"Selector: importance has no entry for client {strange[0]!r}. Give sizes instead, "
                f"or the importance of every client that may come."
            )
        return np.array([self._units_of[each] for each in ids], dtype=np.int64)

    def _old_positions(self, every: Sequence[Id]) -> NDArray[np.int64]:
        if isinstance(every, range):
            old = np.full(len(every), -1)
            old[: self.n_clients] = np.arange(self.n_clients)
            return old
        self._position = {each: k for k, each in enumerate(self.ids)}
        return np.array([self._position.get(each, -1) for each in every], dtype=np.int64)

    def _set_groups(self, ids: Sequence[Id]) -> None:
        """Take the labels that the selector was made with, once the clients are known."""
        groups, self._groups = self._groups, None
        if isinstance(groups, Mapping):
            self._label_of = {checked_id(key): checked_label(v) for key, v in groups.items()}
            return
        labels = Population([1] * len(ids), groups=groups).groups  # type: ignore[arg-type]
        assert labels is not None  # for mypy: groups were given
        if isinstance(ids, range):
            self._labels = labels
        else:
            self._label_of = dict(zip(ids, labels, strict=True))


def checked_id(value: object) -> Id:
    """Validate a client's id: a string or an integer."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise SelectorError(
        f"Selector: ids must be strings or integers; got {value!r}. Name clients by one of these."
    )


def _by_id(clients: Clients) -> tuple[Sequence[Id], Population]:
    """Return the clients' ids, and their population in the same order."""
    if isinstance(clients, Mapping):
        ids = [checked_id(each) for each in clients]
        return ids, Population(list(clients.values()))
    population = clients if isinstance(clients, Population) else Population(clients)
    if isinstance(population.ids, range):
        return population.ids, population
    return [checked_id(each) for each in population.ids], population


def _ordered(ids: Iterable[Id]) -> Sequence[Id]:
    """Sort ids: numbers by value, also those written as text, then names."""
    found = sorted(ids, key=_order)
    return range(len(found)) if found == list(range(len(found))) else found


def _order(each: Id) -> tuple[int, int, str]:
    if isinstance(each, int):
        return (0, each, "")
    is_number = each.isascii() and each.isdecimal() and len(each) < 20
    return (0, int(each), each) if is_number else (1, 0, each)


def _unknown(each: object) -> SelectorError:
    return SelectorError(
        f"Selector: {each!r} is not the id of a client that it knows. Add the client to "
        f"selector.clients first."
    )


def _text(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _read(array: NDArray[Any]) -> Any:
    return json.loads(array.tobytes())
