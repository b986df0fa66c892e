"""A progress bar on a terminal; elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np

from fedcohort._arguments import brief
from fedcohort.errors import SimulationError
from fedcohort.simulation.history import History

#: Called after every round with the number of rounds done and the histories.
OnRound = Callable[[int, list[History]], None]


def _nothing(done: int, histories: list[History]) -> None:
    """Show nothing."""


@contextmanager
def shown(progress: bool | OnRound, *, done: int, total: int) -> Iterator[OnRound]:
    """Give what to call after every round: the caller's function, a bar, or nothing.

    True shows a bar where standard error is a terminal and rich is installed.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise SimulationError(
            f"Simulation: progress must be True, False or a function; got {brief(progress)}. Pass "
            f"False to show nothing."
        )
    if callable(progress):
        yield progress
    elif not progress or not sys.stderr.isatty() or find_spec("rich") is None:
        yield _nothing
    else:
        with _bar(done, total) as advance:
            yield advance


@contextmanager
def _bar(done: int, total: int) -> Iterator[OnRound]:
    """Show rounds done, the time left and the last loss; take the bar away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeLeft())
    loss = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(*columns, loss, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def advance(now: int, histories: list[History]) -> None:
            bar.update(task, completed=now, description=loss_text(histories))

        yield advance


def loss_text(histories: Sequence[History]) -> str:
    """Return the last loss, its mean where there are several runs; nothing before the first."""
    last = [history.last_quality for history in histories]
    losses = [quality.loss for quality in last if quality is not None]
    if not losses:
        return ""
    return f"{'loss' if len(losses) == 1 else 'mean loss'} {np.mean(losses):.4g}"
