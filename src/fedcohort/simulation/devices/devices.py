"""The clients' devices: how fast they are, and when they are available."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import checked_whole
from fedcohort._display import short_repr
from fedcohort.errors import SimulationError
from fedcohort.streams import Seed, Stream, checked_seed, stream


@dataclass(frozen=True, slots=True, eq=False)
class Availability:
    """The intervals in which clients are available; a client without an interval never is.

    Attributes
    ----------
    client, start, end
        One entry per interval, ``start <= now < end``, in simulated seconds.
    day
        The intervals repeat after this many seconds (start and end then lie within one day); None:
        they do not repeat.

    Examples
    --------
    >>> nights = Availability([0, 1], [0.0, 5.0], [5.0, 10.0], day=10.0)
    >>> nights.at(22.0, n_clients=3).tolist()
    [True, False, False]
    """

    client: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    day: float | None = None

    def __post_init__(self) -> None:
        kinds = {"client": np.int64, "start": np.float64, "end": np.float64}
        for name, kind in kinds.items():
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=kind))
        most = np.inf if self.day is None else self.day
        if not (self.client.shape == self.start.shape == self.end.shape) or self.client.ndim != 1:
            raise SimulationError(
                "Availability: client, start and end must be lists of one length."
            )
        # Negated, so that NaN is refused too.
        bad = ~((self.start >= 0) & (self.start < self.end) & (self.end <= most))
        if not most > 0 or bad.any():
            which = f"; interval {int(np.argmax(bad))} does not" if bad.any() else ""
            raise SimulationError(
                f"Availability: intervals must have 0 <= start < end, end at most the day (of more "
                f"than 0 seconds){which}."
            )

    def __repr__(self) -> str:
        n_clients = len(np.unique(self.client))
        return short_repr(self, intervals=len(self.client), n_clients=n_clients, day=self.day)

    @classmethod
    def diurnal(cls, phase: NDArray[np.float64], *, awake: float, day: float) -> Availability:
        """Make every client available for a share ``awake`` of each day.

        ``phase`` is when each client comes, as a share of the day, shape (n_clients,).
        """
        begin, end = phase * day, (phase + awake) * day
        clients = np.arange(len(phase))
        late = end > day  # over midnight: two intervals
        return cls(
            np.concatenate([clients, clients[late]]),
            np.concatenate([begin, np.zeros(late.sum())]),
            np.concatenate([np.minimum(end, day), (end - day)[late]]),
            day=day,
        )

    def at(self, now: float, *, n_clients: int) -> NDArray[np.bool_]:
        """Return who is available at a moment, shape (n_clients,)."""
        here = np.zeros(n_clients, dtype=bool)
        moment = self._moment(now)
        here[self.client[(self.start <= moment) & (moment < self.end)]] = True
        return here

    def seconds_until_somebody(self, now: float, whom: NDArray[np.bool_]) -> float:
        """Return the time until one of ``whom`` comes; infinity if nobody ever does."""
        starts = self.start[whom[self.client]]
        ahead = starts - self._moment(now)
        if self.day is not None:
            ahead = np.where(ahead > 0, ahead, ahead + self.day)  # tomorrow
        return float(ahead[ahead > 0].min(initial=np.inf))

    def _moment(self, now: float) -> float:
        return now if self.day is None else now % self.day


#: Defaults: samples per second of training, and bytes per second of a client's line.
SPEED = 1_000.0
LINE = 1_000_000.0


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """What the clients train on.

    A client that gets the model, trains and answers takes

        bytes down / ``down`` + samples processed / ``speed`` + bytes up / ``up``

    simulated seconds; see :mod:`fedcohort.simulation.devices.cost` for the bytes.

    Attributes
    ----------
    speed
        Samples that each client processes in a second of training, shape (n_clients,).
    down, up
        Bytes a second to and from each client, shape (n_clients,).
    availability
        When clients are available; None: always.
    jitter
        In every round each client's computing takes exp(jitter * z) times as long, z standard
        normal, from the address (seed, round, client): the same for all designs. 0: none.
    """

    speed: NDArray[np.float64]
    down: NDArray[np.float64]
    up: NDArray[np.float64]
    availability: Availability | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name in ("speed", "down", "up"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or values.shape != np.shape(self.speed) or not len(values):
                raise SimulationError(
                    f"Devices: {name} must be one number per client, as many as speed has; got "
                    f"shape {values.shape}."
                )
            good = (values > 0) & (values < np.inf)  # False for NaN
            if not good.all():
                client = int(np.argmin(good))
                raise SimulationError(
                    f"Devices: {name} must be above 0 and finite; client {client} has "
                    f"{values[client]}."
                )
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter <= 10:
            raise SimulationError(f"Devices: jitter must be from 0 to 10; got {self.jitter!r}.")
        if self.availability is not None:
            known = self.availability.client
            if len(known) and not 0 <= known.min() <= known.max() < self.n_clients:
                raise SimulationError(
                    f"Devices: available clients must be 0 to {self.n_clients - 1}; got "
                    f"{known.min()} to {known.max()}."
                )

    def __repr__(self) -> str:
        parts = {"median_speed": float(np.median(self.speed)), "jitter": float(self.jitter)}
        always = self.availability is None
        return short_repr(self, n_clients=self.n_clients, **parts, always_available=always)

    @classmethod
    def equal(
        cls,
        n_clients: int,
        *,
        speed: float = SPEED,
        down: float = LINE,
        up: float = LINE,
        jitter: float = 0.0,
    ) -> Devices:
        """Give every client the same device, always available."""
        speeds, downs, ups = (np.full(n_clients, value) for value in (speed, down, up))
        return cls(speeds, downs, ups, jitter=jitter)

    @classmethod
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
            As in the class.
        """
        checked_whole(
            "Devices", "n_clients", n_clients, least=1, way_out="Pass how many there are."
        )
        for name, value in (("speed_spread", speed_spread), ("line_spread", line_spread)):
            if not 0 <= value <= 10:
                raise SimulationError(f"Devices: {name} must be from 0 to 10; got {value!r}.")
        if not 0 < awake <= 1 or not 0 < day < math.inf:
            raise SimulationError(
                f"Devices: awake must be above 0 and at most 1, day above 0 and finite; got "
                f"awake={awake!r} and day={day!r}."
            )
        rng = stream(checked_seed("Devices", seed), use=Stream.DEVICES)
        # Always draw all three, in this order: ``awake`` must not change who is fast.
        computing, line = rng.standard_normal(n_clients), rng.standard_normal(n_clients)
        phase = rng.random(n_clients)
        return cls(
            speed * np.exp(speed_spread * computing),
            down * np.exp(line_spread * line),
            up * np.exp(line_spread * line),
            None if awake == 1 else Availability.diurnal(phase, awake=awake, day=day),
            jitter,
        )

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

    def available(self, now: float) -> NDArray[np.bool_]:
        """Return who is available at a moment, shape (n_clients,)."""
        if self.availability is None:
            return np.ones(self.n_clients, dtype=bool)
        return self.availability.at(now, n_clients=self.n_clients)

    def parts(self) -> list[object]:
        """Return everything as arrays and plain values, for a fingerprint."""
        kept: list[object] = [self.speed, self.down, self.up, self.jitter]
        times = self.availability
        return kept if times is None else [*kept, times.client, times.start, times.end, times.day]
