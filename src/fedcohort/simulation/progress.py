"""Progress of a simulation: shown on a terminal, kept in a checkpoint."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief
from fedcohort._whole_file import read_arrays
from fedcohort.errors import SimulationError
from fedcohort.simulation.engine.local_training import LocalTraining
from fedcohort.simulation.history import History
from fedcohort.simulation.runs import Options, Run

FORMAT = "fedcohort checkpoint 2"
#: Called after every round with the number of rounds done and the histories.
OnRound = Callable[[int, list[History]], None]


@contextmanager
def shown(progress: bool | OnRound, *, done: int, total: int) -> Iterator[OnRound]:
    """Yield the function to call after every round.

    True shows a bar if standard error is a terminal and rich is installed.
    """
    if not isinstance(progress, bool) and not callable(progress):
        raise SimulationError(
            f"Simulation: progress must be True, False or a function; got {brief(progress)}. Pass "
            f"False to show nothing."
        )
    if callable(progress):
        yield progress
    elif not progress or not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda done, histories: None
    else:
        with _bar(done, total) as advance:
            yield advance


@contextmanager
def _bar(done: int, total: int) -> Iterator[OnRound]:
    """Show rounds done, the time left and the last loss; remove the bar at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeLeft())
    loss = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(*columns, loss, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda now, histories: bar.update(
            task, completed=now, description=_loss_text(histories)
        )


def _loss_text(histories: Sequence[History]) -> str:
    """Return the last loss, or the mean over several runs; nothing before the first."""
    last = [history.last_quality for history in histories]
    losses = [quality.loss for quality in last if quality is not None]
    if not losses:
        return ""
    return f"{'loss' if len(losses) == 1 else 'mean loss'} {np.mean(losses):.4g}"


def read_checkpoint(
    path: Path, *, expected: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the head and the arrays of a simulation with this fingerprint; refuse other files."""
    try:
        arrays = read_arrays(path, FORMAT)
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"checkpoint {path}: cannot be read ({error}). Start anew, or use another file."
        ) from error
    head = json.loads(str(arrays.pop("head")))
    differ = [name for name in expected if head["fingerprint"].get(name) != expected[name]]
    if differ:
        raise SimulationError(
            f"checkpoint {path}: was written by another simulation; {', '.join(differ)} "
            f"differ. Use the same arguments, or start anew."
        )
    return head, arrays


def fingerprint(
    runs: Sequence[Run],
    training: LocalTraining,
    options: Options,
    architecture: list[object],
) -> dict[str, str]:
    """Hash a simulation's arguments, name by name, and the whole data set."""
    data = runs[0].data.dataset
    positions = [part for run in runs for part in run.data.train + run.data.test]
    values: dict[str, object] = {
        "runs": [part for run in runs for part in run.parts()],
        "training": training,
        "options": replace(options, device="auto"),
        "model": architecture,
        "data": [data.x, data.y, data.test_x, data.test_y, (data.scale, data.shift), *positions],
    }
    return {name: _digest(value) for name, value in values.items()}


def _digest(value: object) -> str:
    digest = hashlib.sha256()
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape} ".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            with np.printoptions(threshold=sys.maxsize):
                digest.update(f"{_written(part)} ".encode())
    return digest.hexdigest()[:16]


def _written(part: object) -> str:
    """Write all fields of dataclasses: their ``repr`` may leave some out."""
    if isinstance(part, tuple):
        return f"({' '.join(map(_written, part))})"
    if not is_dataclass(part):
        return repr(part)
    named = [(each.name, getattr(part, each.name)) for each in fields(part) if each.repr]
    return f"{type(part).__qualname__}({named!r})"
