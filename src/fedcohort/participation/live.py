"""The audit of a run while it goes on: a log line, warnings, and numbers for trackers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from logging import Logger
from pathlib import Path
from typing import Any, final

import numpy as np

from fedcohort._display import counted, per_cent, small_share
from fedcohort.participation.law import law_of
from fedcohort.participation.summary import ALPHA, Audit, audit_of
from fedcohort.participation.table import of_selections
from fedcohort.selector import read_selections


@final
class LiveAudit:
    """Audit a selector's rounds at the end, and after every k-th if asked.

    All looks together raise a false alarm in at most a share ``ALPHA`` of runs: look j gets
    ``ALPHA / (j (j + 1))``. Looks are counted from every start of the server, so a run with r
    restarts has at most r + 1 times this share. An error of the audit is logged and stops nothing.

    Parameters
    ----------
    logger
        Where log lines go.
    every
        How many rounds lie between two looks; None looks at the end only.
    path
        The selector's log, which also has the rounds before a restart; None keeps the rounds here.
    first_shown
        The number of the first round in messages.
    """

    def __init__(
        self,
        logger: Logger,
        *,
        every: int | None = None,
        path: Path | None = None,
        first_shown: int = 0,
    ) -> None:
        self._logger, self._every, self._path = logger, every, path
        self._first_shown = first_shown
        self._lines: list[bytes] = []
        self._n_rounds = self._looks = 0
        self._warned: set[str] = set()
        #: The last look's numbers, for trackers; empty before the first.
        self.figures: dict[str, float] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take a line of the log; audit if it is the turn."""
        if self._path is None:
            self._lines.append(zlib.compress(json.dumps(line).encode(), 1))
        self._n_rounds += 1
        if self._every is not None and self._n_rounds % self._every == 0:
            self.look()

    def look(self) -> Audit | None:
        """Audit the rounds so far, log what is found, and warn of what is new."""
        if not self._n_rounds:
            return None
        self._looks += 1
        try:
            found = self._audited(ALPHA / (self._looks * (self._looks + 1)))
        except Exception:  # training must go on, whatever is wrong with the log
            self._logger.warning("the audit of who took part failed", exc_info=True)
            return None
        self.figures = figures_of(found)
        self._logger.info("audit: %s", silence_of(found))
        for each in found.faults:
            key = f"{each.kind} {' '.join(each.clients)}"
            if key not in self._warned:
                self._warned.add(key)
                self._logger.warning("audit: %s%s", each.text, shares_text(found, each.clients))
        return found

    def _audited(self, alpha: float) -> Audit:
        if self._path is not None:
            lines = read_selections(self._path)
        else:
            lines = [json.loads(zlib.decompress(line)) for line in self._lines]
        own = of_selections(lines, "the run")
        own = replace(own, rounds=own.rounds + self._first_shown)
        return audit_of(own, law_of(own, None), alpha)


def silence_of(found: Audit) -> str:
    """Say who has not answered for how long, and how much of all samples that is.

    Clients count whose silence is the longest, and at least a tenth of the rounds; who was not
    asked in that time has not been silent.
    """
    own, last = found.participation, found.last_answers()
    first = np.full(own.n_clients, own.n_rounds)
    late = own.row > last[own.client]
    np.minimum.at(first, own.client[late], own.row[late])
    silent = np.flatnonzero(own.n_rounds - first >= max(2, own.n_rounds / 10))
    if not len(silent):
        away = "" if found.bias is None else f"; {per_cent(found.bias.total / 2)} off all samples"
        return f"all {counted(own.n_clients, 'client')} that were asked answer{away}"
    since, share = int(own.rounds[first[silent].max()]), float(found.intended[silent].sum())
    how = "has" if len(silent) == 1 else "have"
    return (
        f"{len(silent)} of {counted(own.n_clients, 'client')} {how} not answered since round "
        f"{since}: {per_cent(share, 0)} of all samples"
    )


def shares_text(found: Audit, clients: tuple[str, ...]) -> str:
    """Say what share of the aggregate some clients have, and should have."""
    if not clients or found.bias is None:
        return ""
    place = {each: k for k, each in enumerate(found.participation.ids)}
    some = [place[each] for each in clients]
    real, meant = (float(each[some].sum()) for each in (found.realised, found.intended))
    return f" Share of the aggregate: {small_share(real)} instead of {small_share(meant)}."


def figures_of(found: Audit) -> dict[str, float]:
    """Return the numbers of an audit for trackers."""
    own = found.participation
    missing = own.per_client(own.answered) == 0
    return {
        "audit_findings": float(len(found.faults)),
        "audit_bias": 0.0 if found.bias is None else found.bias.total / 2,
        "audit_dropout_bias": 0.0 if found.bias is None else found.bias.dropouts / 2,
        "audit_effective_clients": found.effective_clients,
        "audit_unused_share": float(found.intended[missing].sum()),
    }
