"""Devices from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from fedcohort._arguments import did_you_mean
from fedcohort.errors import DataError
from fedcohort.simulation.devices.devices import Availability, Devices

NEEDED = ("client", "speed", "down", "up")
INTERVAL = ("start", "end")
EXAMPLE = "Begin the file with client,speed,down,up or client,speed,down,up,start,end."


def read_devices(path: Path, n_clients: int, *, jitter: float = 0.0) -> Devices:
    """Read devices from a CSV file.

    The columns are ``client`` (from 0), ``speed`` (samples a second), ``down`` and ``up`` (bytes a
    second). If clients are not always available, add ``start`` and ``end`` of an interval in
    simulated seconds: a client has one line per interval, and every line repeats its speeds. An
    empty start and end mean always.

    Parameters
    ----------
    path
        The file.
    n_clients
        How many clients there are; the file must have them all.
    jitter
        As in :class:`Devices`.
    """
    numbers: dict[int, tuple[float, ...]] = {}
    intervals: dict[int, list[tuple[float, float]]] = defaultdict(list)
    has_intervals, lines = _lines(path)
    for place, cells in lines:
        client = _client(place, cells["client"], n_clients)
        device = tuple(_number(place, name, cells[name]) for name in NEEDED[1:])
        if numbers.setdefault(client, device) != device:
            raise DataError(
                f"{place}: client {client} has another speed, down or up than before. Repeat the "
                f"same numbers in all of its lines."
            )
        intervals[client].append(_interval(place, cells) if has_intervals else (0.0, math.inf))
        if len(intervals[client]) > 1 and not has_intervals:
            raise DataError(f"{place}: client {client} comes twice. Drop one of its lines.")
    missing = [client for client in range(n_clients) if client not in numbers]
    if missing:
        raise DataError(
            f"{path}: needs a line for each of the {n_clients} clients; {len(missing)} are "
            f"missing, the first is client {missing[0]}. Add them."
        )
    speed, down, up = np.array([numbers[client] for client in range(n_clients)]).T
    times = [(client, *each) for client in range(n_clients) for each in intervals[client]]
    owner, start, end = (np.array(column) for column in zip(*times, strict=True))
    always = all((0.0, math.inf) in each for each in intervals.values())
    availability = None if always else Availability(owner, start, end)
    return Devices(speed, down, up, availability, jitter)


def _lines(path: Path) -> tuple[bool, list[tuple[str, dict[str, str]]]]:
    """Return whether the file has intervals, and every line with its place."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"{path}: cannot be read ({reason}). Check the path.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is no CSV file ({error}). {EXAMPLE}") from error
    if not rows:
        raise DataError(f"{path}: is empty. {EXAMPLE}")
    header = [cell.strip().lower() for cell in rows[0][1]]
    _check_header(path, header)
    found = []
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {number}: needs {len(header)} values ({', '.join(header)}); got "
                f"{len(row)}."
            )
        cells = dict(zip(header, (cell.strip() for cell in row), strict=True))
        found.append((f"{path}, line {number}", cells))
    return "start" in header, found


def _check_header(path: Path, header: list[str]) -> None:
    known = [*NEEDED, *INTERVAL]
    for name in header:
        if name not in known:
            raise DataError(
                f"{path}: unknown column {name!r}; known are {', '.join(known)}."
                f"{did_you_mean(name, known) or ' ' + EXAMPLE}"
            )
    if len(set(header)) < len(header):
        raise DataError(f"{path}: a column comes twice in {', '.join(header)}. Drop one.")
    both = NEEDED if not set(INTERVAL) & set(header) else known
    for name in both:
        if name not in header:
            raise DataError(f"{path}: needs a column {name}; got {', '.join(header)}. {EXAMPLE}")


def _client(place: str, text: str, n_clients: int) -> int:
    if not text.isdecimal() or not text.isascii() or not len(text) < 20 or int(text) >= n_clients:
        raise DataError(
            f"{place}: client must be a whole number from 0 to {n_clients - 1}; got {text[:40]!r}."
        )
    return int(text)


def _number(place: str, name: str, text: str) -> float:
    value = _float(text)
    if not 0 < value < math.inf:
        raise DataError(
            f"{place}: {name} must be a number above 0 and finite; got {text[:40]!r}. Correct it."
        )
    return value


def _interval(place: str, cells: dict[str, str]) -> tuple[float, float]:
    """Return start and end; both empty mean always."""
    if not cells["start"] and not cells["end"]:
        return 0.0, math.inf
    start, end = _float(cells["start"]), _float(cells["end"])
    if not 0 <= start < end:  # refuses NaN too
        raise DataError(
            f"{place}: start must be at least 0 and end after it, in seconds, or both empty; got "
            f"{cells['start'][:40]!r} and {cells['end'][:40]!r}."
        )
    return start, end


def _float(text: str) -> float:
    try:
        return math.nan if "_" in text else float(text)  # Python would read 1_000 as a number
    except ValueError:
        return math.nan
