"""The progress of an experiment on standard error: a bar on a terminal, else ten lines."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from fedcohort._display import counted, seconds_left
from fedcohort.experiments.runner import Observer

#: Number of progress lines if standard error is not a terminal.
LINES = 10


class _Bar(Progress):
    """A bar below a line for every worker, if there are several."""

    lines: tuple[str, ...] = ()

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the lines, then the bar."""
        if len(self.lines) > 1:
            yield from (Text(line, overflow="ellipsis", no_wrap=True) for line in self.lines)
        yield from super().get_renderables()


class Watcher(Observer):
    """Show progress on standard error. Ctrl-C stops after the round; a second one stops now."""

    def __init__(self, plan: str) -> None:
        console = Console(stderr=True)
        self._bar = _Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._plan = plan
        self._task = self._bar.add_task("", total=None)
        self._total = self._done = self._said = 0
        self._start = time.perf_counter()
        self._before = 0
        self._stop = False

    def started(self, total: int, done: int, workers: int) -> None:
        """Record the total work, and the work that was done before."""
        self._total, self._done, self._before = total, done, done
        self._start = time.perf_counter()
        self._plan += f"; {counted(workers, 'worker')}"
        self._bar.lines = tuple(f"worker {k + 1}" for k in range(workers))
        self._bar.start()
        self._bar.update(self._task, total=total, completed=done)

    def advanced(self, work: int, text: str, worker: int) -> None:
        """Show that work was done."""
        self._done += work
        lines = list(self._bar.lines)
        if len(lines) > 1:
            lines[worker] = f"worker {worker + 1}  {text}"
        self._bar.lines = tuple(lines)
        self._bar.update(
            self._task, completed=self._done, description="all" if len(lines) > 1 else text
        )
        tenth = LINES * self._done // max(self._total, 1)
        if self._bar.disable and tenth > self._said:
            self._said = tenth
            sys.stderr.write(f"{100 * self._done // self._total:3d} % {text}{self._left()}\n")

    def began(self, work: int, text: str, worker: int) -> None:
        """Show the plan, and work that was done earlier. It does not count for the time left."""
        if self._plan:
            self._say(f"plan: {self._plan}")
            self._plan = ""
        self._before += work
        self.advanced(work, text, worker)

    def noticed(self, text: str) -> None:
        """Show what went wrong."""
        self._say(text)

    def should_stop(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._stop

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        sys.stderr.write("\nstopping after this round; once more to stop now\n")

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    def _say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _left(self) -> str:
        new = self._done - self._before
        if not new or self._done >= self._total:
            return ""
        seconds = (time.perf_counter() - self._start) * (self._total - self._done) / new
        return f"; {seconds_left(seconds)}"


@contextmanager
def watched(plan: str) -> Iterator[Watcher]:
    """Watch a run, and handle Ctrl-C until it ends; only a main thread can handle it."""
    watcher = Watcher(plan)
    is_main = current_thread() is main_thread()
    before = signal.signal(signal.SIGINT, watcher.interrupt) if is_main else None
    try:
        yield watcher
    finally:
        watcher.close()
        if is_main:
            signal.signal(signal.SIGINT, before)
