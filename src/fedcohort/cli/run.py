"""``fedcohort run`` and ``fedcohort resume``: run an experiment, show progress and a table."""

from __future__ import annotations

import math
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal, cast

import numpy as np
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedcohort._arguments import COMPUTE_DEVICES, brief
from fedcohort._display import counted, decimals_of, per_cent, seconds_left
from fedcohort.cli.doctor import TRACKER_PACKAGES
from fedcohort.cli.options import (
    RUNS,
    RunDir,
    argument,
    designs_of_file,
    fresh_folder,
    keys_of_file,
    one_of,
    option,
    plain_console,
    plain_table,
)
from fedcohort.errors import ExperimentError, FedcohortError, InputError, WriteError

if TYPE_CHECKING:
    from fedcohort.experiments import Observer, Results, RunFolder
    from fedcohort.experiments.results import DesignSummary, Numbers, PanelSummary


#: A group of options in the help.
CHANGED = "A part of the file, or other values"

TRACKER_HELP = "Also send every round to tensorboard, mlflow (both into the folder) or wandb."
TrackerName = Annotated[
    str | None, option("--tracker", "NAME", TRACKER_HELP, complete=one_of(TRACKER_PACKAGES))
]
WORKERS_HELP = "How many units run at a time, each in its process; auto: one per GPU, or per core."
Workers = Annotated[str, option("--workers -w", "N", WORKERS_HELP, default=True)]
SET_HELP = "Change a value of the file, such as training.lr=0.1. Repeatable."
SEEDS_HELP = "Seeds instead of the file's, such as 0-4 or 0,3."
PANELS_HELP = "Only these of the file's panels, by label."
DEVICE_HELP = "auto (a GPU if there is one), cpu or cuda."
DESIGNS_HELP = "Only these of the file's designs, by label or recipe."


def run(
    file: Annotated[Path, argument("FILE.toml", "The experiment file.")],
    seeds: Annotated[
        str | None,
        option("--seeds", "SEEDS", SEEDS_HELP, group=CHANGED),
    ] = None,
    designs: Annotated[
        str | None,
        option("--designs -d", "DESIGN,...", DESIGNS_HELP, complete=designs_of_file, group=CHANGED),
    ] = None,
    panels: Annotated[
        str | None,
        option("--panels", "PANEL,...", PANELS_HELP, group=CHANGED),
    ] = None,
    changes: Annotated[
        list[str] | None,
        option("--set", "KEY=VALUE", SET_HELP, complete=keys_of_file, group=CHANGED),
    ] = None,
    out: Annotated[
        Path | None,
        option("--out -o", "DIR", f"A new folder. Default: {RUNS}/NAME, where NAME is the file's."),
    ] = None,
    device: Annotated[
        str,
        option("--device", "DEVICE", DEVICE_HELP, complete=one_of(COMPUTE_DEVICES), default=True),
    ] = "auto",
    workers: Workers = "1",
    tracker: TrackerName = None,
) -> None:
    """Run an experiment: every panel, design and seed of a file.

    Ctrl-C stops after the current round. fedcohort resume continues from there.
    """
    from fedcohort.experiments import RunFolder, read_experiment
    from fedcohort.experiments.own_code import check_parts
    from fedcohort.simulation import Options

    if device not in COMPUTE_DEVICES:
        raise InputError(
            f"run: --device must be one of {', '.join(COMPUTE_DEVICES)}; got {device!r}."
        )
    n_workers = _number("run", workers)
    experiment = read_experiment(
        file, seeds=seeds, designs=designs, panels=panels, changes=changes or ()
    )
    try:
        check_parts(experiment, file.parent)
    except FedcohortError as error:
        raise ExperimentError(f"{file}: {error}") from error
    trains_on = Options(device=device).torch_device().type
    path = fresh_folder(experiment.name) if out is None else out
    command = ["fedcohort", *sys.argv[1:]]
    folder = RunFolder.create(path, experiment, source=file, device=trains_on, command=command)
    try:
        _go(folder, n_workers, tracker)
    except FedcohortError as error:
        if not isinstance(error.__cause__, WriteError):  # with free disk space, resume can continue
            folder.discard_unless_begun()
        raise


def resume(
    folder: RunDir,
    workers: Workers = "1",
    tracker: TrackerName = None,
) -> None:
    """Resume a run. Its results equal those of an uninterrupted run."""
    from fedcohort.experiments import RunFolder

    n_workers = _number("resume", workers)
    _go(RunFolder.open(folder), n_workers, tracker)


def _number(command: str, workers: str) -> int | Literal["auto"]:
    """Read ``--workers``."""
    if workers == "auto":
        return "auto"
    if re.fullmatch(r"[1-9]\d{0,3}", workers, re.ASCII) is None:
        raise InputError(
            f"{command}: --workers must be a number from 1 to 9999 or auto; got {brief(workers)}."
        )
    return int(workers)


def _go(folder: RunFolder, workers: int | Literal["auto"], tracker_name: str | None) -> None:
    """Execute the run. Show progress on standard error and a table at the end."""
    from fedcohort.experiments import FailedUnitsError, execute, read_results
    from fedcohort.experiments.units import worded_plan

    tracker = None
    if tracker_name is not None:
        from fedcohort.experiments.trackers import make_tracker

        tracker = make_tracker(tracker_name, folder.path, folder.experiment.name)
    try:
        with watched(worded_plan(folder.units, folder.experiment)) as watcher:
            observer = cast("Observer", watcher)
            execute(folder, workers=workers, observer=observer, tracker=tracker)
    except KeyboardInterrupt:
        print(f"stopped; resume with: {folder.resume_command}", file=sys.stderr)
        raise
    except FailedUnitsError:
        with suppress(ExperimentError):  # nothing to show, or a table was lost with a worker
            print_summary(read_results(folder.path))
        raise
    finally:
        if tracker is not None:
            tracker.close()
    print_summary(read_results(folder.path))


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


class Watcher:
    """Show progress on standard error. Ctrl-C stops after the round; a second one stops now.

    It has the methods of ``Observer``, whose module is too slow to import here.
    """

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
            print(f"{100 * self._done // self._total:3d} % {text}{self._left()}", file=sys.stderr)

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
        print("\nstopping after this round; once more to stop now", file=sys.stderr)

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
    """Watch a run, and handle Ctrl-C until it ends."""
    watcher = Watcher(plan)
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
    from fedcohort.experiments.results import summarise
    from fedcohort.experiments.tuning import worded_choice

    console = plain_console()
    experiment = results.folder.experiment
    for panel in experiment.panels:
        summary = summarise(results, panel)
        if summary is None:
            continue
        title = panel.label if len(experiment.panels) > 1 else experiment.heading
        console.print(f"\n{title}: {counted(summary.rounds, 'round')}, {_seeds(summary.seeds)}\n")
        console.print(_table(summary))
        if not math.isnan(summary.level):
            console.print(
                f"rounds needed  until the rolling loss reaches {summary.level:.4g}, where "
                f"{summary.baseline} ends"
            )
        console.print(
            f"final          mean of the last {counted(summary.window, 'round')} ± standard "
            f"deviation over seeds\n"
            f"difference     to {summary.baseline}, seed by seed, ± 95 % confidence interval"
        )
        if choice := worded_choice(results.folder, panel):
            console.print(f"tuned          {choice}")
        if known := [each for each in summary.designs if not np.isnan(each.variance).any()]:
            values = ", ".join(f"{each.label} {np.mean(each.variance):.3f}" for each in known)
            console.print(f"V / V_MD       of the aggregate: {values}")
        if lost := [each for each in summary.designs if each.lost and not each.divergence]:
            shares = ", ".join(f"{each.label} {_share(each.lost)}" for each in lost)
            console.print(f"lost           updates that failed or are not finite: {shares}")
        if scaled := [each for each in summary.designs if each.scaled]:
            shares = ", ".join(f"{each.label} {_share(each.scaled)}" for each in scaled)
            console.print(f"scaled         updates of a norm above max_norm: {shares}")
        for each in summary.designs:
            if each.divergence:
                console.print(
                    f"diverged       {each.label} {each.divergence}; lower lr or server_lr"
                )
    console.print(f"\nrun folder: {results.folder.path}", soft_wrap=True)


def _table(summary: PanelSummary) -> Table:
    table = plain_table("\ndesign", *HEADINGS, min_width=12)
    for design in summary.designs:
        table.add_row(
            f"{design.label} (diverged)" if design.divergence else design.label,
            "-" if math.isnan(summary.level) else _needed(design.rounds_needed),
            _spread(design.final_loss, "{:.3f}"),
            _spread(100 * design.final_accuracy, "{:.1f}", " %"),
            _spread(np.mean(design.classes, keepdims=True), "{:.2f}"),
            _difference(design),
        )
    return table


def _seeds(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def _needed(rounds: Numbers) -> str:
    """Format the mean over the seeds that reached the level, and their number if not all did."""
    reached = rounds[~np.isnan(rounds)]
    if not len(reached):
        return "never"
    part = "" if len(reached) == len(rounds) else f" ({len(reached)}/{len(rounds)})"
    return f"{reached.mean():.0f}{part}"


def _share(share: float) -> str:
    return per_cent(share, decimals_of([100 * share], digits=2))


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
