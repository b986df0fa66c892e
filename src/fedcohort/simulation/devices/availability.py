"""When clients are available: intervals of simulated time, or presence round by round.

Presence is addressed randomness: it depends on the seed, the round and the client, so it is the
same in all runs of a seed. Round 400 can be asked for without rounds 0 to 399.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import (
    MOST,
    NumberNeed,
    as_array,
    brief,
    checked_number,
    checked_numbers,
    checked_whole,
)
from fedcohort._display import short_repr
from fedcohort._fields import Record, checks, choice, declared, number, whole
from fedcohort.errors import SimulationError
from fedcohort.streams import Stream, stream

DAY = NumberNeed(above=0)
Chances = NDArray[np.float64]
#: How chances change over the rounds.
Pattern = Literal["stationary", "staircase", "sine"]


class Availability(Record, ABC):
    """When clients are available.

    :class:`Intervals` go by simulated time. :class:`Coins`, :class:`Markov` and :class:`Cyclic` go
    by the round; there, a round without any client passes in 60 simulated seconds.
    """

    __slots__ = ()
    _error = SimulationError

    def at(
        self, now: float, *, n_clients: int, round_: int = 0, seed: int = 0
    ) -> NDArray[np.bool_]:
        """Return who is available, shape (n_clients,).

        ``now`` is the simulated time; ``round_`` and ``seed`` are those of the run.
        """
        owner, error = type(self).__name__, SimulationError
        now = checked_number(owner, "now", now, least=-math.inf, error=error)
        n_clients = checked_whole(owner, "n_clients", n_clients, least=1, error=error)
        round_ = checked_whole(owner, "round_", round_, error=error)
        seed = checked_whole(owner, "seed", seed, error=error)
        self._check_clients(n_clients)
        return self._at(now, n_clients, round_, seed)

    def chances(self, round_: int) -> Chances | None:
        """Return each client's chance to be there in a round, shape (n_clients,).

        Without knowledge of other rounds; None where availability does not go by the round.
        """
        owner, error = type(self).__name__, SimulationError
        return self._chances(checked_whole(owner, "round_", round_, error=error))

    def mean_chance(self) -> Chances | None:
        """Return the share of rounds in which each client is there; None as in ``chances``."""
        return self._chances(0)

    def seconds_until_any(self, now: float, clients: NDArray[np.bool_]) -> float:
        """Return the time until one of these clients comes; infinity if time alone brings none."""
        owner, error = type(self).__name__, SimulationError
        now = checked_number(owner, "now", now, least=-math.inf, error=error)
        mask = as_array(clients)
        if mask.dtype != np.bool_ or mask.ndim != 1 or not len(mask):
            raise SimulationError(
                f"{owner}: clients must be one boolean per client; got {brief(clients)}. Pass a "
                f"mask."
            )
        self._check_clients(len(mask))
        return self._wait(now, mask)

    @abstractmethod
    def _check_clients(self, n_clients: int) -> None:
        """Refuse another number of clients than this is made for."""

    @abstractmethod
    def _at(self, now: float, n_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        """Return who is available."""

    @abstractmethod
    def _ever(self, n_clients: int) -> NDArray[np.bool_]:
        """Return who is available some time, shape (n_clients,)."""

    def _chances(self, round_: int) -> Chances | None:
        """Return what :meth:`chances` does."""
        return None

    def _wait(self, now: float, clients: NDArray[np.bool_]) -> float:
        """Return what :meth:`seconds_until_any` does."""
        return math.inf

    def parts(self) -> list[object]:
        """Return everything as arrays and plain values, for a fingerprint."""
        own = [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]
        return [type(self).__name__, *own]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Intervals(Availability):
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
    >>> nights = Intervals([0, 1], [0.0, 5.0], [5.0, 10.0], day=10.0)
    >>> nights.at(22.0, n_clients=3).tolist()
    [True, False, False]
    """

    client: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    day: float | None = declared(DAY, None)

    def _check(self) -> None:
        kinds = {"client": np.int64, "start": np.float64, "end": np.float64}
        for name, kind in kinds.items():
            given, whole = getattr(self, name), kind is np.int64
            found = checked_numbers(
                "Intervals", name, given, "n_intervals", whole=whole, error=SimulationError
            )
            self._put(**{name: found.astype(kind)})
        most = np.inf if self.day is None else self.day
        if not self.client.shape == self.start.shape == self.end.shape:
            raise SimulationError(
                f"Intervals: client, start and end must be lists of one length; got shapes "
                f"{self.client.shape}, {self.start.shape} and {self.end.shape}. Give each interval "
                f"all three."
            )
        # Negated, so that NaN is refused too.
        bad = ~((self.start >= 0) & (self.start < self.end) & (self.end <= most))
        if bad.any():
            raise SimulationError(
                f"Intervals: intervals must have 0 <= start < end, end at most the day; "
                f"interval {int(np.argmax(bad))} does not. Split an interval that passes the end "
                f"of a day."
            )

    def __repr__(self) -> str:
        n_clients = len(np.unique(self.client))
        return short_repr(self, intervals=len(self.client), n_clients=n_clients, day=self.day)

    @classmethod
    @checks(SimulationError, awake=NumberNeed(least=0, most=1), day=DAY)
    def diurnal(cls, phase: NDArray[np.float64], *, awake: float, day: float) -> Intervals:
        """Make every client available for a share ``awake`` of each day.

        ``phase`` is when each client comes, as a share of the day, shape (n_clients,).
        """
        phase = checked_numbers("Intervals", "phase", phase, "n_clients", error=SimulationError)
        begin, end = phase * day, (phase + awake) * day
        clients = np.arange(len(phase))
        late = end > day  # over midnight: two intervals
        return cls(
            np.concatenate([clients, clients[late]]),
            np.concatenate([begin, np.zeros(late.sum())]),
            np.concatenate([np.minimum(end, day), (end - day)[late]]),
            day=day,
        )

    def _check_clients(self, n_clients: int) -> None:
        known = self.client
        if len(known) and not 0 <= known.min() <= known.max() < n_clients:
            raise SimulationError(
                f"Intervals: clients must be 0 to {n_clients - 1}; got {known.min()} to "
                f"{known.max()}. Number clients as in speed."
            )

    def _ever(self, n_clients: int) -> NDArray[np.bool_]:
        return np.isin(np.arange(n_clients), self.client)

    def _at(self, now: float, n_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        here, moment = np.zeros(n_clients, dtype=bool), self._moment(now)
        here[self.client[(self.start <= moment) & (moment < self.end)]] = True
        return here

    def _wait(self, now: float, clients: NDArray[np.bool_]) -> float:
        starts = self.start[clients[self.client]]
        ahead = starts - self._moment(now)
        if self.day is not None:
            ahead = np.where(ahead > 0, ahead, ahead + self.day)  # tomorrow
        return float(ahead[ahead > 0].min(initial=np.inf))

    def _moment(self, now: float) -> float:
        return now if self.day is None else now % self.day


def _checked_chance(owner: str, chance: object, *, by_round: bool = False) -> Chances:
    """Validate chances from 0 to 1, one per client, and with ``by_round`` also rows of these."""
    given = as_array(chance)
    shapes = (1, 2) if by_round else (1,)
    if given.dtype.kind not in "iuf" or given.ndim not in shapes or not given.size:
        rows = ", or rows of them for rounds" if by_round else ""
        raise SimulationError(
            f"{owner}: chance must be one number per client{rows}; got {given.dtype} of shape "
            f"{given.shape}. Pass for example [0.9, 0.5, 0.1]."
        )
    good = (given >= 0) & (given <= 1)  # False for NaN
    if not good.all():
        *_, bad = np.argwhere(~good)[0].tolist()
        raise SimulationError(
            f"{owner}: chance must be a number from 0 to 1; client {bad} has {given[~good][0]}. "
            f"Scale the chances, or clip them."
        )
    found = given.astype(np.float64)
    found.setflags(write=False)
    return found


def _check_length(kind: Availability, known: int, n_clients: int) -> None:
    if known != n_clients:
        raise SimulationError(
            f"{type(kind).__name__}: chance must be one number for each of the {n_clients} "
            f"clients; got {known}. Pass one each."
        )


def _uniform(n_clients: int, round_: int, seed: int) -> Chances:
    """Return the numbers that decide a round: client i's does not depend on how many follow."""
    return stream(seed, round_=round_, use=Stream.PRESENCE).random(n_clients)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Coins(Availability):
    r"""An independent coin for every client and round.

    Client i is there in round t with chance :math:`q_i f(t)`, where

    .. math:: f(t) = \begin{cases} 1 & \text{stationary} \\
        \text{high, then low, for half a period each} & \text{staircase} \\
        (\text{high} + \text{low}) / 2 + \sin(2 \pi t / \text{period})
        (\text{high} - \text{low}) / 2 & \text{sine} \end{cases}

    The *interleaved sine* of FedAWE is the sine with ``absent_below=0.1``.

    Attributes
    ----------
    chance
        The :math:`q_i`, shape (n_clients,). Or rows of chances, shape (rounds, n_clients), one for
        each round, again from the first row after the last: rows of 0 and 1 replay a record.
    pattern
        The times f.
    period
        The rounds of a period, for ``staircase`` and ``sine``.
    high, low
        The highest and the lowest f of these two.
    absent_below
        A client with a lower chance than this in a round is away.

    References
    ----------
    M. Xiang et al., "Efficient federated learning against heterogeneous and non-stationary client
    unavailability" (FedAWE), NeurIPS 2024: the times f, with the defaults here.

    Examples
    --------
    >>> evenings = Coins([0.9, 0.5], pattern="staircase", period=2)
    >>> [evenings.chances(round_).tolist() for round_ in (0, 1, 2)]
    [[0.9, 0.5], [0.36..., 0.2], [0.9, 0.5]]
    """

    chance: Chances
    pattern: Pattern = choice("stationary", get_args(Pattern))
    period: int = whole(20, least=1, most=MOST)
    high: float = number(1.0, least=0, most=1)
    low: float = number(0.4, least=0, most=1)
    absent_below: float = number(0.0, least=0, most=1)

    def _check(self) -> None:
        self._put(chance=_checked_chance("Coins", self.chance, by_round=True))
        if self.low > self.high:
            raise SimulationError(
                f"Coins: low must be at most high, {self.high}; got {self.low}. Swap them."
            )

    def __repr__(self) -> str:
        mean = float(self.chance.mean())
        n_clients = self.chance.shape[-1]
        return short_repr(self, n_clients=n_clients, mean_chance=mean, pattern=self.pattern)

    def _check_clients(self, n_clients: int) -> None:
        _check_length(self, self.chance.shape[-1], n_clients)

    def _ever(self, n_clients: int) -> NDArray[np.bool_]:
        most = np.atleast_2d(self.chance) * (1.0 if self.pattern == "stationary" else self.high)
        return np.asarray(((most > 0) & (most >= self.absent_below)).any(axis=0))

    def _at(self, now: float, n_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        return _uniform(n_clients, round_, seed) < self._chances(round_)

    def _chances(self, round_: int) -> Chances:
        rows = np.atleast_2d(self.chance)
        found = rows[round_ % len(rows)] * self._times(round_)
        return np.where(found < self.absent_below, 0.0, found)

    def mean_chance(self) -> Chances:
        """Return the share of rounds in which each client is there, shape (n_clients,)."""
        period = 1 if self.pattern == "stationary" else self.period
        rounds = math.lcm(period, len(np.atleast_2d(self.chance)))
        return np.asarray(np.mean([self._chances(round_) for round_ in range(rounds)], axis=0))

    def _times(self, round_: int) -> float:
        """Return f."""
        if self.pattern == "stationary":
            return 1.0
        place = round_ % self.period
        if self.pattern == "staircase":
            return self.high if 2 * place < self.period else self.low
        middle, swing = (self.high + self.low) / 2, (self.high - self.low) / 2
        return middle + swing * math.sin(2 * math.pi * place / self.period)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Markov(Availability):
    r"""Clients that stay for a while and stay away for a while: a two-state Markov chain each.

    An absent client comes in the next round with chance :math:`a_i`, a present one leaves with
    chance :math:`b_i = a_i (1 - q_i) / q_i`, so that it is there in a share :math:`q_i` of the
    rounds. :math:`a_i` is ``come``, or less where :math:`b_i` would pass 1. Round 0 is stationary.

    Presence in round t is found backwards from t: one number :math:`U` for each client and round
    makes a client that was away come if :math:`U < a_i`, and a client that was there stay if
    :math:`U < 1 - b_i`. Where both say the same, rounds before do not matter. So only the last
    rounds are looked at, as many as it takes for every client.

    Attributes
    ----------
    chance
        The :math:`q_i`, shape (n_clients,).
    come
        The largest chance to come. The smaller, the longer clients stay and stay away.

    References
    ----------
    S. Wang, M. Ji, "A lightweight method for tackling unknown participation statistics in
    federated averaging" (FedAU), ICLR 2024: the chances to come and to leave.

    Examples
    --------
    >>> Markov([0.5, 0.1, 1.0], come=0.2).moves()
    (array([0.2       , 0.11111111, 0.2       ]), array([0.2, 1. , 0. ]))
    """

    chance: Chances
    come: float = number(0.1, above=0, most=1)

    def _check(self) -> None:
        self._put(chance=_checked_chance("Markov", self.chance))

    def __repr__(self) -> str:
        mean = float(self.chance.mean())
        return short_repr(self, n_clients=len(self.chance), mean_chance=mean, come=self.come)

    def _check_clients(self, n_clients: int) -> None:
        _check_length(self, len(self.chance), n_clients)

    def _ever(self, n_clients: int) -> NDArray[np.bool_]:
        return self.chance > 0

    def moves(self) -> tuple[Chances, Chances]:
        """Return each client's chances to come and to leave, both of shape (n_clients,)."""
        with np.errstate(divide="ignore"):
            odds = (1 - self.chance) / self.chance  # of being away; infinite where never there
            come = np.minimum(self.come, 1 / odds)
        return come, np.minimum(self.come * odds, 1.0)

    def _at(self, now: float, n_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        come, leave = self.moves()
        there, away = np.maximum(come, 1 - leave), np.minimum(come, 1 - leave)
        swaps = come > 1 - leave  # between both, a client with these chances changes
        found = np.zeros(n_clients, dtype=bool)
        opposite, open_ = np.zeros(n_clients, dtype=bool), np.ones(n_clients, dtype=bool)
        for when in range(round_, 0, -1):
            number_ = _uniform(n_clients, when, seed)
            settled = open_ & ((number_ < away) | (number_ >= there))
            found[settled] = (number_ < away)[settled] ^ opposite[settled]
            open_ &= ~settled
            opposite ^= open_ & swaps
            if not open_.any():
                return found
        first = _uniform(n_clients, 0, seed) < self.chance
        found[open_] = (first ^ opposite)[open_]
        return found

    def _chances(self, round_: int) -> Chances:
        return self.chance


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cyclic(Availability):
    """Clients that come and go in cycles.

    Of the ``cycle`` rounds of a cycle a client is there in round(``cycle * chance``) in a row, at
    least one. Where its cycle begins is drawn once for each seed, uniform over the cycle.

    Attributes
    ----------
    chance
        The share of rounds in which each client is there, shape (n_clients,). 0: never.
    cycle
        The rounds of a cycle.

    References
    ----------
    S. Wang, M. Ji (FedAU), ICLR 2024. Their code begins every client's first cycle in its absence.

    Examples
    --------
    >>> Cyclic([0.5, 0.01], cycle=10).chances(0).tolist()
    [0.5, 0.1]
    """

    chance: Chances
    cycle: int = whole(100, least=1, most=MOST)

    def _check(self) -> None:
        self._put(chance=_checked_chance("Cyclic", self.chance))

    def __repr__(self) -> str:
        mean = float(self.chance.mean())
        return short_repr(self, n_clients=len(self.chance), mean_chance=mean, cycle=self.cycle)

    def _check_clients(self, n_clients: int) -> None:
        _check_length(self, len(self.chance), n_clients)

    def _ever(self, n_clients: int) -> NDArray[np.bool_]:
        return self.chance > 0

    def _at(self, now: float, n_clients: int, round_: int, seed: int) -> NDArray[np.bool_]:
        start = (self.cycle * _uniform(n_clients, 0, seed)).astype(np.int64)
        return (round_ + start) % self.cycle < self._rounds()

    def _chances(self, round_: int) -> Chances:
        return self._rounds() / self.cycle

    def _rounds(self) -> Chances:
        """Return in how many rounds of a cycle each client is there."""
        least = np.where(self.chance > 0, 1.0, 0.0)
        return np.maximum(np.rint(self.cycle * self.chance), least)


#: What decides a round for given chances.
PROCESSES: dict[str, type[Coins] | type[Markov] | type[Cyclic]] = {
    "coins": Coins,
    "markov": Markov,
    "cyclic": Cyclic,
}
