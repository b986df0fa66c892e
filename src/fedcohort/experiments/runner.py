"""Running an experiment, unit by unit, into its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import torch
from threadpoolctl import threadpool_limits

from fedcohort._whole_file import make_folder, write_whole
from fedcohort.errors import (
    DesignError,
    ExperimentError,
    FedcohortError,
    SelectorError,
    SimulationError,
    WriteError,
)
from fedcohort.experiments.own_code import load_data, own_recipe, place_in
from fedcohort.experiments.results import chosen_training
from fedcohort.experiments.run_folder import RunFolder, locked
from fedcohort.experiments.tables import (
    DEVICES,
    FEDERATIONS,
    Unit,
    device_table,
    federation_table,
    history_tables,
    is_whole,
    keep_table,
    law_tables,
)
from fedcohort.simulation import Devices, FederatedData, History, Run, Simulation

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

    def started(self, total: int, done: int) -> None:
        """Hear how much work there is, and how much of it was done before."""

    def resumed(self, work: int, text: str) -> None:
        """Hear that a checkpoint held more work that was done before."""

    def advanced(self, work: int, text: str) -> None:
        """Hear that more work is done; ``text`` says how far."""

    def should_stop(self) -> bool:
        """Return whether to stop after this round; the run can be resumed."""
        return False


def execute(
    folder: RunFolder, *, observer: Observer | None = None, tracker: Tracker | None = None
) -> None:
    """Run all units that are not done yet.

    If it stops (by the observer, as ``KeyboardInterrupt``; killed; out of space), execute the
    folder again: it continues from the last checkpoint.
    """
    with (
        locked(folder.path / "lock", str(folder.path)),
        logging_to(folder.path / "log.txt"),
        _saying_why(folder),
    ):
        _Execution(folder, observer or Observer(), tracker).run()


class _Execution:
    def __init__(self, folder: RunFolder, observer: Observer, tracker: Tracker | None) -> None:
        self._folder, self._observer, self._tracker = folder, observer, tracker
        self._load = cache(load_data)
        self._code = folder.path / "code"

    def run(self) -> None:
        """Write what clients hold, then run the units."""
        folder = self._folder
        self._write_clients()
        work = {unit.number: self._work(unit) for unit in folder.units}
        total = sum(work[u.number] * folder.rounds_of(u) for u in folder.units)
        finished = [unit for unit in folder.units if folder.is_done(unit)]
        done = sum(work[u.number] * folder.rounds_of(u) for u in finished)
        if not finished:
            self._rehearse()
        self._observer.started(total, done)
        with _few_threads(folder.device):
            for unit in folder.units:
                if unit not in finished:
                    self._run_unit(unit, work[unit.number])

    def _work(self, unit: Unit) -> int:
        """Weigh a round of a unit: the local steps of all its clients."""
        panels = [(self._folder.experiment.panel(run.panel), run) for run in unit.runs]
        return sum(
            panel.entry(run.design).draws(panel)
            * (panel.training.steps or panel.training.epochs or 1)
            for panel, run in panels
        )

    def _run_unit(self, unit: Unit, work: int) -> None:
        folder, rounds = self._folder, self._folder.rounds_of(unit)
        checkpoint = folder.checkpoint(unit)
        make_folder(checkpoint.parent)
        simulation = self._simulation(unit)
        done = 0
        if checkpoint.exists():
            done = self._resumed(simulation, checkpoint)
            log.info("unit %d goes on after round %d", unit.number, done)
            self._observer.resumed(done * work, self._text(unit, done))
        every = folder.experiment.checkpoint_every

        def progress(now: int, histories: list[History]) -> None:
            self._after_round(unit, work, now, histories)
            if self._observer.should_stop() and now < rounds:
                simulation.save(checkpoint)
                self._write_tables(unit, histories)
                log.info("unit %d: stopped after round %d", unit.number, now)
                raise KeyboardInterrupt

        try:
            histories = simulation.run(
                rounds - done, checkpoint=checkpoint, every=every, progress=progress
            )
        except _DivergedError as error:
            log.info("unit %d: lr, mu %s: %s", unit.number, unit.candidate, error)
            write_whole(folder.diverged(unit), f"{error}\n".encode())
            return
        self._write_tables(unit, histories)
        designs, qualities = simulation.next_designs(), simulation.client_quality()
        for name, table in law_tables(unit.runs, designs, qualities).items():
            keep_table(folder.table(unit, name), table)
        log.info("unit %d: done, %d rounds of %d runs", unit.number, rounds, len(unit.runs))

    def _after_round(self, unit: Unit, work: int, now: int, histories: list[History]) -> None:
        """Show and track a round, and write tables if it is time; give up what diverges."""
        if unit.candidate is not None and histories[0].diverged_at is not None:
            raise _DivergedError(f"training diverges in round {histories[0].diverged_at}")
        self._observer.advanced(work, self._text(unit, now))
        self._track(unit, histories)
        every, rounds = self._folder.experiment.checkpoint_every, self._folder.rounds_of(unit)
        if now % every == 0 and now < rounds:
            self._write_tables(unit, histories)

    def _resumed(self, simulation: Simulation, checkpoint: Path) -> int:
        try:
            return simulation.resume(checkpoint)
        except SimulationError as error:
            raise ExperimentError(
                f"{error} Delete the file, and its unit starts again while all others are kept; "
                f"then: {self._folder.resume_command}"
            ) from error

    def _simulation(self, unit: Unit) -> Simulation:
        panel = self._folder.experiment.panel(unit.runs[0].panel)
        if unit.candidate is None:
            training = chosen_training(self._folder, panel.label)
        else:
            training = panel.training.at(*unit.candidate)
        runs = list(self._runs(unit))
        source = panel.model.source(runs[0].data.dataset, self._code)
        options = panel.server.options(self._folder.device)
        return Simulation(runs, source, training.local(), options)

    def _runs(self, unit: Unit) -> Iterator[Run]:
        """Divide the data and make the recipes of a unit."""
        federation = cache(self._federation)  # the designs of a panel share data and devices
        for planned in unit.runs:
            panel = self._folder.experiment.panel(planned.panel)
            entry = panel.entry(planned.design)
            data, devices = federation(planned.panel, planned.seed)
            yield Run(
                own_recipe(entry, entry.draws(panel), self._code),
                data,
                planned.seed,
                entry.aggregation(),
                devices,
                failures=panel.server.failures or None,
                on_failure=entry.on_failure,
                extra=entry.extra,
            )

    def _rehearse(self) -> None:
        """Build every run's first design: refuse at the start what cannot be drawn from."""
        for unit in self._folder.units:
            for planned, run in zip(unit.runs, self._runs(unit), strict=True):
                try:
                    run.selector()
                except (DesignError, SelectorError) as error:
                    raise ExperimentError(
                        f"{self._folder.head.get('file')}: design {planned.design!r}: {error}"
                    ) from error

    def _federation(self, label: str, seed: int) -> tuple[FederatedData, Devices | None]:
        """Return who holds what in a panel's runs with a seed, and what they train on."""
        panel = self._folder.experiment.panel(label)
        data = panel.data.federation(self._load(panel.data.dataset, self._code), seed)
        return data, panel.devices.devices(data.n_clients, seed, self._folder.path)

    def _write_clients(self) -> None:
        """Write who holds what and, if clients differ, what they train on."""
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
            keep_table(self._folder.table(unit, name), table)

    def _track(self, unit: Unit, histories: list[History]) -> None:
        if self._tracker is not None and unit.candidate is None:
            for run, history in zip(unit.runs, histories, strict=True):
                self._tracker.follow(run, history.rounds)

    def _text(self, unit: Unit, done: int) -> str:
        rounds, runs = self._folder.rounds_of(unit), unit.runs
        seeds = sorted({run.seed for run in runs})
        panels = list(dict.fromkeys(run.panel for run in runs))
        what = "choosing lr, mu" if unit.candidate is not None else ", ".join(panels)
        seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}-{seeds[-1]}"
        return f"{what}, {seed}: round {done} of {rounds}"


class _DivergedError(Exception):
    """A candidate of a grid diverges; its training stops."""


@contextmanager
def _few_threads(device: str) -> Iterator[None]:
    """Use one thread on a CPU: the models are small, and more threads would only wait."""
    if device != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _saying_why(folder: RunFolder) -> Iterator[None]:
    """Turn what stops a run into one sentence; internal errors propagate unchanged."""
    try:
        yield
    except WriteError as error:
        log.error("stopped: %s", error)
        raise ExperimentError(
            f"{error.place}: the run stopped, and what it had done is kept. Make room, then "
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
            why = "it needs more memory than there is. Lower cohort_size, batch_size or the model."
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
    """Say why a run stopped, and what is left of it."""
    if folder.has_begun:
        return f"{folder.path}: the run stopped, and what it had done is kept: {why}"
    return f"{folder.path}: the run stopped with nothing to keep: {why}"
