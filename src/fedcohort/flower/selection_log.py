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
        self._expected: list[tuple[Sequence[Hashable], NDArray[np.float64]]] = []

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
        if not self._expected or self._expected[-1][0] is not ids:
            self._expected.append((ids, np.zeros(len(ids))))
        self._expected[-1][1][:] += design.expected_counts
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
        expected: dict[str, float] = {}
        for ids, counts in self._expected:
            for key, count in zip(ids, counts.tolist(), strict=True):
                expected[str(key)] = expected.get(str(key), 0.0) + count
        return {key: (self.drawn[key], count) for key, count in expected.items()}

    def log_summary(self) -> None:
        """Log who was drawn how often, the most surprising first."""
        found = self.summary()
        by_surprise = sorted(found, key=lambda key: -_surprise(*found[key]))
        for key in by_surprise[:LINES]:
            drawn, expected = found[key]
            log.info("client %s: drawn %d times, %.1f expected", key, drawn, expected)
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
