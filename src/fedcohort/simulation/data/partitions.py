"""A data set divided among clients, and ways to divide it.

A division is reproducible from its ``seed``: an integer, a generator that draws one, or None for a
random one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._archive import json_array, json_value, read_archive, write_archive
from fedcohort._arguments import (
    MOST,
    FlagNeed,
    KindNeed,
    ListNeed,
    NumberNeed,
    OneOrListNeed,
    Rng,
    WholeNeed,
    as_array,
    brief,
    checked_path,
    checked_rng,
    is_list,
)
from fedcohort._display import short_repr
from fedcohort._fields import Record, checks
from fedcohort.client_files.formats import Source
from fedcohort.errors import DataError
from fedcohort.population import Population
from fedcohort.simulation.data.datasets import Dataset, checked_arrays
from fedcohort.streams import Seed, Stream, checked_seed, stream

Indices = tuple[NDArray[np.int64], ...]
#: The client of every sample, or the positions of every client's samples.
Owners = ArrayLike | Sequence[ArrayLike]
#: Inputs, labels and clients; inputs and labels that all clients share; or a share of the samples.
Test = tuple[ArrayLike, ArrayLike, Owners] | tuple[ArrayLike, ArrayLike] | float
#: What an archive of samples means, and its version.
KIND = "federated data 1"
DATASET = KindNeed(kind=Dataset, way_out="Pass load_dataset('digits'), or your own.")
#: The paper's unbalanced federation: how many clients have how many training samples.
PAPER_SIZES = ((10, 100), (30, 250), (30, 500), (20, 750), (10, 1000))


@dataclass(frozen=True, slots=True, eq=False)
class FederatedData(Record):
    """Samples, and which of them belong to which client.

    Attributes
    ----------
    dataset
        All samples.
    train, test
        For every client the positions of its samples in ``dataset.x`` and ``dataset.test_x``. A
        sample may belong to several clients, and to one client more than once.
    """

    _error = DataError

    dataset: Dataset
    train: Indices
    test: Indices

    def _check(self) -> None:
        _check_dataset("FederatedData", self.dataset)
        for name in ("train", "test"):
            if not is_list(parts := getattr(self, name)):
                raise DataError(
                    f"FederatedData: {name} must be a list of positions per client; got "
                    f"{brief(parts)}. Pass for example [[0, 1], [2]]."
                )
            self._put(**{name: tuple(parts)})
        if len(self.train) == 0:
            raise DataError("FederatedData: needs at least one client; got none. Add one.")
        for name, labels in (("train", self.dataset.y), ("test", self.dataset.test_y)):
            parts = tuple(_checked_positions(k, part) for k, part in enumerate(getattr(self, name)))
            self._put(**{name: parts})
            # In sequences, -1 marks what does not count.
            counted = labels if labels.ndim == 1 else labels[labels != -1]
            _check_range(f"{name} labels", counted, self.dataset.n_classes)
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
        clients: Owners,
        *,
        test: Test | None = None,
        seed: Seed = 0,
        scale: float = 1.0,
        shift: float = 0.0,
    ) -> FederatedData:
        """Make federated data from arrays.

        Parameters
        ----------
        x, y
            Inputs, first axis samples, and labels from 0: one per sample, or sequences of labels
            of shape (samples, length), where -1 does not count. Inputs become
            ``x * scale + shift``; integers stay integers for a model that takes them, such as
            one that begins with ``nn.Embedding``.
        clients
            The client of every sample (any labels; clients are numbered in sorted order), or a
            list of positions for every client, as the partitioners of other libraries return it.
        test
            The same three for testing. Two, inputs and labels: every client is tested on all of
            them. A number between 0 and 1: hold out this share of every client's samples, at
            random and rounded; at least one sample stays with each client, and one in all is held
            out. None: no test samples.
        seed
            Chooses what is held out: an integer, a generator, or None for a random one.

        Raises
        ------
        DataError
            If arrays, labels and clients do not fit each other.

        Examples
        --------
        >>> x, y, wards = np.eye(6), [0, 1, 0, 1, 0, 1], ["a", "a", "a", "b", "b", "b"]
        >>> FederatedData.from_arrays(x, y, wards, test=1 / 3)
        FederatedData(n_clients=2, train=4, test=2, n_classes=2)
        """
        inputs, labels = checked_arrays(x, y)
        names, train = positions_of(clients, len(labels))
        if test is None:
            test_inputs, test_labels = inputs[:0], labels[:0]
            test_parts = tuple(np.empty(0, dtype=np.int64) for _ in train)
        elif isinstance(test, (list, tuple)) and len(test) in (2, 3):
            test_inputs, test_labels = checked_arrays(test[0], test[1])
            test_parts = len(train) * (np.arange(len(test_labels)),)
            if len(test) == 3:
                test_parts = _test_parts(test[2], len(test_labels), names)
        else:
            held = _held_out(test, train, len(labels), seed)
            test_inputs, test_labels = inputs[held], labels[held]
            inputs, labels = inputs[~held], labels[~held]
            train, test_parts = _taken(train, ~held), _taken(train, held)
        n_classes = int(max(labels.max(initial=0), test_labels.max(initial=0))) + 1
        dataset = Dataset(inputs, labels, test_inputs, test_labels, n_classes, scale, shift)
        return cls(dataset, train, test_parts)

    @classmethod
    def from_leaf(
        cls, folder: str | Path, *, words: int = 10_000, length: int = 25
    ) -> FederatedData:
        """Read data that LEAF's ``preprocess.sh`` wrote: JSON files of users with x and y.

        ``folder`` has the folders ``train`` and ``test``, directly or in ``data``. FEMNIST's
        images get the shape (1, 28, 28). Shakespeare's 80 characters and the next one, its label,
        become numbers as :func:`encode_text` gives them. A tweet of Sent140 becomes the numbers of
        its first words: from 2 for the words that the training tweets use most, 1 for any other,
        0 after the last. If the test files have other users (LEAF's split by user), all clients
        are tested on all of their samples.

        Parameters
        ----------
        words
            How many words get a number of their own; an embedding needs two rows more.
        length
            Words of a tweet.

        Raises
        ------
        DataError
            If there are no such files, or a user's samples cannot be read.
        """
        from fedcohort.simulation.data.readers import read_leaf

        path = checked_path("from_leaf", "folder", folder, error=DataError)
        COUNT.check("from_leaf", "words", words, DataError)
        COUNT.check("from_leaf", "length", length, DataError)
        train, test = read_leaf(path, words, length)
        if test is None:
            return cls.from_arrays(*train)
        held: Test = test
        if set(train.clients.tolist()).isdisjoint(test.clients.tolist()):
            held = (test.x, test.y)
        return cls.from_arrays(*train, test=held)

    @classmethod
    def from_hugging_face(
        cls,
        data: Any,
        *,
        client: str,
        x: str,
        y: str | None = None,
        test: float | None = None,
        seed: Seed = 0,
        words: int = 10_000,
        length: int = 80,
    ) -> FederatedData:
        """Read a data set of Hugging Face's ``datasets`` that has a column of clients.

        ``data`` is a ``Dataset``, or a ``DatasetDict`` with the parts ``train`` and ``test``.

        Parameters
        ----------
        client, x, y
            Columns. Without ``y``, x is text in which each character is to predict the next one,
            in sequences of ``length``. With it, a text becomes the numbers of its first words, as
            in :meth:`from_leaf`; images and numbers stay as they are.
        test, seed
            The share of every client's samples to hold out, as in :meth:`from_arrays`.
        words
            How many words get a number of their own.
        length
            Characters or words of a sample of text.

        Raises
        ------
        DataError
            If the data set has no such columns, or they cannot be read.
        """
        from fedcohort.simulation.data.readers import read_hugging_face

        parts = dict(data) if isinstance(data, Mapping) else {"train": data}
        if not hasattr(parts.get("train"), "with_format"):
            raise DataError(
                f"from_hugging_face: data must be a Dataset of the package datasets, or a "
                f"DatasetDict with the part train; got {brief(data)}. Pass what its load_dataset "
                f"returns."
            )
        COUNT.check("from_hugging_face", "words", words, DataError)
        COUNT.check("from_hugging_face", "length", length, DataError)
        columns = (client, x, y, words, length)
        own, known = read_hugging_face(parts["train"], *columns)
        scale = 1 / 255 if own.x.dtype == np.uint8 and own.x.ndim == 4 else 1.0
        held: Test | None = test
        if test is None and "test" in parts:
            held = read_hugging_face(parts["test"], *columns, known)[0]
        return cls.from_arrays(*own, test=held, seed=seed, scale=scale)

    @classmethod
    def from_table(
        cls,
        source: Source,
        *,
        client: str,
        y: str,
        leave_out: Sequence[str] = (),
        test: float | None = None,
        seed: Seed = 0,
    ) -> FederatedData:
        """Read a table with a row per sample: a CSV, Parquet, JSON or Excel file, or a data frame.

        All other columns are features. Numbers get mean 0 and variance 1 over the training
        samples of all clients, and 0 where one is missing. Texts become a 0 or 1 for each
        different one. Classes are numbered in sorted order.

        Parameters
        ----------
        client, y
            The columns of the clients and of the labels.
        leave_out
            Columns to leave out, such as names.
        test, seed
            The share of every client's samples to hold out, as in :meth:`from_arrays`.

        Raises
        ------
        DataError
            If the table cannot be read, or has no such columns.

        Examples
        --------
        >>> table = {"ward": [*"aaabbb"], "age": [50, 61, 70, 44, 52, 80], "died": [0, 1] * 3}
        >>> import pyarrow
        >>> data = FederatedData.from_table(pyarrow.table(table), client="ward", y="died")
        >>> data, data.dataset.x.shape
        (FederatedData(n_clients=2, train=6, test=0, n_classes=2), (6, 1))
        """
        from fedcohort.simulation.data.readers import read_samples

        rows = read_samples(source, client, y, leave_out)
        held = np.zeros(len(rows.y), dtype=bool)
        if test is not None:
            _, parts = positions_of(rows.clients, len(rows.y))
            held = _held_out(test, parts, len(rows.y), seed)
        x, labels, clients = rows.features(~held), rows.y, rows.clients
        apart = None if test is None else (x[held], labels[held], clients[held])
        return cls.from_arrays(x[~held], labels[~held], clients[~held], test=apart)

    def save(self, path: str | Path) -> None:
        """Write samples and clients to a file, which :meth:`load` and experiment files read.

        An experiment file names it as its data set, for example ``dataset = "wards.data"``.
        """
        own = self.dataset
        arrays = {name: np.asarray(getattr(own, name)) for name in ("x", "y", "test_x", "test_y")}
        for name in ("train", "test"):
            parts: Indices = getattr(self, name)
            arrays[name] = np.concatenate([np.empty(0, np.int64), *parts])
            arrays[f"{name}_lengths"] = np.array([len(part) for part in parts])
        rest = {"n_classes": int(own.n_classes), "scale": own.scale, "shift": own.shift}
        checked = checked_path("FederatedData", "path", path, error=DataError)
        write_archive(checked, KIND, {"head": json_array(rest), **arrays})

    @classmethod
    def load(cls, path: str | Path) -> FederatedData:
        """Read what :meth:`save` wrote."""
        path = checked_path("FederatedData", "path", path, error=DataError)
        try:
            arrays = read_archive(path, KIND)
        except ValueError as error:
            raise DataError(
                f"{path}: cannot be read ({error}). Write it with FederatedData.save."
            ) from error
        x, y, test_x, test_y = (arrays[name] for name in ("x", "y", "test_x", "test_y"))
        train, test = (
            tuple(np.split(arrays[name], np.cumsum(arrays[f"{name}_lengths"])[:-1]))
            for name in ("train", "test")
        )
        return cls(Dataset(x, y, test_x, test_y, **json_value(arrays["head"])), train, test)

    @property
    def n_clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    @property
    def population(self) -> Population:
        """The clients, by their number of training samples; their groups are their main classes."""
        return Population([len(part) for part in self.train], groups=self.main_class().tolist())

    def class_counts(self) -> NDArray[np.int64]:
        """Return the training labels of each client and class, shape (n_clients, n_classes)."""
        classes = self.dataset.n_classes
        # Shifted by one, so that the labels -1 fall into a class that is left out.
        counts = [
            np.bincount(self.dataset.y[p].ravel() + 1, minlength=classes + 1)[1:]
            for p in self.train
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
    entries = list(clients) if is_list(clients) else []
    n_axes = {entry.ndim if hasattr(entry, "ndim") else as_array(entry).ndim for entry in entries}
    if n_axes == {1}:
        return None, tuple(_checked_positions(k, part) for k, part in enumerate(entries))
    if n_axes != {0} or len(entries) != n:
        came = f"{len(entries)} labels" if n_axes == {0} else brief(clients)
        raise DataError(
            f"FederatedData: clients must be one label for each of {n} samples, or a list of "
            f"positions per client; got {came}. Pass for example [0, 0, 1] or [[0, 1], [2]]."
        )
    labels = np.asarray(entries)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise DataError(
            f"FederatedData: every sample needs a client; {np.isnan(labels).sum()} of {n} have "
            f"NaN. Leave those samples out."
        )
    try:
        known = sorted(set(labels.tolist())) if names is None else names
    except TypeError as error:
        raise DataError(
            f"FederatedData: clients must be labels that can be sorted; got {brief(clients)}. "
            f"Label samples by numbers, or by names."
        ) from error
    place = {name: k for k, name in enumerate(known)}
    unknown = set(labels.tolist()) - set(place)
    if unknown:
        raise DataError(
            f"FederatedData: the test samples' clients must be among the training samples'; "
            f"{min(unknown)!r} is not. Leave its test samples out."
        )
    numbers = np.array([place[label] for label in labels.tolist()], dtype=np.int64)
    lengths = np.bincount(numbers, minlength=len(known))
    return known, tuple(np.split(np.argsort(numbers, kind="stable"), np.cumsum(lengths)[:-1]))


def _test_parts(clients: Owners, n: int, names: list[Any] | None) -> Indices:
    """Read the clients of n test samples; ``names`` are those of the training samples."""
    test_names, parts = positions_of(clients, n, names)
    if (names is None) != (test_names is None):
        raise DataError(
            "FederatedData: clients must come the same way for training and testing, as a label "
            "per sample or as lists of positions. Use one of them for both."
        )
    return parts


def _held_out(share: object, parts: Indices, n: int, seed: Seed) -> NDArray[np.bool_]:
    """Return which of n samples are for testing. Their clients test on them."""
    if not isinstance(share, (float, np.floating)) or not 0 < share < 1:
        raise DataError(
            f"FederatedData: test must be three arrays (inputs, labels, clients), two that all "
            f"clients share, or a share between 0 and 1; got {brief(share)}. Pass for example 0.2."
        )
    rng = stream(checked_seed("FederatedData", seed, DataError), use=Stream.PARTITION)
    held = np.zeros(n, dtype=bool)
    for client, part in enumerate(parts):
        _check_range(f"client {client}'s train positions", part, n)
        held[rng.permutation(part)[: min(round(float(share) * len(part)), len(part) - 1)]] = True
    if not held.any():
        raise DataError(
            f"FederatedData: test must hold out at least one sample; {share} of the largest "
            f"client's {max(map(len, parts), default=0)} rounds to none. Pass a larger share, or "
            f"test samples."
        )
    return held


def _taken(parts: Indices, mask: NDArray[np.bool_]) -> Indices:
    """Return every client's positions in the array that the mask leaves."""
    place = np.cumsum(mask) - 1
    return tuple(place[part[mask[part]]] for part in parts)


def _check_dataset(owner: str, dataset: object) -> None:
    DATASET.check(owner, "dataset", dataset, DataError)


def _check_one_label(owner: str, dataset: Dataset) -> None:
    """Refuse sequences of labels where samples are divided by their class."""
    _check_dataset(owner, dataset)
    if dataset.length is not None:
        raise DataError(
            f"{owner}: divides samples by their class, so each needs one label; got sequences of "
            f"{dataset.length} labels. Use iid or natural."
        )


def _check_range(what: str, values: NDArray[np.int64], below: int) -> None:
    if values.size and not 0 <= values.min() <= values.max() < below:
        raise DataError(
            f"FederatedData: {what} must be 0 to {below - 1}; got {values.min()} to "
            f"{values.max()}. Drop those outside, or count from 0."
        )


def _checked_positions(client: int, part: Any) -> NDArray[np.int64]:
    positions = as_array(part)
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
        raise DataError(
            f"FederatedData: client {client}'s positions must be a list of whole numbers; got "
            f"{positions.dtype} of shape {positions.shape}. Use numpy.flatnonzero for masks."
        )
    return positions.astype(np.int64, copy=False)


FEDERATION = KindNeed(kind=FederatedData, way_out="Pass what a partition returns, or your own.")
#: Counts of clients or samples.
COUNT, WHOLE = WholeNeed(least=1, most=MOST), WholeNeed(most=MOST)
ALPHA = NumberNeed(above=0, way_out="Pass for example 0.1.")
SHARE = NumberNeed(least=0, most=1)
EXAMPLE = "Pass for example [(10, 100), (30, 250)]."
PAIRS = ListNeed(item=ListNeed(item=WHOLE, least=2, most=2, way_out=EXAMPLE), way_out=EXAMPLE)


@checks(
    DataError,
    clients_per_class=COUNT,
    train_size=OneOrListNeed(item=COUNT),
    deal_sizes=FlagNeed(),
    test_size=WHOLE,
)
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

    Clients are numbered by class; no sample is used twice. The paper speaks of 100 test samples,
    but digit 5 of MNIST has too few; its code uses 80.

    Parameters
    ----------
    clients_per_class
        How many clients have samples of one class.
    train_size
        Training samples of every client; or a list with one number for each client of a class.
    deal_sizes
        Whether to assign a list of sizes at random to the clients of all classes.
    test_size
        Test samples of every client.

    Raises
    ------
    DataError
        If a class has too few samples, or the sizes do not fit the clients.
    """
    _check_one_label("one_class_shards", dataset)
    sizes = train_size if isinstance(train_size, list) else [train_size] * clients_per_class
    if len(sizes) != clients_per_class:
        raise DataError(
            f"one_class_shards: a list of training sizes needs one for each of a class's "
            f"{clients_per_class} clients; got {len(sizes)}. Add or drop some, or give one number."
        )
    rng = stream(checked_seed("one_class_shards", seed), use=Stream.PARTITION)
    shape = (dataset.n_classes, clients_per_class)
    train = np.tile(sizes, dataset.n_classes)
    train = (rng.permutation(train) if deal_sizes else train).reshape(shape)
    test = np.full(shape, test_size)
    of_train = _shards(dataset.y, train, rng)
    return FederatedData(dataset, of_train, _shards(dataset.test_y, test, rng))


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


@checks(
    DataError,
    alpha=ALPHA,
    sizes=PAIRS,
    test_share=SHARE,
)
def dirichlet_unbalanced(
    dataset: Dataset,
    *,
    alpha: float,
    seed: Seed = None,
    sizes: Sequence[tuple[int, int]] = PAPER_SIZES,
    test_share: float = 0.2,
) -> FederatedData:
    """Draw every client's class shares from Dir(alpha): the paper's figure 2.

    A client gets ``int(share * size)`` samples of a class, and the rest from the last class. Its
    test samples have the same class shares. Samples are drawn with replacement within a class.

    Parameters
    ----------
    alpha
        The smaller, the fewer classes a client has.
    sizes
        Pairs: a number of clients, and the training samples of each of them.
    test_share
        Number of a client's test samples, as a share of its training samples.

    Raises
    ------
    DataError
        If ``alpha`` is not positive, or the data set lacks a class that a client is to have.
    """
    owner = "dirichlet_unbalanced"
    _check_one_label(owner, dataset)
    rng = stream(checked_seed(owner, seed), use=Stream.PARTITION)
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


@checks(DataError, n_clients=COUNT)
def iid(dataset: Dataset, n_clients: int, *, seed: Seed = None) -> FederatedData:
    """Deal the shuffled samples out evenly; sizes differ by one at most.

    Parameters
    ----------
    n_clients
        How many clients there are.

    Raises
    ------
    DataError
        If there are fewer samples than clients.
    """
    _check_dataset("iid", dataset)
    _check_clients("iid", n_clients, len(dataset.y))
    rng = stream(checked_seed("iid", seed), use=Stream.PARTITION)
    train, test = (
        tuple(np.array_split(rng.permutation(len(labels)), n_clients))
        for labels in (dataset.y, dataset.test_y)
    )
    return FederatedData(dataset, train, test)


@checks(DataError, alpha=ALPHA, n_clients=COUNT)
def dirichlet_disjoint(
    dataset: Dataset, *, alpha: float, n_clients: int, seed: Seed = None
) -> FederatedData:
    """Split every class among the clients by shares from Dir(alpha); every sample is used once.

    Test samples are split by the same shares. A client may get no samples; it is then never
    drawn.

    Parameters
    ----------
    alpha
        The smaller, the fewer clients share a class.
    n_clients
        How many clients there are.

    Raises
    ------
    DataError
        If ``alpha`` is not positive, or there are fewer samples than clients.
    """
    _check_one_label("dirichlet_disjoint", dataset)
    _check_clients("dirichlet_disjoint", n_clients, len(dataset.y))
    rng = stream(checked_seed("dirichlet_disjoint", seed), use=Stream.PARTITION)
    shares = rng.dirichlet(np.full(n_clients, alpha), size=dataset.n_classes)
    train, test = (
        _split_classes([rng.permutation(own) for own in _of_class(labels, dataset)], shares)
        for labels in (dataset.y, dataset.test_y)
    )
    return FederatedData(dataset, train, test)


def _of_class(labels: NDArray[np.int64], dataset: Dataset) -> list[NDArray[np.int64]]:
    """Return the positions of each class's samples, in their order."""
    return [np.flatnonzero(labels == label) for label in range(dataset.n_classes)]


def _split_classes(of_class: list[NDArray[np.int64]], shares: NDArray[np.float64]) -> Indices:
    """Give each client its share of every class; ``shares`` has shape (n_classes, n_clients)."""
    sizes = _sizes(shares, np.array([len(own) for own in of_class]))
    pieces = [
        np.split(own, np.cumsum(size)[:-1]) for own, size in zip(of_class, sizes, strict=True)
    ]
    return tuple(np.concatenate(own) for own in zip(*pieces, strict=True))


def _sizes(shares: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each client's number of samples of a class, by its shares; rounding loses none."""
    ends = np.rint(np.cumsum(shares, axis=-1) * np.reshape(lengths, (-1, 1))).astype(np.int64)
    return np.diff(ends, prepend=0, axis=-1)


@checks(DataError, alpha=ALPHA, n_clients=COUNT)
def dirichlet_clients(
    dataset: Dataset, *, alpha: float, n_clients: int, seed: Seed = None
) -> FederatedData:
    r"""Draw every client's class shares from Dir(alpha), and use each sample once.

    A class goes to the clients in proportion to their shares of it, in the order of the data set:
    client i with shares :math:`\nu_i` gets :math:`\nu_{ic} / \sum_j \nu_{jc}` of class c. Test
    samples are split alike. This is the partition of FedAU (Wang and Ji, ICLR 2024) and FedAWE
    (Xiang et al., NeurIPS 2024). A client may get no samples; it is then never drawn.

    Parameters
    ----------
    alpha
        The smaller, the fewer classes a client has.
    n_clients
        How many clients there are.

    Raises
    ------
    DataError
        If ``alpha`` is not positive, or there are fewer samples than clients.
    """
    _check_one_label("dirichlet_clients", dataset)
    _check_clients("dirichlet_clients", n_clients, len(dataset.y))
    rng = stream(checked_seed("dirichlet_clients", seed), use=Stream.PARTITION)
    shares = rng.dirichlet(np.full(dataset.n_classes, alpha), size=n_clients).T
    total = shares.sum(axis=1, keepdims=True)
    shares = np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / n_clients)
    train, test = (
        _split_classes(_of_class(labels, dataset), shares) for labels in (dataset.y, dataset.test_y)
    )
    return FederatedData(dataset, train, test)


#: How often a part is divided again until every client has enough samples.
DIVISIONS = 10_000


@checks(DataError, alphas=ListNeed(item=ALPHA), clients_per_part=COUNT, least=SHARE)
def dirichlet_parts(
    dataset: Dataset,
    *,
    alphas: Sequence[float] = (0.001, 0.002, 0.005, 0.01, 0.5),
    clients_per_part: int = 10,
    least: float = 0.2,
    seed: Seed = None,
) -> FederatedData:
    """Divide parts of the data set, each with an alpha of its own and in balance.

    Every class is cut into as many equal parts as there are ``alphas``, in the order of the data
    set. A part is divided among its clients class by class, by shares from Dir(alpha) over the
    clients that do not have their even share of the part yet. If a client ends with less than
    ``least`` of its even share, of training or of test samples, the part is divided again. This is
    the partition of HiCS-FL (Chen and Vikalo, NeurIPS 2024, appendix A.10; the balance is in their
    code). Clients are numbered part by part.

    Parameters
    ----------
    alphas
        One for each part. The smaller, the fewer classes the part's clients have.
    clients_per_part
        How many clients share a part.
    least
        The least number of a client's samples, as a share of an even division.

    Raises
    ------
    DataError
        If an alpha is not positive, or no division gives every client enough samples.
    """
    owner = "dirichlet_parts"
    _check_one_label(owner, dataset)
    _check_clients(owner, len(alphas) * clients_per_part, len(dataset.y))
    rng = stream(checked_seed(owner, seed), use=Stream.PARTITION)
    train, test = (
        [
            [np.array_split(own, len(alphas))[part] for own in _of_class(labels, dataset)]
            for part in range(len(alphas))
        ]
        for labels in (dataset.y, dataset.test_y)
    )
    divided = [
        _balanced(sets, alpha, clients_per_part, least, rng)
        for *sets, alpha in zip(train, test, alphas, strict=True)
    ]
    both = zip(*divided, strict=True)
    return FederatedData(dataset, *(tuple(chain.from_iterable(parts)) for parts in both))


def _balanced(
    sets: list[list[NDArray[np.int64]]],
    alpha: float,
    n_clients: int,
    least: float,
    rng: np.random.Generator,
) -> list[Indices]:
    """Divide a part's training and test samples, given class by class, among its clients."""
    lengths = [np.array([len(own) for own in of_class]) for of_class in sets]
    shape = (len(lengths[0]), n_clients)
    for _ in range(DIVISIONS):
        # The logarithms of gamma variates with shape alpha: small alphas would underflow.
        logs = np.log(rng.gamma(alpha + 1, size=shape)) + np.log1p(-rng.random(shape)) / alpha
        shares = [_balanced_shares(logs, own) for own in lengths]
        if all(
            _sizes(share, own).sum(axis=0).min() >= int(least * own.sum() / n_clients)
            for share, own in zip(shares, lengths, strict=True)
        ):
            return [
                _split_classes([rng.permutation(own) for own in of_class], share)
                for of_class, share in zip(sets, shares, strict=True)
            ]
    raise DataError(
        f"dirichlet_parts: found no division with alpha {alpha} in which each of {n_clients} "
        f"clients has {least:g} of an even share. Lower least, or raise alpha."
    )


def _balanced_shares(logs: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each class's shares: none for a client that has its even share of samples already."""
    shares, held = np.zeros_like(logs), np.zeros(logs.shape[1], dtype=np.int64)
    for share, log, length in zip(shares, logs, lengths, strict=True):
        room = held * len(held) < lengths.sum()
        room |= not room.any()  # nothing is left to share
        share[room] = np.exp(log[room] - log[room].max())
        share /= share.sum()
        held += _sizes(share[None], np.array([length]))[0]
    return shares


def natural(
    dataset: Dataset, clients: ArrayLike | None = None, test_clients: ArrayLike | None = None
) -> FederatedData:
    """Give every sample to its own client; clients are numbered in sorted order.

    Parameters
    ----------
    clients, test_clients
        The client of every sample; by default as the data set says.

    Raises
    ------
    DataError
        If a sample has no client, or a test sample a client without training samples.

    Examples
    --------
    >>> from fedcohort.simulation import load_dataset
    >>> natural(load_dataset("shakespeare"))
    FederatedData(n_clients=1060, train=42092, test=10193, n_classes=97)
    """
    _check_dataset("natural", dataset)
    if clients is None and test_clients is None:
        clients, test_clients = dataset.clients, dataset.test_clients
    if clients is None or test_clients is None:
        raise DataError(
            "natural: needs the client of every sample; the data set does not say it. Pass "
            "clients and test_clients, or choose another partition."
        )
    names, train = positions_of(clients, len(dataset.y))
    return FederatedData(dataset, train, positions_of(test_clients, len(dataset.test_y), names)[1])


def _check_clients(owner: str, n_clients: int, n_samples: int) -> None:
    if n_clients > n_samples:
        raise DataError(
            f"{owner}: n_clients must be at most the {n_samples} samples; got {n_clients}. Give "
            f"each client at least one sample."
        )
