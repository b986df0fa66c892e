"""Run an experiment, unit by unit, into its folder: in this process or with workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from fedcohort._arguments import brief
from fedcohort.errors import ExperimentError
from fedcohort.experiments.run_folder import RunFolder, locked
from fedcohort.experiments.team import Team, auto_workers, n_gpus, usable_cores
from fedcohort.experiments.tuning import worded_rates
from fedcohort.experiments.unit_runner import Advanced, Begun, UnitRunner, few_threads, saying_why
from fedcohort.experiments.units import PlannedRun, Schedule, Unit
from fedcohort.simulation import Round

if TYPE_CHECKING:
    from fedcohort.experiments.trackers import Tracker


class _QuietFile(logging.FileHandler):
    """A log that ignores a full disk."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line if possible."""
        with suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        """Close the file, even if the rest of it cannot be written."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Drop the line."""


class _Once(logging.Filter):
    """Drop repeated messages: designs are built in every round and say the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass warnings and new messages."""
        if record.levelno > logging.INFO:
            return True
        message = record.getMessage()
        is_new = message not in self._said
        self._said.add(message)
        return is_new


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write the package's log into a file."""
    package = logging.getLogger("fedcohort")
    handler = _QuietFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(_Once())
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()


log = logging.getLogger(__name__)


class Observer:
    """Hears how an experiment proceeds; this one does nothing."""

    def started(self, total: int, done: int, workers: int) -> None:
        """Hear how much work there is, how much of it was done before, and who does it."""

    def began(self, work: int, text: str, worker: int) -> None:
        """Hear that a worker, from 0, begins a unit.

        ``work`` is what its checkpoint holds beyond what was counted; less than 0 after a crash.
        """

    def advanced(self, work: int, text: str, worker: int) -> None:
        """Hear that a worker has done more work; ``text`` says how far it is."""

    def noticed(self, text: str) -> None:
        """Hear that something went wrong and is dealt with."""

    def should_stop(self) -> bool:
        """Return whether to stop after this round; the run can be resumed."""
        return False


class FailedUnitsError(ExperimentError):
    """Some units of a run failed; all others are done."""


def execute(
    folder: RunFolder,
    *,
    workers: int | Literal["auto"] = 1,
    observer: Observer | None = None,
    tracker: Tracker | None = None,
) -> None:
    """Run all units that are not done yet.

    If it stops (by the observer, as ``KeyboardInterrupt``; killed; out of space), execute the
    folder again: it continues from the last checkpoint.

    Parameters
    ----------
    folder
        The run folder.
    workers
        How many units run at a time. One runs in this process, more in processes of their own.
        ``"auto"``: one for each GPU, or for each core if the run trains on the CPU. The results
        are the same.
    observer
        Hears how it proceeds, and can stop it.
    tracker
        Gets every round.

    Raises
    ------
    FailedUnitsError
        If the workers of some units died again and again. All other units are done.
    """
    folder.check_resumable()
    number = _resolved(workers, folder)
    with (
        locked(folder.path / "lock", str(folder.path)) as lock,
        logging_to(folder.path / "log.txt"),
        saying_why(folder, n_workers=number),
    ):
        schedule = Schedule(folder.units, [unit for unit in folder.units if folder.is_done(unit)])
        account = Account(folder, observer or Observer(), tracker)
        stop = account.observer.should_stop
        runner = UnitRunner(folder, account.hear, stop, tracked=account.is_tracked)
        runner.prepare()
        size = max(1, min(number, len(schedule.left)))
        account.start(schedule, size)
        if number == 1:
            _run_here(runner, schedule, account)
        else:
            Team(folder, schedule, account, size=size, lock=lock).run()
    if schedule.failed:
        raise FailedUnitsError(_worded_failures(folder, schedule))


def _resolved(workers: int | Literal["auto"], folder: RunFolder) -> int:
    """Return how many workers to use."""
    if workers == "auto":
        left = sum(not folder.is_done(unit) for unit in folder.units)
        return auto_workers(left, usable_cores(), n_gpus(folder.device))
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ExperimentError(
            f"execute: workers must be at least 1 or 'auto'; got {brief(workers)}. Pass for "
            f"example 2."
        )
    return workers


def _run_here(runner: UnitRunner, schedule: Schedule, account: Account) -> None:
    # The models are small: on a CPU, more threads would only wait.
    with few_threads(1 if account.folder.device == "cpu" else None):
        while (unit := schedule.take()) is not None:
            runner.run(unit)
            schedule.finish(unit)
            account.finish(unit)


def _worded_failures(folder: RunFolder, schedule: Schedule) -> str:
    """Say which units failed and why, what waits for them, and how to try again."""
    failed = "; ".join(f"unit {unit.number}: {why}" for unit, why in schedule.failed.items())
    waiting = len(schedule.left)
    rest = f" {waiting} that need them did not begin." if waiting else ""
    return (
        f"{folder.path}: {len(schedule.failed)} of {len(folder.units)} units failed ({failed})."
        f"{rest} What is done is kept. Try again with: {folder.resume_command}"
    )


@final
class Account:
    """Counts what units have done, for the observer and the tracker."""

    def __init__(self, folder: RunFolder, observer: Observer, tracker: Tracker | None) -> None:
        self.observer = observer
        self.folder, self._tracker = folder, tracker
        self._units = {unit.number: unit for unit in folder.units}
        self._work = {unit.number: self._work_of(unit) for unit in folder.units}
        self._done: dict[int, int] = {}
        self._rounds: dict[PlannedRun, list[Round]] = {}

    @property
    def is_tracked(self) -> bool:
        """Whether there is a tracker, which needs all rounds."""
        return self._tracker is not None

    def start(self, schedule: Schedule, n_workers: int) -> None:
        """Tell the observer how much work there is."""
        folder = self.folder
        work = {unit: self._work[unit.number] * folder.rounds_of(unit) for unit in folder.units}
        left = sum(work[unit] for unit in schedule.left)
        total = sum(work.values())
        self.observer.started(total, total - left, n_workers)

    def hear(self, message: Begun | Advanced, worker: int = 0) -> None:
        """Count rounds; pass them to the observer and the tracker."""
        unit = self._units[message.unit]
        work = (message.done - self._done.get(message.unit, 0)) * self._work[message.unit]
        self._done[message.unit] = message.done
        if isinstance(message, Advanced):
            self.observer.advanced(work, self._text(unit, message.done), worker)
            self._track(unit, message)
        else:
            self.observer.began(work, self._text(unit, message.done), worker)

    def finish(self, unit: Unit, worker: int = 0) -> None:
        """Count the rounds that a unit that diverged leaves out."""
        left = self.folder.rounds_of(unit) - self._done.get(unit.number, 0)
        if left:
            text = f"{self._name(unit)}: diverged"
            self.observer.advanced(left * self._work[unit.number], text, worker)

    def _work_of(self, unit: Unit) -> int:
        """Weigh a round of a unit: the local steps of all its clients."""
        panels = [(self.folder.experiment.panel(run.panel), run) for run in unit.runs]
        return sum(
            panel.entry(run.design).draws(panel)
            * (panel.training.steps or panel.training.epochs or 1)
            for panel, run in panels
        )

    def _track(self, unit: Unit, message: Advanced) -> None:
        """Pass new rounds to the tracker. A worker that began again tells some of them again."""
        if self._tracker is None:
            return
        for run, new in zip(unit.runs, message.new, strict=False):
            known = self._rounds.setdefault(run, [])
            known[message.done - len(new) :] = new
            self._tracker.follow(run, known)

    def _text(self, unit: Unit, done: int) -> str:
        return f"{self._name(unit)}: round {done} of {self.folder.rounds_of(unit)}"

    def _name(self, unit: Unit) -> str:
        """Return the panels and seeds of a unit."""
        seeds = sorted({run.seed for run in unit.runs})
        panels = list(dict.fromkeys(run.panel for run in unit.runs))
        what = ", ".join(panels)
        if unit.candidate is not None:
            panel = self.folder.experiment.panel(panels[0])
            what = f"{what}, trying {worded_rates(panel, unit.candidate)}"
        seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}-{seeds[-1]}"
        return f"{what}, {seed}"
