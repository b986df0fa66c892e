"""Who was drawn, from which distribution, with what weight, and who failed: one line a round."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs import Design, RowDesign
from fedcohort.streams import Stream, stream

log = getLogger("flwr.fedcohort")

#: Clients that the summary names.
LINES = 20


@final
class SelectionLog:
    """Logs every round, and writes it as a JSON line where there is a file."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        #: How often each client was drawn.
        self.drawn: Counter[str] = Counter()
        #: In how many rounds each client failed.
        self.failed: Counter[str] = Counter()
        # By client over populations that are gone; an array over the one that is there, since a
        # round must not go through all clients one by one.
        self._before: dict[str, float] = {}
        self._ids: Sequence[Hashable] = ()
        self._now: NDArray[np.float64] = np.zeros(0)

    def write(
        self,
        number: int,
        design: Design,
        counts: Mapping[str, int],
        weights: Mapping[str, float],
        failed: Mapping[str, str],
        seed: int,
    ) -> None:
        """Take a round."""
        ids = design.population.ids
        self.drawn.update(counts)
        self.failed.update(failed.keys())
        if self._ids is not ids:
            self._before = self._expected()
            self._ids, self._now = ids, np.zeros(len(ids))
        self._now += design.expected_counts
        line: dict[str, Any] = {
            "round": number,
            "drawn": dict(counts),
            "rows": _rows(design, ids, number, seed),
            "weights": dict(weights),
            "failed": dict(failed),
        }
        log.info("round %d: drawn %s, failed %s", number, dict(counts), list(failed) or "none")
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def summary(self) -> dict[str, tuple[int, float]]:
        """Return how often each client was drawn, and how often that was to be expected."""
        return {key: (self.drawn[key], count) for key, count in self._expected().items()}

    def state(self) -> dict[str, Mapping[str, float]]:
        """Return what the summary is made of."""
        return {
            "drawn": dict(self.drawn),
            "failed": dict(self.failed),
            "expected": self._expected(),
        }

    def restore(self, state: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what :meth:`state` gave."""
        self.drawn, self.failed = (
            Counter({key: int(count) for key, count in state[name].items()})
            for name in ("drawn", "failed")
        )
        self._before = dict(state["expected"])
        self._ids, self._now = (), np.zeros(0)

    def _expected(self) -> dict[str, float]:
        """Return how often each client was to be drawn."""
        found = dict(self._before)
        for key, count in zip(map(str, self._ids), self._now.tolist(), strict=True):
            found[key] = found.get(key, 0.0) + count
        return found

    def log_summary(self) -> None:
        """Log who was drawn how often, the most surprising first."""
        found = self.summary()
        by_surprise = sorted(found, key=lambda key: -_surprise(*found[key]))
        for key in by_surprise[:LINES]:
            drawn, expected = found[key]
            failed = f", failed {self.failed[key]} times" if self.failed[key] else ""
            log.info("client %s: drawn %d times, %.1f expected%s", key, drawn, expected, failed)
        if len(found) > LINES:
            log.info("and %d more clients", len(found) - LINES)


def _surprise(drawn: int, expected: float) -> float:
    return abs(drawn - expected) / math.sqrt(max(expected, 1.0))


def _rows(design: Design, ids: Sequence[Hashable], number: int, seed: int) -> list[str] | None:
    """Return the client that each distribution gave; the stream gives the same draw again."""
    if not isinstance(design, RowDesign):
        return None
    rng = stream(seed, round_=number, use=Stream.COHORT)
    return [str(ids[client]) for client in design.plan.draw_clients(rng, 1)[0]]
