"""Show the progress of ``fedcohort run`` as a bar or lines, and a table at the end."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedcohort.cli.options import plain_console, plain_table
from fedcohort.experiments import Observer, Results
from fedcohort.experiments.results import DesignSummary, Numbers, PanelSummary, summarise

#: Number of progress lines if standard error is not a terminal.
LINES = 10


class Watcher(Observer):
    """Show progress on standard error. Ctrl-C stops after the round; a second one stops now."""

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
        """Record the total work, and the work that was done before."""
        self._total, self._done, self._before = total, done, done
        self._start = time.perf_counter()
        self._bar.start()
        self._bar.update(self._task, total=total, completed=done)

    def advanced(self, work: int, text: str) -> None:
        """Show that work was done."""
        self._done += work
        self._bar.update(self._task, completed=self._done, description=text)
        tenth = LINES * self._done // max(self._total, 1)
        if self._bar.disable and tenth > self._said:
            self._said = tenth
            print(f"{100 * self._done // self._total:3d} % {text}{self._left()}", file=sys.stderr)

    def resumed(self, work: int, text: str) -> None:
        """Show work that was done earlier. It does not count for the time left."""
        self._before += work
        self.advanced(work, text)

    def should_stop(self) -> bool:
        """Return whether Ctrl-C was pressed."""
        return self._stop

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-C."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        print("\nstopping after this round; once more to stop now", file=sys.stderr)

    def close(self) -> None:
        """Remove the bar."""
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
    """Watch a run, and handle Ctrl-C until it ends."""
    watcher = Watcher()
    before = signal.signal(signal.SIGINT, watcher.interrupt)
    try:
        yield watcher
    finally:
        watcher.close()
        signal.signal(signal.SIGINT, before)


HEADINGS = (
    "rounds\nneeded",
    "final\nloss",
    "\naccuracy",
    "distinct\nclasses",
    "difference\nin loss",
)


def print_summary(results: Results) -> None:
    """Print a table per panel, and the path of the run folder."""
    console = plain_console()
    experiment = results.folder.experiment
    for panel in experiment.panels:
        summary = summarise(results, panel)
        if summary is None:
            continue
        title = panel.label if len(experiment.panels) > 1 else experiment.title or experiment.name
        console.print(f"\n{title}: {_counted(summary.rounds, 'round')}, {_seeds(summary.seeds)}\n")
        console.print(_table(summary))
        console.print(
            f"rounds needed  until the rolling loss reaches {summary.level:.4g}, where "
            f"{summary.baseline} ends\n"
            f"final          mean of the last {_counted(summary.window, 'round')} ± standard "
            f"deviation over seeds\n"
            f"difference     to {summary.baseline}, seed by seed, ± 95 % confidence interval"
        )
        if any(design.divergence for design in summary.designs):
            console.print(
                "diverged       updates that are not finite count as lost; lower lr or server_lr"
            )
    console.print(f"\nrun folder: {results.folder.path}", soft_wrap=True)


def _table(summary: PanelSummary) -> Table:
    table = plain_table("\ndesign", *HEADINGS, min_width=12)
    for design in summary.designs:
        table.add_row(
            f"{design.label} ({design.divergence})" if design.divergence else design.label,
            _needed(design.rounds_needed),
            _spread(design.final_loss, "{:.3f}"),
            _spread(100 * design.final_accuracy, "{:.1f}", " %"),
            f"{np.mean(design.classes):.2f}",
            _difference(design),
        )
    return table


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _seeds(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def _needed(rounds: Numbers) -> str:
    """Format the mean over the seeds that reached the level, and their number if not all did."""
    reached = rounds[~np.isnan(rounds)]
    if not len(reached):
        return "never"
    part = "" if len(reached) == len(rounds) else f" ({len(reached)}/{len(rounds)})"
    return f"{reached.mean():.0f}{part}"


def _spread(values: Numbers, form: str, unit: str = "") -> str:
    if np.isnan(values).any():
        return "-"
    mean = form.format(np.mean(values))
    if len(values) < 2:
        return f"{mean}{unit}"
    return f"{mean} ± {form.format(np.std(values, ddof=1))}{unit}"


def _difference(design: DesignSummary) -> str:
    found = design.difference
    if found is None:
        return "baseline"
    if math.isnan(found.mean):
        return "-"
    if math.isinf(found.high):
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} ± {found.high - found.mean:.3f}"
