"""``fedcohort runs``: list the runs in a folder with their state, progress and time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedcohort._display import plain_table
from fedcohort.cli.options import (
    RUNS,
    a_run_folder,
    argument,
    plain_console,
    run_paths,
)
from fedcohort.errors import ExperimentError, InputError


def runs(
    folder: Annotated[
        Path,
        argument("[DIR]", "A folder of run folders, or one of them.", a_run_folder, default=True),
    ] = RUNS,
) -> None:
    """List the runs in a folder: state, progress, time.

    Given a merged run folder, say where its units were computed.
    """
    from fedcohort.experiments import RunFolder

    paths = run_paths(folder)
    if not paths:
        raise InputError(f"runs: {folder} holds no runs. Make one with: fedcohort run FILE")
    headings = ("run", "state", "rounds", "time", "begun", "device")
    table = plain_table(*headings, left=("state", "begun", "device"), min_width=20)
    notes = []
    for path in paths:
        try:
            found = RunFolder.open(path)
            progress = found.progress()
        except ExperimentError as error:
            notes.append(str(error))
            table.add_row(str(path), "unreadable", "", "", "", "")
            continue
        table.add_row(
            str(path),
            progress.state if found.part is None else f"{progress.state} ({found.part})",
            f"{progress.done}/{progress.total}",
            worded_time(progress.seconds),
            str(found.head.get("created", ""))[5:16].replace("T", " "),
            found.head["machine"].get("gpu", found.device),
        )
        if found.is_merged and path == folder:
            notes += [f"merged from {each}" for each in found.worded_sources()]
    console = plain_console()
    console.print(table)
    for note in notes:
        console.print(f"\n{note}", soft_wrap=True)


def worded_time(seconds: float) -> str:
    """Format a time as ``42 s``, ``3 min`` or ``2 h 05 min``.

    Examples
    --------
    >>> worded_time(42), worded_time(200), worded_time(7500)
    ('42 s', '3 min', '2 h 05 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
