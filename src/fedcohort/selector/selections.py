"""Counts of draws and failures, a log with a JSON line for every round, and its reader."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import Id
from fedcohort._display import times
from fedcohort._updates import reordered
from fedcohort._whole_file import reason_of
from fedcohort.cohort import Cohort
from fedcohort.designs import Recipe, RowDesign
from fedcohort.designs.catalogue import text_of
from fedcohort.errors import SelectorError, WriteError
from fedcohort.population import Population
from fedcohort.selector.answers import Answers
from fedcohort.selector.open_round import OpenRound
from fedcohort.selector.roster import Roster
from fedcohort.selector.settings import Presence
from fedcohort.streams import Stream, stream

log = getLogger("fedcohort")

#: Clients that the summary names.
LINES = 20
#: The most available clients that a line of the log lists; beyond it, their number and a digest.
LISTED = 1000


class Follower(Protocol):
    """Takes the lines of a log while the run goes on; ``figures`` are for trackers."""

    figures: dict[str, float]

    def add(self, line: Mapping[str, Any]) -> None:
        """Take a line."""

    def look(self) -> object:
        """Say what the lines so far tell."""


@final
class SelectionLog:
    """Count every client's draws, and write a JSON line for every round.

    Each of these has shape (n_clients,): how often a client was ``drawn``, how often it was
    ``expected`` to be, and in how many rounds it ``failed``. ``expected`` is NaN once a design had
    no formula for it. Without a ``path`` it only counts. ``first_shown`` is the number of the first
    round in messages, which follow the framework's; in the file it is always 0.

    A line has these keys:

    * ``run``, ``attempt``: the run, and how often it was restarted before. A restarted run plays
      the rounds after its checkpoint again; nothing is ever erased from the file.
      :func:`read_selections` returns the rounds that count.
    * ``round``, ``time``: the round, from 0, and when it ended.
    * ``drawn``, ``rows``, ``weights``: counts and final weights by client; the client of each row
      of the plan, None for designs without one.
    * ``failed``, ``durations``: why clients failed, and the seconds that others took, if reported.
    * ``scaled``: the clients whose updates were scaled down to ``max_norm``.
    * ``available``: the clients that could be drawn; None for all with samples. Beyond 1,000 of
      them, their number and the SHA-256 of their ids, sorted as text, one a line.
    * ``sizes``, in the first line of an attempt and after changes: the members' sizes that are new
      since the line before; None for those that left.
    * ``recipe``, in the first line of an attempt: the design with its settings, as on the command
      line, the cohort size, and ``presence`` if weights make up for it.
    """

    first_shown: int = 0
    drawn: NDArray[np.int64]
    failed: NDArray[np.int64]
    expected: NDArray[np.float64]
    #: Takes every line, also without a file; it looks once more when the summary is logged.
    follower: Follower | None = None

    def __init__(
        self,
        roster: Roster,
        path: Path | None = None,
        recipe: Recipe | None = None,
        presence: Presence = "ignore",
    ) -> None:
        self._roster, self._path, self._recipe = roster, path, recipe
        self._presence = {} if presence == "ignore" else {"presence": presence}
        self.check(roster.ids)
        #: The name of the run; None until something is written.
        self._run, self._attempt = None if path is None else token_hex(8), 0
        #: The sizes that the last line knew.
        self._logged: tuple[Population | None, dict[Id, int]]
        self._append("\n" if _is_cut_off(path) else "")
        self.restore({}, roster.n_clients)

    def check(self, ids: Iterable[object]) -> None:
        """Refuse ids that are the same as text: JSON keys are text."""
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
        now: OpenRound,
        settled: Cohort,
        answers: Answers,
        failed: Mapping[Id, str],
        seed: int,
    ) -> None:
        """Log a round, and count it."""
        drawn = now.cohort
        counts = dict(zip(drawn.ids, drawn.counts.tolist(), strict=True))
        if self._path is not None or self.follower is not None:
            line = {
                "run": self._run,
                "attempt": self._attempt,
                "round": now.round_,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "drawn": counts,
                "rows": self._rows(now, seed),
                "weights": dict(zip(settled.ids, settled.weights.tolist(), strict=True)),
                "failed": dict(failed),
                "durations": self._durations(answers),
                "scaled": self._roster.names(answers.scaled),
                "available": self._available(now),
                **self._claim(),
                **self._new_sizes(),
            }
            if self._path is not None:
                self._append(json.dumps(line) + "\n")
            if self._logged[0] is not self._roster.population:
                self._logged = (self._roster.population, self._roster.members())
        shown = now.round_ + self.first_shown
        log.info("round %d: drawn %s, failed %s", shown, counts, list(failed) or "none")
        self.drawn[drawn.clients] += drawn.counts
        self.failed[self._roster.positions(failed)] += 1
        if now.design is not None:
            # An estimate would take a thousand draws: leave it unknown.
            exact = now.design.exact_counts
            self.expected += now.design.expected_counts() if exact else np.nan
        if self.follower is not None:
            self.follower.add(line)

    def _durations(self, answers: Answers) -> dict[Id, float]:
        seconds = answers.reported.get("past_duration", np.full(len(answers), np.nan))
        known = np.isfinite(seconds)
        names = self._roster.names(answers.clients[known])
        return dict(zip(names, seconds[known].tolist(), strict=True))

    def _available(self, now: OpenRound) -> list[Id] | dict[str, Any] | None:
        """Return who could be drawn; None for everyone with samples."""
        there = now.draws.population.sizes > 0 if now.design is not None else np.zeros(0)
        if np.count_nonzero(there) == np.count_nonzero(self._roster.sizes):
            return None
        names = self._roster.names(np.flatnonzero(there))
        if len(names) <= LISTED:
            return names
        text = "\n".join(sorted(map(str, names)))
        return {"n": len(names), "sha256": sha256(text.encode()).hexdigest()}

    def _claim(self) -> dict[str, dict[str, Any]]:
        """Return the design by its name, in the first line of an attempt."""
        if self._recipe is None or self._logged[0] is not None:
            return {}
        claim = {"design": text_of(self._recipe), "cohort_size": self._recipe.cohort_size}
        return {"recipe": {**claim, **self._presence}}

    def _new_sizes(self) -> dict[str, dict[Id, int | None]]:
        """Return the sizes that the log does not have yet; nothing if it has all."""
        population, before = self._logged
        if population is self._roster.population:
            return {}
        members = self._roster.members()
        left = dict.fromkeys(each for each in before if each not in members)
        new = {each: size for each, size in members.items() if before.get(each) != size}
        return {"sizes": {**new, **left}} if new or left or population is None else {}

    def _append(self, text: str) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise WriteError(f"{self._path}: cannot be written ({reason_of(error)})") from error

    def _rows(self, now: OpenRound, seed: int) -> list[Id] | None:
        """Return the client of each distribution: the same stream gives the same draw again."""
        if not isinstance(now.design, RowDesign):
            return None
        rng = stream(seed, round_=now.round_, use=Stream.COHORT)
        return self._roster.names(now.design.plan.draw_clients(1, rng)[0])

    @property
    def figures(self) -> dict[str, float]:
        """The follower's last numbers, for trackers; empty before the first."""
        return {} if self.follower is None else self.follower.figures

    @property
    def path(self) -> Path | None:
        """The file of the log."""
        return self._path

    def summary(self) -> dict[Id, tuple[int, float]]:
        """Return how often each client was drawn, and how often it was expected to be."""
        pairs = zip(self.drawn.tolist(), self.expected.tolist(), strict=True)
        return dict(zip(self._roster.ids, pairs, strict=True))

    def log_summary(self) -> None:
        """Log who was drawn how often, the most surprising first."""
        surprise = np.abs(self.drawn - self.expected) / np.sqrt(np.maximum(self.expected, 1.0))
        surprise = np.nan_to_num(surprise)  # NaN: nothing was expected
        for k in np.argsort(-surprise, kind="stable")[:LINES].tolist():
            failed = f", failed {times(self.failed[k])}" if self.failed[k] else ""
            each, drawn, expected = self._roster.ids[k], times(self.drawn[k]), self.expected[k]
            log.info("client %s: drawn %s, %.1f expected%s", each, drawn, expected, failed)
        if len(surprise) > LINES:
            log.info("and %d more clients", len(surprise) - LINES)
        if self.follower is not None:
            self.follower.look()

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client."""
        self.drawn, self.failed = reordered(self.drawn, order), reordered(self.failed, order)
        self.expected = reordered(self.expected, order)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is saved."""
        counts = {"drawn": self.drawn, "failed": self.failed, "expected": self.expected}
        if self._run is None:
            return counts
        return {**counts, "run": np.frombuffer(self._run.encode(), np.uint8)}

    def restore(self, state: Mapping[str, NDArray[Any]], n_clients: int) -> None:
        """Continue from a :meth:`state` as the next attempt; from an empty one, count from now."""
        none = np.zeros(n_clients)
        self.drawn = state.get("drawn", none).astype(np.int64)
        self.failed = state.get("failed", none).astype(np.int64)
        self.expected = state.get("expected", none).astype(np.float64)
        counts = (self.drawn, self.failed, self.expected)
        if len(state) not in (0, 3, 4) or any(each.shape != (n_clients,) for each in counts):
            raise ValueError(f"its log must be of its {n_clients} clients")
        if np.isinf(self.expected).any():
            raise ValueError("its log must not be infinite")
        self._logged = (None, {})
        if "run" in state:
            self._run = state["run"].tobytes().decode()
            lines = [] if self._path is None else _lines_of(self._path)
            before = [line["attempt"] for line in lines if line["run"] == self._run]
            self._attempt = 1 + max(before, default=-1)


def read_selections(path: str | Path, *, run: str | None = None) -> list[dict[str, Any]]:
    """Return the rounds of a log, one dictionary each; see :class:`SelectionLog` for its keys.

    A run that was restarted has played some rounds again: only the last time counts. A line that
    was cut off is left out.

    Parameters
    ----------
    path
        A file that a selector or a plug-in wrote as its log.
    run
        The run to return; the last in the file by default.
    """
    try:
        lines = _lines_of(Path(path))
        if not lines and Path(path).stat().st_size:
            raise ValueError("it has no round of a selector")
    except (OSError, TypeError, ValueError) as error:
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        raise SelectorError(
            f"read_selections: {path} cannot be read ({why}). Pass the log of a selector."
        ) from error
    chosen = lines[-1]["run"] if run is None and lines else run
    kept: list[dict[str, Any]] = []
    for line in lines:
        if line["run"] != chosen:
            continue
        while kept and kept[-1]["round"] >= line["round"]:  # played again after a restart
            kept.pop()
        kept.append(line)
    return kept


def _is_cut_off(path: Path | None) -> bool:
    """Return whether the last line of a file has no line break."""
    if path is None or not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _lines_of(path: Path) -> list[dict[str, Any]]:
    """Return all whole lines of a log, in their order."""
    found = []
    with path.open(encoding="utf-8") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:  # cut off, by a crash or a full disk
                continue
            if isinstance(line, dict) and {"run", "attempt", "round"} <= line.keys():
                found.append(line)
    return found
