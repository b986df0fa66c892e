"""Read clients: sizes, ids and groups from CSV or JSON, updates from a .npy file."""

import csv
import io
import json
import sys
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from fedcohort._arguments import did_you_mean
from fedcohort._whole_file import reason_of
from fedcohort.errors import DesignError, InputError, PopulationError
from fedcohort.population import Population
from fedcohort.similarity.measures import checked_updates

#: Columns of a CSV file, and the JSON key of each.
COLUMNS = {"size": "sizes", "id": "ids", "group": "groups"}
EXAMPLE = "Give one size per line, or a header such as id,size."


def read_clients(path: str) -> Population:
    """Read sizes, and ids and groups if present, in the file's order. ``-`` is standard input."""
    source = "standard input" if path == "-" else path
    text = _read_text(path, source)
    if not text.strip():
        raise InputError(f"{source}: needs at least one size; the file is empty. {EXAMPLE}")
    read = _from_json if text.lstrip()[0] in "[{" else _from_csv
    lists = read(text, source)
    try:
        return Population(lists["sizes"], ids=lists.get("ids"), groups=lists.get("groups"))
    except PopulationError as error:
        raise InputError(f"{source}: {error}") from error


def _read_text(path: str, source: str) -> str:
    try:
        if path != "-":
            return Path(path).read_bytes().decode("utf-8-sig")
        if sys.stdin is None:
            raise InputError("standard input: is closed. Give a file, or pipe the sizes in.")
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except OSError as error:
        reason = reason_of(error)
        raise InputError(f"{source}: cannot be read ({reason}). Check the path.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: must be UTF-8 text; it is not. Save it as CSV.") from error


def _from_json(text: str, source: str) -> dict[str, list[Any]]:
    """Read ``[5, 3]`` or ``{"sizes": [5, 3], "ids": [...], "groups": [...]}``."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: is not valid JSON ({error}). Check the file.") from error
    lists = {"sizes": content} if isinstance(content, list) else content
    _check_keys(lists, list(COLUMNS.values()), "sizes", source)
    for key, values in lists.items():
        is_size = key == "sizes"
        kinds = (int, float) if is_size else (int, str)
        if not isinstance(values, list):
            raise InputError(f"{source}: {key} must be a list; got {json.dumps(values)[:40]}.")
        for position, value in enumerate(values):
            if not isinstance(value, kinds) or isinstance(value, bool) or _is_broken(value):
                raise InputError(
                    f"{source}: {key} must be {'numbers' if is_size else 'integers or names'}; "
                    f"client {position} has {json.dumps(value)[:40]}. Correct it."
                )
    return lists


def _from_csv(text: str, source: str) -> dict[str, list[Any]]:
    """Read one size per line, or the columns that a header names."""
    first = text.lstrip().splitlines()[0]
    delimiter = next((mark for mark in ";\t" if mark in first), ",")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(f"{source}: is not valid CSV ({error}). Check the file.") from error
    if not lines:
        raise InputError(f"{source}: needs at least one size; the file is empty. {EXAMPLE}")
    header = ["size"]
    if len(lines[0][1]) > 1 or _number(lines[0][1][0]) is None:
        header = [cell.strip().lower() for cell in lines.pop(0)[1]]
        _check_keys(header, list(COLUMNS), "size", source)
    lists: dict[str, list[Any]] = {COLUMNS[name]: [] for name in header}
    for line, row in lines:
        if len(row) != len(header):
            raise InputError(
                f"{source}, line {line}: needs {len(header)} values ({', '.join(header)}); got "
                f"{len(row)}. {EXAMPLE}"
            )
        for name, cell in zip(header, row, strict=True):
            lists[COLUMNS[name]].append(_cell(name, cell.strip(), f"{source}, line {line}"))
    return lists


def _check_keys(keys: object, known: list[str], needed: str, source: str) -> None:
    """Refuse unknown, repeated and missing columns."""
    if not isinstance(keys, (dict, list)):
        raise InputError(f"{source}: must be a list of sizes or an object with {needed}.")
    for key in keys:
        if key not in known:
            raise InputError(
                f"{source}: unknown column {str(key)[:40]!r}; known are {', '.join(known)}."
                f"{did_you_mean(key, known) or ' ' + EXAMPLE}"
            )
    if len(set(keys)) < len(keys):
        raise InputError(f"{source}: a column appears twice in {', '.join(keys)}. Drop one.")
    if needed not in keys:
        raise InputError(f"{source}: needs a column {needed}; got {', '.join(keys) or 'none'}.")


def _is_broken(value: object) -> bool:
    """Return whether a name contains a lone surrogate, which cannot be encoded."""
    return isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value)


def _cell(name: str, text: str, place: str) -> object:
    """Return a size as a number, and other cells as text."""
    if name != "size":
        if not text:
            raise InputError(f"{place}: {name} is empty. Fill it in, or leave the column out.")
        return text
    number = _number(text)
    if number is None:
        raise InputError(f"{place}: size must be a whole number; got {text!r}. Correct the line.")
    return number


def _number(text: str) -> int | float | None:
    if "_" in text:  # Python would read 1_000 as a number
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


#: Number of characters of numpy's error message that are shown.
REASON = 70


def read_updates(path: Path, n_clients: int) -> NDArray[np.floating]:
    """Read one row per client, in the order of the file of sizes.

    Nothing is unpickled; float32 and float64 stay on disk.
    """
    array = _opened(path)
    if array.ndim == 2 and len(array) != n_clients:
        raise InputError(
            f"{path}: needs a row for each of the {n_clients} clients; got {len(array)} rows. Save "
            f"them in the order of the sizes, zeros for clients that have sent none."
        )
    try:
        with np.errstate(over="ignore"):  # overflow gives infinity, which is refused
            return checked_updates(str(path), array, n_clients)
    except DesignError as error:
        raise InputError(str(error)) from error


def _opened(path: Path) -> NDArray[np.generic]:
    """Map the array into memory. Unlike numpy.load, accept only the format .npy."""
    try:
        with np.errstate(over="ignore"):  # a damaged shape can overflow
            return np.asarray(open_memmap(path, mode="r"))
    except OSError as error:
        reason = reason_of(error)
        raise InputError(f"{path}: cannot be read ({reason}). Check the path.") from error
    except (ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")[:REASON]
        raise InputError(
            f"{path}: must be a .npy file of numbers; it is not, or not whole ({reason}). Write "
            f"it with numpy.save, without Python objects."
        ) from error
