"""When clients are there: intervals of simulated seconds, once or every day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort._display import short_repr
from fedcohort.errors import SimulationError


@dataclass(frozen=True, slots=True, eq=False)
class Availability:
    """The intervals in which clients are available; a client without any is never.

    Attributes
    ----------
    client, start, end
        One entry per interval, ``start <= now < end``, in simulated seconds.
    day
        The intervals come again after so many seconds (start and end are then within a day); None:
        they do not.

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
        # Written so that NaN does not pass.
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
        """Let every client be there for a share ``awake`` of each day, from its phase on.

        ``phase`` is when the client comes, as a share of the day, shape (n_clients,).
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
        """Return how long it takes until one of ``whom`` comes; infinity: nobody ever does."""
        starts = self.start[whom[self.client]]
        ahead = starts - self._moment(now)
        if self.day is not None:
            ahead = np.where(ahead > 0, ahead, ahead + self.day)  # tomorrow
        return float(ahead[ahead > 0].min(initial=np.inf))

    def _moment(self, now: float) -> float:
        return now if self.day is None else now % self.day
