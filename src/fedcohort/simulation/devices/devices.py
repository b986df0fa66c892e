"""The clients' devices: how fast they are, and when they are available."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import (
    MOST,
    NumberNeed,
    WholeNeed,
    as_array,
    checked_path,
    did_you_mean,
)
from fedcohort._display import short_repr
from fedcohort._fields import Record, checks, declared, of_kind
from fedcohort._whole_file import reason_of
from fedcohort.errors import DataError, SimulationError
from fedcohort.simulation.devices.availability import DAY, Availability, Intervals
from fedcohort.streams import Seed, Stream, checked_seed, stream

#: Defaults: samples per second of training, and bytes per second of a client's line.
SPEED = 1_000.0
LINE = 1_000_000.0
#: Samples or bytes a second. These limits keep a client's time finite for every spread.
RATE = NumberNeed(least=1e-9, most=1e18)
#: The standard deviation of a logarithm.
SPREAD = NumberNeed(least=0, most=10)
CLIENTS = WholeNeed(least=1, most=MOST, way_out="Pass how many there are.")


@dataclass(frozen=True, slots=True, eq=False)
class Devices(Record):
    """The devices of the clients: speeds, connections and hours.

    A client that gets the model, trains and answers takes

        bytes down / ``down`` + samples processed / ``speed`` + bytes up / ``up``

    simulated seconds; see :mod:`fedcohort.simulation.devices.cost` for the bytes.

    Attributes
    ----------
    speed, down, up
        Samples that each client processes in a second of training, and bytes a second to and from
        it, shape (n_clients,).
    availability
        When clients are available; None: always.
    jitter
        In every round each client's computing takes exp(jitter * z) times as long, z standard
        normal, from the address (seed, round, client): the same for all designs. 0: none.
    """

    _error = SimulationError

    speed: NDArray[np.float64]
    down: NDArray[np.float64]
    up: NDArray[np.float64]
    availability: Availability | None = of_kind(
        None, Availability, way_out="None: clients are always available."
    )
    jitter: float = declared(SPREAD, 0.0)

    def _check(self) -> None:
        for name in ("speed", "down", "up"):
            given = as_array(getattr(self, name))
            is_line = given.ndim == 1 and len(given) and given.shape == as_array(self.speed).shape
            if not is_line or given.dtype.kind not in "iuf":
                raise SimulationError(
                    f"Devices: {name} must be one number per client, as many as speed has; got "
                    f"{given.dtype} of shape {given.shape}. Pass lists of one length."
                )
            values = given.astype(np.float64)
            good = (values > 0) & (values < np.inf)  # False for NaN
            if not good.all():
                bad = int(np.argmin(good))
                what = f"{name} must be above 0 and finite"
                raise SimulationError(
                    f"Devices: {what}; client {bad} has {values[bad]}. Leave the client out, or "
                    f"use an availability for one that is away."
                )
            values.setflags(write=False)
            self._put(**{name: values})
        if self.availability is not None:
            self.availability._check_clients(self.n_clients)

    def __repr__(self) -> str:
        parts = {"median_speed": float(np.median(self.speed)), "jitter": float(self.jitter)}
        always = self.availability is None
        return short_repr(self, n_clients=self.n_clients, **parts, always_available=always)

    @classmethod
    @checks(SimulationError, n_clients=CLIENTS, speed=RATE, down=RATE, up=RATE, jitter=SPREAD)
    def equal(
        cls,
        n_clients: int,
        *,
        speed: float = SPEED,
        down: float = LINE,
        up: float = LINE,
        availability: Availability | None = None,
        jitter: float = 0.0,
    ) -> Devices:
        """Give every client the same device.

        Parameters
        ----------
        speed
            Samples that a client processes in a second of training.
        down, up
            Bytes a second to and from a client.
        availability
            When clients are available; None: always.
        jitter
            Each round multiplies a client's computing time by exp(jitter * z), z standard normal.
        """
        speeds, downs, ups = (np.full(n_clients, rate) for rate in (speed, down, up))
        return cls(speeds, downs, ups, availability, jitter)

    @classmethod
    @checks(
        SimulationError,
        n_clients=CLIENTS,
        speed=RATE,
        speed_spread=SPREAD,
        down=RATE,
        up=RATE,
        line_spread=SPREAD,
        awake=NumberNeed(least=1e-9, most=1),
        day=DAY,
        jitter=SPREAD,
    )
    def generated(
        cls,
        n_clients: int,
        seed: Seed = None,
        *,
        speed: float = SPEED,
        speed_spread: float = 1.0,
        down: float = LINE,
        up: float = LINE,
        line_spread: float = 1.0,
        awake: float = 1.0,
        day: float = 86_400.0,
        jitter: float = 0.0,
    ) -> Devices:
        """Draw devices from a seed.

        Parameters
        ----------
        n_clients, seed
            How many clients, and an integer, a generator that is asked for one, or None for a
            random one; the address of the draw is (seed, ``Stream.DEVICES``).
        speed, down, up
            Medians over clients.
        speed_spread, line_spread
            Standard deviations of the normal logarithms; a client's ``down`` and ``up`` share one
            deviation.
        awake, day
            Every client is available for the share ``awake`` of each day, from a random moment on,
            uniform in the day of ``day`` simulated seconds; 1: always.
        jitter
            Each round multiplies a client's computing time by exp(jitter * z), z standard normal.
        """
        rng = stream(checked_seed("Devices", seed), use=Stream.DEVICES)
        # Always draw all three, in this order: ``awake`` must not change who is fast.
        computing, line = rng.standard_normal(n_clients), rng.standard_normal(n_clients)
        phase = rng.random(n_clients)
        times = None if awake == 1 else Intervals.diurnal(phase, awake=awake, day=day)
        with np.errstate(over="ignore"):  # infinite speeds are refused
            factor, line = np.exp(speed_spread * computing), np.exp(line_spread * line)
            return cls(speed * factor, down * line, up * line, times, jitter)

    @property
    def n_clients(self) -> int:
        """How many clients there are."""
        return len(self.speed)

    def delays(self, seed: int, round_: int) -> NDArray[np.float64]:
        """Return the factor on each client's computing time in a round."""
        if self.jitter == 0:
            return np.ones(self.n_clients)
        # One stream per round; address 0 made the devices.
        rng = stream(seed, round_=round_ + 1, use=Stream.DEVICES)
        return np.asarray(np.exp(self.jitter * rng.standard_normal(self.n_clients)))

    def available(self, now: float, *, round_: int = 0, seed: int = 0) -> NDArray[np.bool_]:
        """Return who is available at a moment and in a round of a run, shape (n_clients,)."""
        if self.availability is None:
            return np.ones(self.n_clients, dtype=bool)
        return self.availability.at(now, n_clients=self.n_clients, round_=round_, seed=seed)

    def parts(self) -> list[object]:
        """Return everything as arrays and plain values, for a fingerprint."""
        kept: list[object] = [self.speed, self.down, self.up, self.jitter]
        return kept if self.availability is None else [*kept, *self.availability.parts()]


NEEDED = ("client", "speed", "down", "up")
INTERVAL = ("start", "end")
EXAMPLE = "Begin the file with client,speed,down,up or client,speed,down,up,start,end."


@checks(SimulationError, n_clients=CLIENTS, jitter=SPREAD)
def read_devices(path: str | Path, n_clients: int, *, jitter: float = 0.0) -> Devices:
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
        How many clients the file must have.
    jitter
        Each round multiplies a client's computing time by exp(jitter * z), z standard normal.
    """
    path = checked_path("read_devices", "path", path, error=DataError)
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
            raise DataError(f"{place}: client {client} appears twice. Drop one of its lines.")
    if missing := n_clients - len(numbers):
        first = next(client for client in range(n_clients) if client not in numbers)
        raise DataError(
            f"{path}: needs a line for each of the {n_clients} clients; {missing} are missing, "
            f"the first is client {first}. Add them."
        )
    speed, down, up = np.array([numbers[client] for client in range(n_clients)]).T
    times = [(client, *each) for client in range(n_clients) for each in intervals[client]]
    owner, start, end = (np.array(column) for column in zip(*times, strict=True))
    always = all((0.0, math.inf) in each for each in intervals.values())
    availability = None if always else Intervals(owner, start, end)
    return Devices(speed, down, up, availability, jitter)


def _lines(path: Path) -> tuple[bool, list[tuple[str, dict[str, str]]]]:
    """Return whether the file has intervals, and every line with its place."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        reason = reason_of(error)
        raise DataError(f"{path}: cannot be read ({reason}). Check the path.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: is not a CSV file ({error}). {EXAMPLE}") from error
    if not rows:
        raise DataError(f"{path}: is empty. {EXAMPLE}")
    header = [cell.strip().lower() for cell in rows[0][1]]
    _check_header(path, header)
    found = []
    for number, row in rows[1:]:
        place, needed = f"{path}, line {number}", f"{len(header)} values ({', '.join(header)})"
        if len(row) != len(header):
            raise DataError(f"{place}: needs {needed}; got {len(row)}.")
        found.append((place, dict(zip(header, map(str.strip, row), strict=True))))
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
        raise DataError(f"{path}: a column appears twice in {', '.join(header)}. Drop one.")
    for name in known if set(INTERVAL) & set(header) else NEEDED:
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
