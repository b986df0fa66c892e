"""Watching a run: a bar with the time left on a terminal, plain lines in a pipe."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fedcohort.experiments import Observer

#: In a pipe: a line for every so much of the work.
LINES = 10


class Watcher(Observer):
    """Shows progress on standard error; the first Ctrl-C stops after the round, the second now."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._total = self._done = self._said = 0
        self._start = time.perf_counter()
        self._before = 0
        self._stop = False

    def started(self, total: int, done: int) -> None:
        """Learn how much work there is, and how much of it was done before."""
        self._total, self._done, self._before = total, done, done
        self._start = time.perf_counter()
        self._bar.start()
        self._bar.update(self._task, total=total, completed=done)

    def advanced(self, work: int, text: str) -> None:
        """Show it."""
        self._done += work
        self._bar.update(self._task, completed=self._done, description=text)
        tenth = LINES * self._done // max(self._total, 1)
        if self._bar.disable and tenth > self._said:
            self._said = tenth
            print(f"{100 * self._done // self._total:3d} % {text}{self._left()}", file=sys.stderr)

    def resumed(self, work: int, text: str) -> None:
        """Show it; it took no time now."""
        self._before += work
        self.advanced(work, text)

    def should_stop(self) -> bool:
        """Say whether Ctrl-C was pressed."""
        return self._stop

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Take a Ctrl-C."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        print("\nstopping after this round; once more to stop now", file=sys.stderr)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def _left(self) -> str:
        new = self._done - self._before
        if not new or self._done >= self._total:
            return ""
        seconds = (time.perf_counter() - self._start) * (self._total - self._done) / new
        return (
            f"; about {seconds / 60:.0f} min left" if seconds >= 90 else f"; {seconds:.0f} s left"
        )


@contextmanager
def watched() -> Iterator[Watcher]:
    """Watch a run, and take Ctrl-C over while it lasts."""
    watcher = Watcher()
    before = signal.signal(signal.SIGINT, watcher.interrupt)
    try:
        yield watcher
    finally:
        watcher.close()
        signal.signal(signal.SIGINT, before)
