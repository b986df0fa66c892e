"""Read samples that name their clients: LEAF's JSON, data sets of Hugging Face, tables."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import ListNeed, TextNeed, brief, did_you_mean, listed
from fedcohort._display import counted
from fedcohort.client_files.formats import Source, read_rows
from fedcohort.client_files.table import Table, is_missing, text_in
from fedcohort.errors import DataError, InputError
from fedcohort.simulation.data.text import (
    LENGTH,
    characters_of,
    encode_text,
    next_characters,
    vocabulary,
    words_of,
)

#: The place of a tweet's text among its fields, in LEAF's Sent140.
TWEET = 4
#: Pixels of a row and of a column of FEMNIST's images.
PIXELS = 28
COLUMNS = ListNeed(item=TextNeed(), least=0, way_out="Pass for example ['patient'].")
#: A column of texts with more different ones is not used as a feature.
MOST_CATEGORIES = 50


class Samples(NamedTuple):
    """Inputs, labels, and the client of each sample."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    clients: NDArray[Any]


@dataclass(frozen=True)
class _User:
    """A user of LEAF: its samples, in which numbers are an array and texts a list."""

    name: str
    x: Any
    y: list[Any]
    file: Path

    def error(self, need: str, value: object) -> DataError:
        """Return the error for a user's samples."""
        return DataError(
            f"from_leaf: {self.file.name}: user {self.name!r} needs {need}; got {brief(value)}. "
            f"Write the file again with LEAF's preprocess.sh."
        )

    @property
    def texts(self) -> list[str]:
        """The texts: the samples, or the fields of its tweets that hold them."""
        own = [each[TWEET] if _is_tweet(each) else each for each in self.x]
        if bad := [each for each in own if not isinstance(each, str)]:
            raise self.error("texts as the first user has", bad[0])
        return own

    def labels(self) -> NDArray[np.int64]:
        """Return its labels as whole numbers: those of classes, or of the next characters."""
        if isinstance(self.x[0], str):
            if bad := [y for y in self.y if not isinstance(y, str) or len(y) != 1]:
                raise self.error("the next character as y of each text", bad[0])
            return encode_text("".join(self.y)).astype(np.int64)
        whole = (isinstance(y, int | float) and y % 1 == 0 and abs(y) < 2**63 for y in self.y)
        if bad := [y for y, is_whole in zip(self.y, whole, strict=True) if not is_whole]:
            raise self.error("whole numbers as y", bad[0])
        return np.array(self.y, dtype=np.int64)


def read_leaf(folder: Path, words: int, length: int) -> tuple[Samples, Samples | None]:
    """Read the training and the test files of a folder; without test files, None."""
    home = next((each for each in (folder, folder / "data") if (each / "train").is_dir()), folder)
    train, test = (
        [user for file in sorted((home / part).glob("*.json")) for user in _users(file)]
        for part in ("train", "test")
    )
    first = next((user.x for user in train if len(user.x)), None)
    if first is None:
        raise DataError(
            f"from_leaf: {folder} must have a folder train with .json files of samples, and may "
            f"have a folder test; it has none. Pass the folder that LEAF's preprocess.sh wrote."
        )
    are_tweets = _is_tweet(first[0])
    texts = (text for user in train for text in user.texts)
    known = vocabulary(texts, words) if are_tweets else {}

    def inputs(user: _User) -> NDArray[np.generic]:
        if isinstance(first, np.ndarray):
            if not isinstance(user.x, np.ndarray) or user.x.shape[1:] != first.shape[1:]:
                raise user.error(f"{first.shape[1]} numbers for each sample", user.x[0])
            return user.x
        if are_tweets:
            return words_of(user.texts, known, length)
        return characters_of(user.texts, LENGTH)

    return _joined(train, inputs), _joined(test, inputs) if test else None


def _users(file: Path) -> Iterator[_User]:
    """Yield the users of a file that have samples."""
    try:
        users = json.loads(file.read_bytes())["user_data"]
        found = [(name, own["x"], own["y"]) for name, own in users.items()]
    except (AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"from_leaf: {file.name}: must be JSON with the key user_data, and x and y for each "
            f"user; it cannot be read ({type(error).__name__}: {error}). Write it again with "
            f"LEAF's preprocess.sh."
        ) from error
    for name, x, y in found:
        user = _User(name, x, y, file)
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise user.error("a list x, and a list y of the same length", [x, y])
        if x and not isinstance(x[0], str) and not _is_tweet(x[0]):
            # Now: the numbers of a whole file take much more memory as Python's own.
            try:
                numbers = np.array(x, dtype=np.float32).reshape(len(x), -1)
            except (OverflowError, TypeError, ValueError):
                numbers = np.empty((0, 0), dtype=np.float32)
            if not numbers.size:
                raise user.error("samples of equally many numbers, or texts", x[0])
            shape = (1, PIXELS, PIXELS) if numbers.shape[1] == PIXELS**2 else numbers.shape[1:]
            user = _User(name, numbers.reshape(-1, *shape), y, file)
        if x:
            yield user


def _is_tweet(sample: Any) -> bool:
    is_row = isinstance(sample, list) and len(sample) > TWEET
    return is_row and all(isinstance(each, str) for each in sample)


def _joined(users: Sequence[_User], inputs: Callable[[_User], NDArray[np.generic]]) -> Samples:
    x = np.concatenate([inputs(user) for user in users])
    y = np.concatenate([user.labels() for user in users])
    return Samples(x, y, np.repeat([user.name for user in users], [len(user.y) for user in users]))


def read_hugging_face(
    data: Any, client: str, x: str, y: str | None, words: int, length: int, known: Any = None
) -> tuple[Samples, Any]:
    """Read columns of a data set of Hugging Face; return also the known words and labels.

    ``known`` are those of the training part, which the test part needs.
    """
    labelled = {} if y is None else {"y": y}
    _check_columns("from_hugging_face", data.column_names, client=client, x=x, **labelled)
    taken = data.select_columns(list({client, x, *([] if y is None else [y])}))
    columns = taken.with_format("numpy")[:]
    inputs, clients = columns[x], np.asarray(taken[client][:])
    is_text = len(inputs) > 0 and isinstance(inputs[0], str)
    _check_texts(x, inputs)
    words_known, labels_known = known or ({}, {})
    if y is None:
        if not is_text:
            raise DataError(
                f"from_hugging_face: x must be a column of texts without y; column {x!r} "
                f"has none. Name the column of labels as y."
            )
        parts = [next_characters(text, length) for text in map(str, inputs)]
        sequences, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Samples(sequences, labels, np.repeat(clients, [len(p[0]) for p in parts])), known
    cells = np.asarray(columns[y]).tolist()
    _check_texts(y, cells)
    if cells and isinstance(cells[0], str):
        labels_known = labels_known or _numbered(cells)
        cells = [_number_of(label, labels_known, y) for label in cells]
    if is_text:
        texts = list(map(str, inputs))
        words_known = words_known or vocabulary(texts, words)
        inputs = words_of(texts, words_known, length)
    return Samples(_as_inputs(inputs, x), np.array(cells), clients), (words_known, labels_known)


def _check_texts(column: str, cells: Sequence[Any]) -> None:
    """Refuse a cell without text in a column of texts."""
    bad = [cell for cell in cells if not isinstance(cell, str)]
    if bad and len(bad) < len(cells):
        raise DataError(
            f"from_hugging_face: a column of texts must have one in each row; {column!r} has "
            f"{brief(bad[0])}. Leave such rows out with filter."
        )


def _as_inputs(inputs: Any, name: str) -> NDArray[np.generic]:
    """Return inputs as one array; images get their colours first."""
    try:
        array: NDArray[Any] = np.stack(list(inputs)) if len(inputs) else np.empty((0, 1))
    except ValueError as error:
        raise DataError(
            f"from_hugging_face: all samples of {name!r} must have one shape ({error}). Resize "
            f"them with map."
        ) from error
    if array.dtype == np.uint8 and array.ndim == 3:
        return array[:, None]
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] in (1, 3):
        return array.transpose(0, 3, 1, 2)
    return array.reshape(len(array), -1) if array.ndim == 1 else array


def _numbered(labels: Sequence[Any]) -> dict[Any, int]:
    return {label: number for number, label in enumerate(sorted(set(labels)))}


def _number_of(label: Any, known: dict[Any, int], column: str) -> int:
    if label not in known:
        raise DataError(
            f"from_hugging_face: labels of testing must be among those of training; {column} has "
            f"{brief(label)}. Leave those samples out.{did_you_mean(label, known)}"
        )
    return known[label]


def _check_columns(owner: str, names: Sequence[str], **asked: str) -> None:
    for role, name in asked.items():
        if not isinstance(name, str) or name not in names:
            raise DataError(
                f"{owner}: {role} must be one of the columns {listed(list(names))}; got "
                f"{brief(name)}.{did_you_mean(name, names)}"
            )


@dataclass(frozen=True)
class Rows:
    """A table's columns, the label of each row and its client."""

    table: Table
    columns: Sequence[int]
    y: NDArray[np.int64]
    clients: NDArray[Any]

    def features(self, train: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the features of all rows, scaled and divided into categories as in training.

        A column of numbers gets mean 0 and variance 1, and 0 where a number is missing. A column
        of texts becomes a column of 0 and 1 for each text; a missing one is a text of its own.
        """
        found: list[NDArray[np.float64]] = []
        for k in self.columns:
            cells, name = self.table.columns[k], self.table.names[k]
            numbers = _numbers(cells, commas=self.table.has_semicolons)
            if numbers is not None:
                found.append(_scaled(numbers, train))
                continue
            texts = np.array(["" if is_missing(cell) else text_in(cell) for cell in cells])
            kinds = np.unique(texts[train])
            if len(kinds) > MOST_CATEGORIES:
                raise DataError(
                    f"from_table: a column of texts must have at most {MOST_CATEGORIES} different "
                    f"ones; {name!r} has {len(kinds)}. Pass leave_out=[{name!r}]."
                )
            found += [(texts == kind).astype(np.float64) for kind in kinds]
        return np.stack(found, axis=1).astype(np.float32)


def read_samples(source: Source, client: str, y: str, leave_out: Collection[str]) -> Rows:
    """Read a table of samples."""
    try:
        table = read_rows(source)
    except InputError as error:
        raise DataError(f"from_table: {error}") from error
    names = table.names
    COLUMNS.check("from_table", "leave_out", leave_out, DataError)
    others = {f"leave_out.{k}": name for k, name in enumerate(leave_out)}
    _check_columns("from_table", names, client=client, y=y, **others)
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise DataError(
            f"from_table: {table.source} needs distinct names of columns; {twice[0]!r} appears "
            f"twice. Rename one."
        )
    columns = [k for k, name in enumerate(names) if name not in (client, y, *leave_out)]
    labels, clients = (table.columns[names.index(name)] for name in (y, client))
    for role, name, cells in (("label", y, labels), ("client", client, clients)):
        missing = [k for k, cell in enumerate(cells) if is_missing(cell)]
        if missing or not cells or not columns:
            rest = f"it has {counted(len(cells), 'row')} and {counted(len(columns), 'feature')}"
            if missing:
                rest = f"{len(missing)} have none, {table.place_of(missing[0])} first"
            raise DataError(
                f"from_table: {table.source} needs features, and a {role} in column {name!r} of "
                f"each row; {rest}. Leave such rows out, or name another column."
            )
    known = _numbered(_values(labels))
    if any(isinstance(label, float) and label != int(label) for label in known):
        raise DataError(
            f"from_table: y must be a column of classes; {y!r} has numbers with fractions. Divide "
            f"them into classes."
        )
    numbers = np.array([known[label] for label in _values(labels)])
    return Rows(table, columns, numbers, np.array(_names(clients)))


def _names(cells: Sequence[Any]) -> list[Any]:
    """Return clients as values; as texts where numbers would join some: 007 is not 7."""
    values = _values(cells)
    own = {cell if isinstance(cell, int | float) else text_in(cell) for cell in cells}
    return values if len(set(values)) == len(own) else [text_in(cell) for cell in cells]


def _values(cells: Sequence[Any]) -> list[Any]:
    """Return labels or clients: numbers if all are, else texts. They can be sorted."""
    numbers = _numbers(cells)
    if numbers is None:
        return [text_in(cell) for cell in cells]
    return [int(value) if value == int(value) else value for value in numbers.tolist()]


def _numbers(cells: Sequence[Any], *, commas: bool = False) -> NDArray[np.float64] | None:
    """Return a column's numbers, NaN where one is missing; None if a cell is none."""
    found = []
    for cell in cells:
        if is_missing(cell):
            found.append(math.nan)
            continue
        try:
            is_text = commas and isinstance(cell, str)
            found.append(float(cell.replace(",", ".") if is_text else cell))
        except (TypeError, ValueError):
            return None
    return np.array(found)


def _scaled(numbers: NDArray[np.float64], train: NDArray[np.bool_]) -> NDArray[np.float64]:
    own = numbers[train & np.isfinite(numbers)]
    if not len(own):
        return np.zeros(len(numbers))
    # Equal numbers may have a mean that is rounded, and then no deviation of exactly 0.
    mean, spread = (own.mean(), own.std()) if own.min() < own.max() else (own[0], 1.0)
    scaled: NDArray[np.float64] = (numbers - mean) / (spread if spread > 0 else 1.0)
    scaled[~np.isfinite(scaled)] = 0
    return scaled
