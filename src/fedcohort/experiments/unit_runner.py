"""Run one unit of an experiment, in the driver's process or in a worker's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import final

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
from fedcohort.experiments.run_folder import RunFolder
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
from fedcohort.experiments.training_settings import Rates
from fedcohort.experiments.tuning import chosen_rates
from fedcohort.experiments.units import PlannedRun, Unit
from fedcohort.simulation import Devices, FederatedData, History, Round, Run, Simulation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begun:
    """A unit begins; a checkpoint holds ``done`` rounds."""

    unit: int
    done: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """A unit has finished ``done`` rounds; ``new`` are those of its runs that were not told yet."""

    unit: int
    done: int
    new: tuple[tuple[Round, ...], ...] = ()


@final
class UnitRunner:
    """Runs the units of a folder, one after the other; every data set is loaded once.

    Parameters
    ----------
    folder
        The run folder.
    tell
        Called with :class:`Begun` and :class:`Advanced`.
    should_stop
        Called after every round. If True, save the state and raise ``KeyboardInterrupt``.
    tracked
        Whether to tell all rounds.
    """

    def __init__(
        self,
        folder: RunFolder,
        tell: Callable[[Begun | Advanced], None],
        should_stop: Callable[[], bool],
        *,
        tracked: bool,
    ) -> None:
        self._folder, self._tell, self._should_stop = folder, tell, should_stop
        self._tracked = tracked
        self._load = cache(load_data)
        self._code = folder.path / "code"

    def prepare(self) -> None:
        """Write what clients hold. Refuse at the start what cannot be drawn from."""
        self._write_clients()
        if not any(map(self._folder.is_done, self._folder.units)):
            self._rehearse()

    def run(self, unit: Unit) -> None:
        """Run a unit to its end, from its checkpoint if there is one."""
        folder, rounds = self._folder, self._folder.rounds_of(unit)
        checkpoint = folder.checkpoint(unit)
        make_folder(checkpoint.parent)
        folder.failed(unit).unlink(missing_ok=True)
        simulation = self._simulation(unit)
        done = self._resumed(simulation, unit) if checkpoint.exists() else 0
        self._tell(Begun(unit.number, done))
        told = 0

        def progress(now: int, histories: list[History]) -> None:
            nonlocal told
            self._after_round(unit, now, histories, told=told)
            told = now
            if self._should_stop() and now < rounds:
                simulation.save(checkpoint)
                self._write_tables(unit, histories)
                log.info("unit %d: stopped after round %d", unit.number, now)
                raise KeyboardInterrupt

        every = folder.experiment.checkpoint_every
        try:
            histories = simulation.run(
                rounds - done, checkpoint=checkpoint, every=every, progress=progress
            )
        except _DivergedError as error:
            log.info("unit %d: %s: %s", unit.number, unit.candidate, error)
            write_whole(folder.diverged(unit), f"{error}\n".encode())
            return
        self._write_tables(unit, histories)
        designs, qualities = simulation.next_designs(), simulation.client_quality()
        for name, table in law_tables(unit.runs, designs, qualities).items():
            keep_table(folder.table(unit, name), table)
        log.info("unit %d: done, %d rounds of %d runs", unit.number, rounds, len(unit.runs))

    def _after_round(self, unit: Unit, now: int, histories: list[History], *, told: int) -> None:
        """Tell of a round, and write tables if it is time; give up what diverges."""
        diverged = [each.diverged_at for each in histories if each.diverged_at is not None]
        if unit.candidate is not None and len(diverged) == len(histories):
            raise _DivergedError(f"training diverges in round {max(diverged)}")
        is_tracked = self._tracked and unit.candidate is None
        new = tuple(tuple(each.rounds[told:]) for each in histories) if is_tracked else ()
        self._tell(Advanced(unit.number, now, new))
        every, rounds = self._folder.experiment.checkpoint_every, self._folder.rounds_of(unit)
        if now % every == 0 and now < rounds:
            self._write_tables(unit, histories)

    def _resumed(self, simulation: Simulation, unit: Unit) -> int:
        try:
            done = simulation.resume(self._folder.checkpoint(unit))
        except SimulationError as error:
            raise ExperimentError(
                f"{error} Delete the file, and its unit starts again while all others are kept; "
                f"then: {self._folder.resume_command}"
            ) from error
        log.info("unit %d goes on after round %d", unit.number, done)
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
        """Return what a run trains with: what its unit tries, or what was chosen."""
        if unit.candidate is not None:
            return unit.candidate
        panel = self._folder.experiment.panel(planned.panel)
        return chosen_rates(self._folder, panel, planned.design)

    def _runs(self, unit: Unit) -> Iterator[Run]:
        """Divide the data and make the recipes of a unit, without learning rates."""
        federation = cache(self._federation)  # the designs of a panel share data and devices
        for k, planned in enumerate(unit.runs):
            panel = self._folder.experiment.panel(planned.panel)
            entry = panel.entry(planned.design)
            rows = self._folder.checkpoint(unit).parent / f"rows-{k}"
            if entry.on_disk:
                make_folder(rows.parent)
            data, devices = federation(planned.panel, planned.seed)
            yield Run(
                own_recipe(entry, entry.draws(panel), self._code),
                data,
                planned.seed,
                entry.aggregation(rows),
                devices,
                failures=panel.server.failures or None,
                on_failure=entry.on_failure,
                extra=entry.extra,
                optimizer=panel.step(planned.design).made(),
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


class _DivergedError(Exception):
    """A candidate of a grid diverges with all designs; its training stops."""


@contextmanager
def few_threads(threads: int | None) -> Iterator[None]:
    """Compute with this many threads; None leaves their number as it is."""
    if threads is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(limits=threads, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def saying_why(folder: RunFolder, *, n_workers: int = 1) -> Iterator[None]:
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
    """Say why a run stopped, and what is left of it."""
    if folder.has_begun:
        return f"{folder.path}: the run stopped, and what it had done is kept: {why}"
    return f"{folder.path}: the run stopped with nothing to keep: {why}"
