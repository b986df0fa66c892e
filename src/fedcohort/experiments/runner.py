"""Run the units of an experiment: one of them, and all that are left of a folder.

There is one loop, :meth:`Ledger.run`. It hands units that may begin to a :class:`Crew` (this
process, local workers, or tasks of a cluster), which runs each with a :class:`UnitRunner`. From an
:class:`Outcome` the ledger alone decides what follows. All else is in the unit's folder.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

import pyarrow as pa

from fedcohort._arguments import brief, checked_kind
from fedcohort._lock import locked
from fedcohort.errors import (
    DesignError,
    ExperimentError,
    FedcohortError,
    SelectorError,
    SimulationError,
    WriteError,
)
from fedcohort.experiments.own_code import load_data, own_recipe, place_in
from fedcohort.experiments.run_folder import RunFolder, logging_to
from fedcohort.experiments.settings import Rates
from fedcohort.experiments.tables import (
    DEVICES,
    FEDERATIONS,
    device_table,
    federation_table,
    history_tables,
    is_whole,
    keep_table,
    law_tables,
)
from fedcohort.experiments.tuning import chosen_rates, worded_rates
from fedcohort.experiments.units import PlannedRun, Unit, needed_by, work_of
from fedcohort.simulation import (
    Dataset,
    Devices,
    FederatedData,
    History,
    Round,
    Run,
    Simulation,
)

if TYPE_CHECKING:
    from fedcohort.experiments.trackers import Tracker

log = logging.getLogger(__name__)

#: How often a unit begins again after what ran it crashed, before it fails.
RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Begun:
    """A unit begins; a checkpoint holds ``done`` rounds."""

    unit: int
    done: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """A unit has finished ``done`` rounds; ``new`` are the rounds since the last message."""

    unit: int
    done: int
    new: tuple[tuple[Round, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """A unit's folder has changed: a checkpoint with its tables, or the end.

    ``files`` are all of them if the ledger cannot see the folder.
    """

    unit: int
    files: Mapping[str, bytes] | None = None


#: What is said while a unit runs: of the unit, and lines of the log.
Message = Begun | Advanced | Saved | logging.LogRecord


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt to run a unit ended: done, stopped after a round, with an error, or a crash.

    It can be pickled, so that any process can report it. An error then arrives as its sentence, or
    as the traceback of an internal error.

    Attributes
    ----------
    error
        What was raised.
    crash
        How what ran the unit ended, if that came first.
    """

    is_stopped: bool = False
    error: Exception | None = None
    crash: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what to pickle: an exception of a user's class may not be known elsewhere."""
        error, cause = self.error, None
        if isinstance(error, FedcohortError):
            cause = error.__cause__ if isinstance(error.__cause__, WriteError) else None
            error = ExperimentError(str(error))
        elif error is not None:
            error = RuntimeError(f"a worker failed:\n{''.join(traceback.format_exception(error))}")
        place = None if cause is None else cause.place
        return _received, (self.is_stopped, error, place, self.crash)


def _received(
    is_stopped: bool, error: Exception | None, place: str | None, crash: str | None
) -> Outcome:
    """Return a pickled outcome; a pickled exception loses its cause."""
    if error is not None and place is not None:
        error.__cause__ = WriteError(place)
    return Outcome(is_stopped, error, crash)


@final
class UnitRunner:
    """Runs the units of a folder, one after the other; every data set is loaded once.

    Parameters
    ----------
    folder
        The run folder.
    notify
        Called with :class:`Begun`, :class:`Advanced` and :class:`Saved`.
    should_stop
        Called after every round. If True, save the state and raise ``KeyboardInterrupt``.
    tracked
        Whether messages contain the rounds.
    n_workers
        How many runners share the machine; named in errors only.
    load
        Returns a data set by its name and the folder of the user's code.
    """

    def __init__(
        self,
        folder: RunFolder,
        notify: Callable[[Message], None],
        should_stop: Callable[[], bool],
        *,
        tracked: bool,
        n_workers: int = 1,
        load: Callable[[str, Path], Dataset | FederatedData] = load_data,
    ) -> None:
        self._folder, self._notify, self._should_stop = folder, notify, should_stop
        self._tracked, self._n_workers = tracked, n_workers
        self._load = cache(load)
        self._code = folder.path / "code"

    def data(self, name: str) -> Dataset | FederatedData:
        """Return a data set of the experiment, loaded once."""
        return self._load(name, self._code)

    def prepare(self) -> None:
        """Write the clients' data and devices; refuse designs that cannot draw."""
        self._write_clients()
        if not any(unit.is_done for unit in self._folder.units):
            self._check_designs()

    def run(self, unit: Unit) -> Outcome:
        """Run a unit to its end, from its checkpoint if there is one; return how it ended."""
        try:
            if not self._should_stop():
                with readable_errors(self._folder, n_workers=self._n_workers):
                    self._run(unit)
                return Outcome()
        except KeyboardInterrupt:
            pass
        except Exception as error:
            return Outcome(error=error)
        return Outcome(is_stopped=True)

    def _run(self, unit: Unit) -> None:
        """Run a unit. A done one has whole tables or has diverged, and keeps no checkpoint."""
        rounds, checkpoint = unit.rounds, unit.checkpoint
        unit.begin()
        simulation = self._simulation(unit)
        done = self._resumed(simulation, unit) if checkpoint.exists() else 0
        self._notify(Begun(unit.number, done))
        sent = 0

        def progress(now: int, histories: list[History]) -> None:
            nonlocal sent
            self._report_round(unit, now, histories, sent=sent)
            sent = now
            should_stop = self._should_stop() and now < rounds
            if should_stop or (now % every == 0 and now < rounds):
                simulation.save(checkpoint)
                self._write_tables(unit, histories)
                self._notify(Saved(unit.number))
            if should_stop:
                log.info("unit %d: stopped after round %d", unit.number, now)
                raise KeyboardInterrupt

        every = self._folder.experiment.checkpoint_every
        try:
            histories = simulation.run(rounds - done, progress=progress)
        except _DivergedError as error:
            log.info("unit %d: %s: %s", unit.number, unit.candidate, error)
            unit.record_end("diverged", str(error))
        else:
            self._write_tables(unit, histories)
            designs, qualities = simulation.next_designs(), simulation.client_quality()
            for name, table in law_tables(unit.runs, designs, qualities).items():
                keep_table(unit.table(name), table)
            log.info("unit %d: done, %d rounds of %d runs", unit.number, rounds, len(unit.runs))
        checkpoint.unlink(missing_ok=True)  # with a memory of updates it can be gigabytes
        self._notify(Saved(unit.number))

    def _report_round(self, unit: Unit, now: int, histories: list[History], *, sent: int) -> None:
        """Report a round. Stop a trial that diverges."""
        diverged = [each.diverged_at for each in histories if each.diverged_at is not None]
        if unit.candidate is not None and len(diverged) == len(histories):
            raise _DivergedError(f"training diverges in round {max(diverged)}")
        is_tracked = self._tracked and unit.candidate is None
        new = tuple(tuple(each.rounds[sent:]) for each in histories) if is_tracked else ()
        self._notify(Advanced(unit.number, now, new))

    def _resumed(self, simulation: Simulation, unit: Unit) -> int:
        try:
            done = simulation.resume(unit.checkpoint)
        except SimulationError as error:
            raise ExperimentError(
                f"{error} Delete the file, and its unit starts again while all others are kept; "
                f"then: {self._folder.resume_command}"
            ) from error
        log.info("unit %d: resumed after round %d", unit.number, done)
        return done

    def _simulation(self, unit: Unit) -> Simulation:
        panel = self._folder.experiment.panel(unit.runs[0].panel)
        runs = [
            replace(run, **self._rates(unit, planned)._asdict())
            for planned, run in zip(unit.runs, self._runs(unit), strict=True)
        ]
        source = panel.model.source(runs[0].data.dataset, self._code)
        first = panel.candidates(panel.design[0].label)[0]  # every run has rates of its own
        options = panel.server.options(self._folder.device, first.server_lr)
        if unit.candidate is not None:
            options = replace(options, oracle_every=None)  # only the loss of a trial counts
        return Simulation(runs, source, panel.training.local(first), options)

    def _rates(self, unit: Unit, planned: PlannedRun) -> Rates:
        """Return the rates of a run: its unit's candidate, or the chosen ones."""
        if unit.candidate is not None:
            return unit.candidate
        panel = self._folder.experiment.panel(planned.panel)
        return chosen_rates(self._folder, panel, planned.design)

    def _runs(self, unit: Unit) -> Iterator[Run]:
        """Divide the data and make the recipes of a unit, without learning rates."""
        federation = cache(self._federation)  # the designs of a panel share data and devices
        for planned in unit.runs:
            panel = self._folder.experiment.panel(planned.panel)
            entry = panel.entry(planned.design)
            data, devices = federation(planned.panel, planned.seed)
            recipe = own_recipe(entry, entry.draws(panel), self._code)
            yield Run(
                recipe,
                data,
                planned.seed,
                devices=devices,
                importance=panel.server.importance,
                failures=panel.server.failures or None,
                optimizer=panel.step(planned.design).made(),
                label=planned.design,
                **entry.selector_settings(panel.server, recipe),
            )

    def _check_designs(self) -> None:
        """Build every run's first design, so that errors appear at the start."""
        for unit in self._folder.units:
            for planned, run in zip(unit.runs, self._runs(unit), strict=True):
                try:
                    run.selector()
                except (DesignError, SelectorError) as error:
                    raise ExperimentError(
                        f"{self._folder.head.get('file')}: design {planned.design!r}: {error}"
                    ) from error

    def _federation(self, label: str, seed: int) -> tuple[FederatedData, Devices | None]:
        """Return the clients' data and devices in a panel's runs with a seed."""
        panel = self._folder.experiment.panel(label)
        data = panel.data.federation(self.data(panel.data.dataset), seed)
        return data, panel.devices.devices(data, seed, self._folder.path)

    def _write_clients(self) -> None:
        """Write the table of the clients' data and, if they differ, of their devices."""
        folder = self._folder
        paths = [folder.federations, *([folder.devices] if folder.has_devices else [])]
        if all(map(is_whole, paths)):
            return
        held, owned = [FEDERATIONS.empty_table()], [DEVICES.empty_table()]
        for panel in folder.experiment.panels:
            for seed in panel.seeds:
                data, devices = self._federation(panel.label, seed)
                held.append(federation_table(panel.label, seed, data))
                if devices is not None:
                    owned.append(device_table(panel.label, seed, devices))
        for path, tables in zip(paths, (held, owned), strict=False):
            if not is_whole(path):
                keep_table(path, pa.concat_tables(tables))

    def _write_tables(self, unit: Unit, histories: list[History]) -> None:
        for name, table in history_tables(unit.runs, histories).items():
            keep_table(unit.table(name), table)


class _DivergedError(Exception):
    """A candidate of a grid diverges with all designs; its training stops."""


@contextmanager
def readable_errors(folder: RunFolder, *, n_workers: int = 1) -> Iterator[None]:
    """Raise errors that stop a run as one sentence. Internal errors propagate unchanged."""
    try:
        yield
    except WriteError as error:
        log.error("stopped: %s", error)
        raise ExperimentError(
            f"{error.place}: the run stopped, and completed work is kept. Make room, then "
            f"resume with: {folder.resume_command}"
        ) from error
    except SimulationError as error:
        log.error("stopped: %s", error)
        raise ExperimentError(_stopped(folder, str(error))) from error
    except FedcohortError:
        raise
    except Exception as error:
        if _is_out_of_memory(error):
            log.error("stopped: %s", error)
            lower = "Lower" if n_workers == 1 else "Use fewer workers, or lower"
            why = (
                f"it needs more memory than there is. {lower} cohort_size, batch_size or the model."
            )
            raise ExperimentError(_stopped(folder, why)) from error
        place = place_in(folder.path / "code", error)
        if place is None:
            raise
        log.exception("stopped")
        why = f"{place} raises {type(error).__name__}: {error}. Fix it."
        if folder.has_begun:
            why = f"code/{why} Then: {folder.resume_command}"
        raise ExperimentError(_stopped(folder, why)) from error


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; on the CPU torch has no class for it, so read the message."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, ValueError))
        and any(each in text for each in ("allocate memory", "out of memory", "array is too big"))
    )


def _stopped(folder: RunFolder, why: str) -> str:
    """Describe why a run stopped and whether its results are kept."""
    if folder.has_begun:
        return f"{folder.path}: the run stopped, and completed work is kept: {why}"
    return f"{folder.path}: the run stopped with nothing to keep: {why}"


class Observer:
    """Receives progress events of an experiment; this one ignores them."""

    def started(self, total: int, done: int, workers: int) -> None:
        """Handle the start: total and finished work, and the number of workers."""

    def began(self, work: int, text: str, worker: int) -> None:
        """Handle that a worker, from 0, begins a unit.

        ``work`` is the difference between the checkpoint and the count; negative after a crash.
        """

    def advanced(self, work: int, text: str, worker: int) -> None:
        """Handle that a worker has done more work; ``text`` describes its progress."""

    def noticed(self, text: str) -> None:
        """Handle a message about a problem that did not end the run."""

    def should_stop(self) -> bool:
        """Return whether to stop after this round; the run can be resumed."""
        return False


class Crew(Protocol):
    """Runs units: this process, local workers, or tasks of a cluster."""

    #: How many units run at a time, for the observer.
    size: int
    #: How many units it takes at a time: more if it has a queue of its own.
    room: int

    def begin(self, unit: Unit) -> None:
        """Begin a unit, or put it into the queue."""

    def ended(self) -> Iterable[tuple[Unit, Outcome, int]]:
        """Wait for a moment; pass messages to the ledger; return what ended and where."""

    def stop(self) -> None:
        """Let all units end after their rounds."""


@final
class ThisProcess:
    """Runs one unit after the other."""

    size = room = 1

    def __init__(self, runner: UnitRunner) -> None:
        self._runner = runner
        self._unit: Unit

    def begin(self, unit: Unit) -> None:
        """Begin a unit."""
        self._unit = unit

    def ended(self) -> list[tuple[Unit, Outcome, int]]:
        """Run the unit."""
        return [(self._unit, self._runner.run(self._unit), 0)]

    def stop(self) -> None:
        """Do nothing: the runner itself asks whether to stop."""


class FailedUnitsError(ExperimentError):
    """Some units of a run failed; all others are done."""


@final
class Ledger:
    """Which units are left, done and failed, and what follows when one ends.

    Reports progress to the observer and the tracker.
    """

    def __init__(self, folder: RunFolder, observer: Observer, tracker: Tracker | None) -> None:
        self.folder, self.observer, self._tracker = folder, observer, tracker
        self._done = {unit for unit in folder.units if unit.is_done}
        self.left = [unit for unit in folder.units if unit not in self._done]
        self._failed: dict[Unit, str] = {}
        self._crashes: Counter[Unit] = Counter()
        self._units = {unit.number: unit for unit in folder.units}
        self._work = {unit: work_of(unit, folder.experiment) for unit in folder.units}
        self._rounds_done: Counter[Unit] = Counter()
        self._rounds: dict[PlannedRun, list[Round]] = {}
        self._is_stopping = False

    @property
    def is_tracked(self) -> bool:
        """Whether there is a tracker, which needs all rounds."""
        return self._tracker is not None

    def run(self, crew: Crew) -> None:
        """Let a crew run the units that are left, until the observer stops them."""
        total = sum(self._work[unit] * unit.rounds for unit in self.folder.units)
        left = sum(self._work[unit] * unit.rounds for unit in self.left)
        self.observer.started(total, total - left, crew.size)
        is_stopping, n_running = False, 0
        while True:
            while n_running < crew.room and (unit := self.take()) is not None:
                crew.begin(unit)
                n_running += 1
            if not n_running:
                return
            for unit, outcome, worker in crew.ended():
                n_running -= 1
                self.settle(unit, outcome, worker)
            if not is_stopping and self.should_stop():
                is_stopping = True
                crew.stop()

    def should_stop(self) -> bool:
        """Return whether the observer stops the run; from then on it stays stopped."""
        self._is_stopping = self._is_stopping or self.observer.should_stop()
        return self._is_stopping

    def take(self) -> Unit | None:
        """Return the next unit that may begin; None if there is none, or if the run stops."""
        for unit in () if self._is_stopping else self.left:
            if all(each in self._done for each in needed_by(unit, self.folder.units)):
                self.left.remove(unit)
                return unit
        return None

    def handle(self, message: Message, worker: int = 0) -> None:
        """Count rounds, and pass them to the observer and the tracker; keep files."""
        if isinstance(message, logging.LogRecord):
            logging.getLogger(message.name).handle(message)
            return
        unit = self._units[message.unit]
        if isinstance(message, Saved):
            if message.files is not None:
                unit.mirror(message.files)
            return
        work = (message.done - self._rounds_done[unit]) * self._work[unit]
        self._rounds_done[unit] = message.done
        text = f"{self._name(unit)}: round {message.done} of {unit.rounds}"
        if isinstance(message, Begun):
            self.observer.began(work, text, worker)
            return
        self.observer.advanced(work, text, worker)
        if self._tracker is not None:
            for run, new in zip(unit.runs, message.new, strict=False):
                known = self._rounds.setdefault(run, [])
                known[message.done - len(new) :] = new  # a unit that begins again repeats some
                self._tracker.follow(run, known)

    def settle(self, unit: Unit, outcome: Outcome, worker: int = 0) -> None:
        """Decide what follows from the end of an attempt at a unit that was taken.

        An error is raised. A stopped unit goes back, and the run stops. A crashed one goes back
        too; after too many crashes it fails.
        """
        if outcome.error is not None:
            raise outcome.error
        self._is_stopping = self._is_stopping or outcome.is_stopped
        if outcome.is_stopped or (self._is_stopping and outcome.crash is not None):
            self.left.insert(0, unit)
        elif outcome.crash is not None:
            self._crash(unit, outcome.crash)
        else:
            self._finish(unit, worker)

    def _finish(self, unit: Unit, worker: int) -> None:
        """Note that a unit is done. If it diverged, count the rounds that it leaves out."""
        self._done.add(unit)
        if left := unit.rounds - self._rounds_done[unit]:
            self.observer.advanced(left * self._work[unit], f"{self._name(unit)}: diverged", worker)

    def _crash(self, unit: Unit, why: str) -> None:
        """Let a crashed unit begin again; after too many crashes it fails."""
        self._crashes[unit] += 1
        crashes = self._crashes[unit]
        text = f"its worker {why}; starting it again ({crashes} of {RESTARTS})"
        if crashes <= RESTARTS:
            self.left.insert(0, unit)
        else:
            self._failed[unit] = f"its worker died {crashes} times, and the last one {why}"
            unit.record_end("failed", self._failed[unit])
            text = f"failed: {self._failed[unit]}"
        log.warning("unit %d: %s", unit.number, text)
        self.observer.noticed(f"unit {unit.number}: {text}")

    def close(self) -> None:
        """Raise ``KeyboardInterrupt`` if the run stopped early, or name the units that failed."""
        if self._is_stopping and self.left:
            raise KeyboardInterrupt
        if not self._failed:
            return
        failed = "; ".join(f"unit {unit.number}: {why}" for unit, why in self._failed.items())
        rest = f" {len(self.left)} that need them did not begin." if self.left else ""
        raise FailedUnitsError(
            f"{self.folder.path}: {len(self._failed)} of {len(self.folder.units)} units failed "
            f"({failed}).{rest} What is done is kept. Try again with: {self.folder.resume_command}"
        )

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


def execute(
    folder: RunFolder,
    *,
    workers: int | Literal["auto"] = 1,
    ray: str | None = None,
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
    ray
        The address of a Ray cluster that runs the units instead, or ``"local"``.
    observer
        Receives progress events, and can stop the run.
    tracker
        Gets every round.

    Raises
    ------
    FailedUnitsError
        If the workers of some units died again and again. All other units are done.
    """
    way_out, error = "Pass what RunFolder.open gave.", ExperimentError
    checked_kind("execute", "folder", folder, RunFolder, way_out=way_out, error=error)
    # By their methods: the command line's observer does not derive from Observer.
    methods = [name for name in vars(Observer) if not name.startswith("_")]
    for name, value, needed in (("observer", observer, methods), ("tracker", tracker, ["follow"])):
        if value is not None and not all(callable(getattr(value, n, None)) for n in needed):
            raise ExperimentError(
                f"execute: {name} must have the methods {', '.join(needed)}; got {brief(value)}. "
                f"Derive your own from {name.capitalize()}, or pass None."
            )
    if ray is not None:
        way_out = "Pass 'local', or the address of a cluster."
        checked_kind("execute", "ray", ray, str, way_out=way_out, error=error)
    if ray is not None and workers != 1:
        raise ExperimentError(
            f"execute: takes workers or a Ray cluster; got {brief(workers)} workers and "
            f"{brief(ray)}. Leave one out."
        )
    folder.check_resumable()
    number = _resolved(workers, folder)
    with (
        locked(folder.path / "lock", str(folder.path)) as lock,
        logging_to(folder.path / "log.txt"),
        readable_errors(folder, n_workers=number),
    ):
        ledger = Ledger(folder, observer or Observer(), tracker)
        tracked, stop = ledger.is_tracked, ledger.should_stop
        runner = UnitRunner(folder, ledger.handle, stop, tracked=tracked, n_workers=number)
        runner.prepare()
        with _crew(ledger, runner, number, ray, lock) as crew:
            ledger.run(crew)
    ledger.close()


def _crew(
    ledger: Ledger, runner: UnitRunner, number: int, ray: str | None, lock: int
) -> AbstractContextManager[Crew]:
    """Return the crew for the units that are left."""
    if ray is not None and ledger.left:
        from fedcohort.experiments.ray_tasks import ray_tasks

        return ray_tasks(ledger, ray, data=runner.data)
    if number > 1:
        from fedcohort.experiments.workers import Team

        return closing(Team(ledger, size=max(1, min(number, len(ledger.left))), lock=lock))
    return nullcontext(ThisProcess(runner))


def _resolved(workers: int | Literal["auto"], folder: RunFolder) -> int:
    """Return how many workers to use."""
    if isinstance(workers, str) and workers == "auto":
        from fedcohort.experiments.workers import auto_workers, n_gpus, usable_cores

        left = sum(not unit.is_done for unit in folder.units)
        return auto_workers(left, usable_cores(), n_gpus(folder.device))
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ExperimentError(
            f"execute: workers must be at least 1 or 'auto'; got {brief(workers)}. Pass for "
            f"example 2."
        )
    return workers
