"""A data set divided among clients, and ways to divide it.

A division is reproducible from its ``seed``: an integer, a generator that draws one, or None for a
random one.
"""

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
from fedcohort.streams import Seed, Stream, checked_seed, stream

Indices = tuple[NDArray[np.int64], ...]
#: The paper's unbalanced federation: how many clients have how many training samples.
PAPER_SIZES = ((10, 100), (30, 250), (30, 500), (20, 750), (10, 1000))


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
            raise DataError("FederatedData: needs at least one client; got none. Add one.")
        for name, labels in (("train", self.dataset.y), ("test", self.dataset.test_y)):
            parts = tuple(_checked_positions(k, part) for k, part in enumerate(getattr(self, name)))
            object.__setattr__(self, name, parts)
            _check_range(f"{name} labels", labels, self.dataset.n_classes)
            if len(parts) != len(self.train):
                raise DataError(
                    f"FederatedData: {name} must have one list of positions per client, "
                    f"{len(self.train)}; got {len(parts)}. Use an empty list for a client without."
                )
            for client, part in enumerate(parts):
                _check_range(f"client {client}'s {name} positions", part, len(labels))

    def __repr__(self) -> str:
        train, test = (sum(map(len, parts)) for parts in (self.train, self.test))
        sizes = {"train": train, "test": test, "n_classes": int(self.dataset.n_classes)}
        return short_repr(self, n_clients=self.n_clients, **sizes)

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
            f"positions per client; got {len(entries)} entries of {sorted(n_axes)} axes. Pass for "
            f"example [0, 0, 1] or [[0, 1], [2]]."
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
            f"{min(unknown)!r} is not. Leave its test samples out."
        )
    return known, tuple(np.flatnonzero(labels == name) for name in known)


def _check_range(what: str, values: NDArray[np.int64], below: int) -> None:
    if values.size and not 0 <= values.min() <= values.max() < below:
        raise DataError(
            f"FederatedData: {what} must be 0 to {below - 1}; got {values.min()} to "
            f"{values.max()}. Drop those outside, or count from 0."
        )


def _checked_positions(client: int, part: Any) -> NDArray[np.int64]:
    positions = np.asarray(part)
    if positions.size and positions.dtype.kind not in "iu":
        raise DataError(
            f"FederatedData: client {client}'s positions must be whole numbers; got "
            f"{positions.dtype}. Use numpy.flatnonzero for masks."
        )
    return positions.astype(np.int64)


def one_class_shards(
    dataset: Dataset,
    *,
    seed: Seed = None,
    clients_per_class: int = 10,
    train_size: int | Sequence[int] = 500,
    deal_sizes: bool = False,
    test_size: int = 80,
) -> FederatedData:
    """Give every client samples of one class only: the paper's figure 1.

    Clients are numbered by class, ``clients_per_class`` each; no sample is used twice.
    ``train_size`` is the size of every client, or a list with one size for each client of a
    class; ``deal_sizes`` shuffles the sizes over all clients. The paper speaks of 100 test
    samples, but digit 5 of MNIST has too few; its code uses 80.

    Raises
    ------
    DataError
        If a class has too few samples, or the sizes do not fit the clients.
    """
    sizes = _sizes_of_class(train_size, test_size, clients_per_class)
    rng = stream(checked_seed("one_class_shards", seed), use=Stream.PARTITION)
    shape = (dataset.n_classes, clients_per_class)
    train = np.tile(sizes, dataset.n_classes)
    train = (rng.permutation(train) if deal_sizes else train).reshape(shape)
    test = np.full(shape, test_size)
    of_train = _shards(dataset.y, train, rng)
    return FederatedData(dataset, of_train, _shards(dataset.test_y, test, rng))


def _sizes_of_class(
    train_size: int | Sequence[int], test_size: int, clients_per_class: int
) -> NDArray[np.int64]:
    """Validate the sizes; return one for each client of a class."""
    listed = np.ndim(train_size) > 0
    sizes = np.asarray(train_size if listed else [train_size] * clients_per_class)
    if listed and len(sizes) != clients_per_class:
        raise DataError(
            f"one_class_shards: a list of training sizes needs one for each of a class's "
            f"{clients_per_class} clients; got {len(sizes)}. Add or drop some, or give one number."
        )
    if not sizes.size or sizes.dtype.kind not in "iu" or sizes.min() < 1 or test_size < 0:
        raise DataError(
            f"one_class_shards: needs at least one client per class, and one training sample for "
            f"each; got {clients_per_class} and {train_size} (and {test_size} test samples). Raise "
            f"what is too small."
        )
    return sizes


def _shards(
    labels: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator
) -> Indices:
    """Deal samples of one class to each client; ``sizes`` has shape (n_classes, n_clients)."""
    shards: list[NDArray[np.int64]] = []
    for label, own in enumerate(sizes):
        members, needed = np.flatnonzero(labels == label), int(own.sum())
        if needed > len(members):
            raise DataError(
                f"one_class_shards: needs {needed} samples of class {label} for {len(own)} "
                f"clients; got {len(members)}. Lower the sizes or the clients per class."
            )
        chosen = rng.choice(members, needed, replace=False)
        shards.extend(np.split(chosen, np.cumsum(own)[:-1]))
    return tuple(shards)


def dirichlet_unbalanced(
    dataset: Dataset,
    *,
    alpha: float,
    seed: Seed = None,
    sizes: Sequence[tuple[int, int]] = PAPER_SIZES,
    test_share: float = 0.2,
) -> FederatedData:
    """Draw every client's class shares from Dir(alpha): the paper's figure 2.

    ``sizes`` lists (clients, training samples). A client has ``test_share`` of its size for
    testing, with the same class shares. It gets ``int(share * size)`` samples of a class, and the
    rest from the last class. Samples are drawn with replacement within a class.

    Raises
    ------
    DataError
        If ``alpha`` is not positive, or the data set lacks a class that a client is to have.
    """
    _check_alpha(alpha)
    rng = stream(checked_seed("dirichlet_unbalanced", seed), use=Stream.PARTITION)
    of_class = [np.flatnonzero(dataset.y == c) for c in range(dataset.n_classes)]
    test_of_class = [np.flatnonzero(dataset.test_y == c) for c in range(dataset.n_classes)]
    train, test = [], []
    for size in (size for n_clients, size in sizes for _ in range(n_clients)):
        shares = rng.dirichlet(np.full(dataset.n_classes, alpha))
        train.append(_with_shares(of_class, shares, size, rng))
        test.append(_with_shares(test_of_class, shares, int(size * test_share), rng))
    return FederatedData(dataset, tuple(train), tuple(test))


def _with_shares(
    of_class: list[NDArray[np.int64]],
    shares: NDArray[np.float64],
    size: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw ``size`` positions by class shares."""
    counts = (shares * size).astype(np.int64)
    counts[-1] = size - counts[:-1].sum()
    empty = [c for c, count in enumerate(counts) if count and not len(of_class[c])]
    if empty:
        raise DataError(
            f"dirichlet_unbalanced: needs samples of class {empty[0]}; the data set has none. Use "
            f"test_share=0 without test samples."
        )
    drawn = [rng.choice(of_class[c], count) for c, count in enumerate(counts) if count]
    return np.concatenate(drawn) if drawn else np.empty(0, dtype=np.int64)


def iid(dataset: Dataset, n_clients: int, *, seed: Seed = None) -> FederatedData:
    """Deal the shuffled samples out evenly; sizes differ by one at most.

    Raises
    ------
    DataError
        If there are fewer samples than clients.
    """
    _check_clients(n_clients, len(dataset.y))
    rng = stream(checked_seed("iid", seed), use=Stream.PARTITION)
    train, test = (
        tuple(np.array_split(rng.permutation(len(labels)), n_clients))
        for labels in (dataset.y, dataset.test_y)
    )
    return FederatedData(dataset, train, test)


def dirichlet_disjoint(
    dataset: Dataset, *, alpha: float, n_clients: int, seed: Seed = None
) -> FederatedData:
    """Split every class among the clients by shares from Dir(alpha); every sample is used once.

    Test samples are split by the same shares. A client may get no samples; it is then never
    drawn.

    Raises
    ------
    DataError
        If ``alpha`` is not positive, or there are fewer samples than clients.
    """
    _check_alpha(alpha)
    _check_clients(n_clients, len(dataset.y))
    rng = stream(checked_seed("dirichlet_disjoint", seed), use=Stream.PARTITION)
    shares = rng.dirichlet(np.full(n_clients, alpha), size=dataset.n_classes)
    parts = []
    for labels in (dataset.y, dataset.test_y):
        cuts_of_class = []
        for label, share in enumerate(shares):
            members = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.rint(np.cumsum(share)[:-1] * len(members)).astype(np.int64)
            cuts_of_class.append(np.split(members, cuts))
        parts.append(tuple(np.concatenate(pieces) for pieces in zip(*cuts_of_class, strict=True)))
    return FederatedData(dataset, *parts)


def natural(dataset: Dataset, clients: ArrayLike, test_clients: ArrayLike) -> FederatedData:
    """Give every sample to its own client; clients are numbered in sorted order.

    Raises
    ------
    DataError
        If a sample has no client, or a test sample a client without training samples.
    """
    names, train = positions_of(clients, len(dataset.y))
    return FederatedData(dataset, train, positions_of(test_clients, len(dataset.test_y), names)[1])


def _check_alpha(alpha: float) -> None:
    if not isinstance(alpha, (int, float)) or not 0 < alpha < np.inf:
        raise DataError(
            f"partition: alpha must be positive and finite; got {alpha}. Pass for example 0.1."
        )


def _check_clients(n_clients: int, n_samples: int) -> None:
    if type(n_clients) is not int or not 1 <= n_clients <= n_samples:
        raise DataError(
            f"partition: n_clients must be 1 to the {n_samples} samples; got {n_clients}. Give "
            f"each client at least one sample."
        )
