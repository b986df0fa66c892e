"""Who was drawn, from which distribution, with what weight, and who failed: one line a round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._roster import Id, Roster
from fedcohort.cohort import Cohort
from fedcohort.designs import Design, RowDesign
from fedcohort.errors import SelectorError, WriteError
from fedcohort.streams import Stream, stream

log = getLogger("fedcohort")

#: Clients that the summary names.
LINES = 20


@final
class SelectionLog:
    """Counts every client's draws, and writes a JSON line for every round where there is a file.

    Parameters
    ----------
    roster
        Names the clients.
    path
        Where to write; None only counts.

    Attributes
    ----------
    drawn, failed
        How often each client was drawn, and in how many rounds it failed; shape (n_clients,).
    expected
        How often each was to be drawn, shape (n_clients,).
    """

    def __init__(self, roster: Roster, path: Path | None = None) -> None:
        self._roster, self._path = roster, path
        self.check(roster.ids)
        self._append("")
        self.drawn = np.zeros(roster.n_clients, dtype=np.int64)
        self.failed = np.zeros(roster.n_clients, dtype=np.int64)
        self.expected = np.zeros(roster.n_clients)

    def check(self, ids: Iterable[object]) -> None:
        """Refuse ids that a file cannot tell apart: keys of JSON are texts."""
        if self._path is None or isinstance(ids, range):
            return
        known: dict[str, object] = {}
        for each in ids:
            other = known.setdefault(str(each), each)
            if other is not each:
                raise SelectorError(
                    f"Selector: a log file needs ids that differ as text; got {other!r} and "
                    f"{each!r}. Rename one, or pass log=True, which only counts."
                )

    def write(
        self,
        drawn: Cohort,
        settled: Cohort,
        design: Design | None,
        failed: Mapping[Id, str],
        seed: int,
    ) -> None:
        """Log a round, and count it."""
        counts = dict(zip(drawn.ids, drawn.counts.tolist(), strict=True))
        if self._path is not None:
            line = {
                "round": drawn.round_,
                "drawn": counts,
                "rows": self._rows(design, drawn.round_, seed),
                "weights": dict(zip(settled.ids, settled.weights.tolist(), strict=True)),
                "failed": dict(failed),
            }
            self._append(json.dumps(line) + "\n")
        log.info("round %d: drawn %s, failed %s", drawn.round_, counts, list(failed) or "none")
        self.drawn[drawn.clients] += drawn.counts
        self.failed[self._roster.positions(failed)] += 1
        if design is not None:
            # What is only estimated takes a thousand draws: it stays unknown.
            self.expected += design.expected_counts() if design.exact_weights else np.nan

    def _append(self, text: str) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise WriteError(f"{self._path}: cannot be written ({reason})") from error

    def summary(self) -> dict[Id, tuple[int, float]]:
        """Return how often each client was drawn, and how often that was to be expected."""
        pairs = zip(self.drawn.tolist(), self.expected.tolist(), strict=True)
        return dict(zip(self._roster.ids, pairs, strict=True))

    def log_summary(self) -> None:
        """Log who was drawn how often, the most surprising first."""
        surprise = np.abs(self.drawn - self.expected) / np.sqrt(np.maximum(self.expected, 1.0))
        for k in np.argsort(-surprise, kind="stable")[:LINES].tolist():
            failed = f", failed {self.failed[k]} times" if self.failed[k] else ""
            each, drawn, expected = self._roster.ids[k], self.drawn[k], self.expected[k]
            log.info("client %s: drawn %d times, %.1f expected%s", each, drawn, expected, failed)
        if len(surprise) > LINES:
            log.info("and %d more clients", len(surprise) - LINES)

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client."""
        is_known = order >= 0
        for name in ("drawn", "failed", "expected"):
            before = getattr(self, name)
            after = np.zeros(len(order), dtype=before.dtype)
            after[is_known] = before[order[is_known]]
            setattr(self, name, after)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is to be kept."""
        return {"drawn": self.drawn, "failed": self.failed, "expected": self.expected}

    def restore(self, state: Mapping[str, NDArray[Any]], n_clients: int) -> None:
        """Take over what :meth:`state` gave; without it, count from here."""
        self.drawn = state.get("drawn", np.zeros(n_clients)).astype(np.int64)
        self.failed = state.get("failed", np.zeros(n_clients)).astype(np.int64)
        self.expected = state.get("expected", np.zeros(n_clients)).astype(np.float64)
        counts = (self.drawn, self.failed, self.expected)
        if len(state) not in (0, 3) or any(each.shape != (n_clients,) for each in counts):
            raise ValueError(f"its log must be of its {n_clients} clients")
        if not np.isfinite(self.expected).all():
            raise ValueError("its log must be finite")

    def _rows(self, design: Design | None, round_: int, seed: int) -> list[Id] | None:
        """Return the client that each distribution gave; the stream gives the same draw again."""
        if not isinstance(design, RowDesign):
            return None
        rng = stream(seed, round_=round_, use=Stream.COHORT)
        return self._roster.names(design.plan.draw_clients(1, rng)[0])
