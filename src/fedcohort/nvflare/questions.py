"""Questions to clients before the draw: their sizes, and the signals that a recipe asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import final

from fedcohort._deployment import ClaimedSizes, Limits, claimed_size

log = getLogger("fedcohort")

#: The task in which a client tells its number of samples; the metric of the answer has this name.
SIZE_TASK = "num_examples"


@final
class Sites:
    """The clients' sizes, as given or as they tell them.

    A client that does not tell its size is asked again after ``pause`` seconds, then after twice
    as long, and so on.

    Parameters
    ----------
    given
        Samples by client, where the server knows them; None asks the clients.
    limits
        How large sizes can be.
    pause
        Seconds before a client is asked again.

    Attributes
    ----------
    sizes
        Samples by client, bounded.
    """

    def __init__(self, given: Mapping[str, int] | None, limits: Limits, pause: float) -> None:
        self._given, self._limits, self._pause = given, limits, pause
        self._claims: dict[str, int] = {}
        self._again: dict[str, tuple[float, float]] = {}
        self._told: set[str] = set()
        self.sizes: dict[str, int] = {}

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return whom to ask now; take the sizes that are given."""
        missing = [name for name in names if name not in self._claims]
        if self._given is None:
            now = time.monotonic()
            return [name for name in missing if self._again.get(name, (now, 0.0))[0] <= now]
        self._claim({name: self._given[name] for name in missing if name in self._given})
        if new := [name for name in missing if name not in self._given and name not in self._told]:
            log.warning("sizes has no entry for %.200s: they cannot be drawn", new)
            self._told |= set(new)
        return []

    def hear(self, answers: Mapping[str, object]) -> None:
        """Take what clients told; a reason why one did not is text."""
        found = {
            name: answer if isinstance(answer, str) else claimed_size(answer)
            for name, answer in answers.items()
        }
        for name, size in found.items():
            if isinstance(size, str):
                log.warning("client %s did not say how many samples it has: %.200s", name, size)
                pause = self._again.get(name, (0.0, self._pause))[1]
                self._again[name] = time.monotonic() + pause, 2 * pause
        self._claim({name: size for name, size in found.items() if isinstance(size, int)})

    def known(self, names: Iterable[str]) -> list[str]:
        """Return those of the clients whose sizes are known."""
        return [name for name in names if name in self._claims]

    def state(self) -> dict[str, int]:
        """Return the sizes as they were claimed."""
        return dict(self._claims)

    def restore(self, state: Mapping[str, int]) -> None:
        """Take over what :meth:`state` returned; these clients are not asked again."""
        self._claim({name: int(size) for name, size in state.items()})

    def _claim(self, sizes: Mapping[str, int]) -> None:
        if not sizes:
            return
        self._claims |= sizes
        keys = list(self._claims)
        own_word = [self._given is None] * len(keys)
        bounded = ClaimedSizes(keys, list(self._claims.values()), own_word).bounded(self._limits)
        self.sizes = dict(zip(keys, bounded.tolist(), strict=True))


def numbers_from(answers: Mapping[str, object], signal: str) -> dict[str, float]:
    """Return the valid answers to a question for a signal: numbers of at least 0."""
    found = {
        name: float(answer)
        for name, answer in answers.items()
        if isinstance(answer, (int, float)) and math.isfinite(answer) and answer >= 0
    }
    if missing := [name for name in answers if name not in found]:
        log.warning(
            "%d of %d clients gave no %s: %.200s", len(missing), len(answers), signal, missing
        )
    return found
