"""Time: deadlines, and pauses between questions that double."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterator
from itertools import count
from typing import final

#: Seconds between two looks for messages, at least and at most.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0


@final
class TimeLimit:
    """A moment ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds until then; 0 afterwards."""
        return max(0.0, self._end - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return self.left == 0.0


@final
class BackOff:
    """When to ask again: after a pause, then after twice as long, and so on.

    Parameters
    ----------
    first
        The seconds of the first pause.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._waits: dict[Hashable, tuple[TimeLimit, float]] = {}

    def is_due(self, key: Hashable) -> bool:
        """Whether a client can be asked now."""
        return key not in self._waits or self._waits[key][0].has_passed

    def wait(self, key: Hashable, seconds: float) -> None:
        """Wait this long for an answer; the next pause does not grow."""
        self._waits[key] = TimeLimit(seconds), self._pause(key)

    def back_off(self, key: Hashable) -> None:
        """Ask again after a pause; the next pause is twice as long."""
        pause = self._pause(key)
        self._waits[key] = TimeLimit(pause), 2 * pause

    def forget(self, key: Hashable) -> None:
        """Forget a client: it can be asked at once."""
        self._waits.pop(key, None)

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all other clients: they are asked at once when they come back."""
        self._waits = {key: wait for key, wait in self._waits.items() if key in keys}

    def __len__(self) -> int:
        return len(self._waits)

    def _pause(self, key: Hashable) -> float:
        return self._waits[key][1] if key in self._waits else self._first


def looks(until: TimeLimit) -> Iterator[int]:
    """Count looks for messages, with growing pauses between them that end by ``until``."""
    pause = SHORTEST_PAUSE
    for look in count():
        yield look
        time.sleep(min(pause, until.left))
        pause = min(1.5 * pause, LONGEST_PAUSE)
