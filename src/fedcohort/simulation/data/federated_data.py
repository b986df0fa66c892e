"""A data set divided among clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Rng, checked_rng
from fedcohort._display import short_repr
from fedcohort.errors import DataError
from fedcohort.population import Population
from fedcohort.simulation.data.datasets import Dataset, checked_arrays

Indices = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True, eq=False)
class FederatedData:
    """Samples, and which of them belong to which client.

    Attributes
    ----------
    dataset
        All samples.
    train, test
        For every client the positions of its samples in ``dataset.x`` and ``dataset.test_x``. A
        sample may belong to several clients, and to one client more than once.
    """

    dataset: Dataset
    train: Indices
    test: Indices

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise DataError("FederatedData: needs at least one client; got none.")
        for name, labels in (("train", self.dataset.y), ("test", self.dataset.test_y)):
            parts = tuple(_checked_positions(k, part) for k, part in enumerate(getattr(self, name)))
            object.__setattr__(self, name, parts)
            if labels.size and not 0 <= labels.min() <= labels.max() < self.dataset.n_classes:
                raise DataError(
                    f"FederatedData: {name} labels must be 0 to {self.dataset.n_classes - 1}; got "
                    f"{labels.min()} to {labels.max()}."
                )
            if len(parts) != len(self.train):
                raise DataError(
                    f"FederatedData: {name} must have one list of positions per client, "
                    f"{len(self.train)}; got {len(parts)}."
                )
            for client, part in enumerate(parts):
                if part.size and not (part.min() >= 0 and part.max() < len(labels)):
                    raise DataError(
                        f"FederatedData: client {client}'s {name} positions must be 0 to "
                        f"{len(labels) - 1}; got {part.min()} to {part.max()}."
                    )

    def __repr__(self) -> str:
        train, test = (sum(map(len, parts)) for parts in (self.train, self.test))
        n_classes = int(self.dataset.n_classes)
        return short_repr(
            self, n_clients=self.n_clients, train=train, test=test, n_classes=n_classes
        )

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        clients: ArrayLike | Sequence[ArrayLike],
        *,
        test: tuple[ArrayLike, ArrayLike, ArrayLike | Sequence[ArrayLike]] | None = None,
        scale: float = 1.0,
        shift: float = 0.0,
    ) -> FederatedData:
        """Make federated data from arrays.

        Parameters
        ----------
        x, y
            Inputs, first axis samples, and labels from 0. Inputs become ``x * scale + shift``.
        clients
            The client of every sample (any labels; clients are numbered in sorted order), or a
            list of positions for every client, as the partitioners of other libraries return it.
        test
            The same three for testing; None: no test samples.

        Returns
        -------
        FederatedData
            With one client per label, or per list of positions.

        Raises
        ------
        DataError
            If arrays, labels and clients do not fit each other.
        """
        inputs, labels = checked_arrays(x, y)
        names, train = positions_of(clients, len(labels))
        empty = tuple(np.empty(0, dtype=np.int64) for _ in train)
        test_inputs, test_labels, test_parts = inputs[:0], labels[:0], empty
        if test is not None:
            test_inputs, test_labels = checked_arrays(test[0], test[1])
            test_names, test_parts = positions_of(test[2], len(test_labels), names)
            if (names is None) != (test_names is None):
                raise DataError(
                    "FederatedData: clients must come the same way for training and testing, as "
                    "a label per sample or as lists of positions. Use one of them for both."
                )
        n_classes = int(max(labels.max(initial=0), test_labels.max(initial=0))) + 1
        dataset = Dataset(inputs, labels, test_inputs, test_labels, n_classes, scale, shift)
        return cls(dataset, train, test_parts)

    @property
    def n_clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    @property
    def population(self) -> Population:
        """The clients, by their number of training samples; their groups are their main classes."""
        return Population([len(part) for part in self.train], groups=self.main_class().tolist())

    def class_counts(self) -> NDArray[np.int64]:
        """Return the training samples of each client and class, shape (n_clients, n_classes)."""
        counts = [
            np.bincount(self.dataset.y[p], minlength=self.dataset.n_classes) for p in self.train
        ]
        return np.array(counts)

    def main_class(self) -> NDArray[np.int64]:
        """Return the most frequent class of every client, shape (n_clients,)."""
        return np.asarray(self.class_counts().argmax(axis=1))

    def renumbered(self, rng: Rng = None) -> FederatedData:
        """Shuffle the clients' numbers, to check that nothing depends on them.

        ``rng`` is an integer, a generator, or None for a random order.
        """
        order = checked_rng("FederatedData", rng).permutation(self.n_clients)
        return replace(
            self,
            train=tuple(self.train[i] for i in order),
            test=tuple(self.test[i] for i in order),
        )


def positions_of(
    clients: Any, n: int, names: list[Any] | None = None
) -> tuple[list[Any] | None, Indices]:
    """Read the client of each of n samples, or every client's positions.

    Return the clients' sorted names (None if there are only positions), and their positions.
    ``names`` gives the clients instead.
    """
    if isinstance(clients, Mapping):
        raise DataError(
            "FederatedData: clients must be a label per sample or a list of positions per client; "
            "got a mapping. Pass list(clients.values())."
        )
    entries = list(clients)
    n_axes = {np.ndim(entry) for entry in entries}
    if n_axes == {1}:
        return None, tuple(_checked_positions(k, part) for k, part in enumerate(entries))
    if n_axes != {0} or len(entries) != n:
        raise DataError(
            f"FederatedData: clients must be one label for each of {n} samples, or a list of "
            f"positions per client; got {len(entries)} entries of {sorted(n_axes)} axes."
        )
    labels = np.asarray(entries)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise DataError(
            f"FederatedData: every sample needs a client; {np.isnan(labels).sum()} of {n} have "
            f"NaN. Leave those samples out."
        )
    known = sorted(set(labels.tolist())) if names is None else names
    unknown = set(labels.tolist()) - set(known)
    if unknown:
        raise DataError(
            f"FederatedData: the test samples' clients must be among the training samples'; "
            f"{min(unknown)!r} is not."
        )
    return known, tuple(np.flatnonzero(labels == name) for name in known)


def _checked_positions(client: int, part: Any) -> NDArray[np.int64]:
    positions = np.asarray(part)
    if positions.size and positions.dtype.kind not in "iu":
        raise DataError(
            f"FederatedData: client {client}'s positions must be whole numbers; got "
            f"{positions.dtype}. Use numpy.flatnonzero for masks."
        )
    return positions.astype(np.int64)
