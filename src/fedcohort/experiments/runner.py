"""Running an experiment, unit by unit, into its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import torch
from threadpoolctl import threadpool_limits

from fedcohort._whole_file import write_whole
from fedcohort.errors import (
    DesignError,
    ExperimentError,
    SelectorError,
    SimulationError,
    WriteError,
)
from fedcohort.experiments.own_code import load_data
from fedcohort.experiments.parts import make_own_recipe
from fedcohort.experiments.results import saying_why
from fedcohort.experiments.run_folder import RunFolder, is_whole, locked
from fedcohort.experiments.settings import Setting
from fedcohort.experiments.summary import chosen_training
from fedcohort.experiments.tables import (
    DEVICES,
    device_table,
    federation_table,
    history_tables,
    keep_table,
    law_tables,
)
from fedcohort.experiments.trackers import Tracker
from fedcohort.experiments.units import Unit
from fedcohort.simulation import (
    Dataset,
    Devices,
    FederatedData,
    History,
    Run,
    Simulation,
)


class _QuietFile(logging.FileHandler):
    """A log that a full disk cannot stop a run with."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, if that is possible."""
        with suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        """Close the file, though what is left of it cannot be written."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Drop the line."""


class _NothingTwice(logging.Filter):
    """Designs are built in every round: what they say of themselves is written once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let warnings through, and a message that was not there before."""
        if record.levelno > logging.INFO:
            return True
        message = record.getMessage()
        is_new = message not in self._said
        self._said.add(message)
        return is_new


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write what the package says into a file, while a run goes on."""
    package = logging.getLogger("fedcohort")
    handler = _QuietFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(_NothingTwice())
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
    """Told how a run goes; this one does nothing."""

    def started(self, total: int, done: int) -> None:
        """Learn how much work there is, and how much of it was done before."""

    def resumed(self, work: int, text: str) -> None:
        """Learn that a checkpoint holds some more that was done before."""

    def advanced(self, work: int, text: str) -> None:
        """Learn that some more is done; ``text`` says where the run is."""

    def should_stop(self) -> bool:
        """Say whether to stop after this round, resumable."""
        return False


def execute(
    folder: RunFolder, *, observer: Observer | None = None, tracker: Tracker | None = None
) -> None:
    """Run all that is not done yet.

    Stopped by the observer (``KeyboardInterrupt``), killed, or out of space, a run goes on from
    its last checkpoint when it is executed again.
    """
    with (
        locked(folder.path / "lock", str(folder.path)),
        logging_to(folder.path / "log.txt"),
        saying_why(folder),
    ):
        _Execution(folder, observer or Observer(), tracker).run()


class _Execution:
    def __init__(self, folder: RunFolder, observer: Observer, tracker: Tracker | None) -> None:
        self._folder, self._observer, self._tracker = folder, observer, tracker
        self._data: dict[str, Dataset | FederatedData] = {}
        self._code = folder.path / "code"

    def run(self) -> None:
        """Write who holds what, then run the units."""
        folder = self._folder
        self._write_federations()
        self._write_devices()
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
        panels = [(self._folder.experiment.panel(trial.panel), trial) for trial in unit.trials]
        return sum(
            panel.entry(trial.design).draws(panel)
            * (panel.training.steps or panel.training.epochs or 1)
            for panel, trial in panels
        )

    def _run_unit(self, unit: Unit, work: int) -> None:
        folder, rounds = self._folder, self._folder.rounds_of(unit)
        checkpoint = folder.checkpoint(unit)
        _make_folder(checkpoint.parent)
        simulation = self._simulation(unit)
        done = 0
        if checkpoint.exists():
            done = self._resumed(simulation, checkpoint)
            log.info("unit %d goes on after round %d", unit.number, done)
            self._observer.resumed(done * work, self._text(unit, done))
        every = folder.experiment.checkpoint_every

        def progress(now: int, histories: list[History]) -> None:
            if unit.candidate is not None and histories[0].diverged_at is not None:
                raise _DivergedError(f"training diverges in round {histories[0].diverged_at}")
            self._observer.advanced(work, self._text(unit, now))
            self._track(unit, histories)
            if now % every == 0 and now < rounds:
                self._write_tables(unit, histories)
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
        for name, table in law_tables(unit.trials, simulation.next_designs()).items():
            keep_table(folder.table(unit, name), table)
        log.info("unit %d: done, %d rounds of %d runs", unit.number, rounds, len(unit.trials))

    def _resumed(self, simulation: Simulation, checkpoint: Path) -> int:
        try:
            return simulation.resume(checkpoint)
        except SimulationError as error:
            raise ExperimentError(
                f"{error} Delete the file, and its unit starts anew while all others are kept; "
                f"then: {self._folder.resume_command}"
            ) from error

    def _simulation(self, unit: Unit) -> Simulation:
        panel = self._folder.experiment.panel(unit.trials[0].panel)
        if unit.candidate is None:
            training = chosen_training(self._folder, panel.label)
        else:
            lr, mu = unit.candidate
            training = panel.training.model_copy(update={"lr": lr, "mu": mu})
        runs = self._runs(unit)
        source = panel.model.source(runs[0].data.dataset, self._code)
        options = panel.server.options(self._folder.device)
        return Simulation(runs, source, training.local(), options)

    def _runs(self, unit: Unit) -> list[Run]:
        """Divide the data and make the recipes of a unit."""
        cells: dict[tuple[str, int], tuple[FederatedData, Devices | None]] = {}
        runs = []
        for trial in unit.trials:
            panel = self._folder.experiment.panel(trial.panel)
            key = (trial.panel, trial.seed)
            if key not in cells:
                cells[key] = self._cell(panel, trial.seed)
            data, devices = cells[key]
            entry = panel.entry(trial.design)
            recipe = make_own_recipe(entry, entry.draws(panel), self._code)
            runs.append(
                Run(
                    recipe,
                    data,
                    trial.seed,
                    entry.aggregation(),
                    devices,
                    failures=panel.server.failures or None,
                    on_failure=entry.on_failure,
                    extra=entry.extra,
                )
            )
        return runs

    def _cell(self, panel: Setting, seed: int) -> tuple[FederatedData, Devices | None]:
        """Return who holds what in a panel's runs with a seed, and what they train on."""
        data = self._federation(panel, seed)
        return data, panel.devices.devices(data.n_clients, seed, self._folder.path)

    def _rehearse(self) -> None:
        """Build every run's first design: what cannot be drawn from is refused at the start."""
        for unit in self._folder.units:
            for trial, run in zip(unit.trials, self._runs(unit), strict=True):
                try:
                    run.selector()
                except (DesignError, SelectorError) as error:
                    raise ExperimentError(
                        f"{self._folder.head.get('file')}: design {trial.design!r}: {error}"
                    ) from error

    def _federation(self, panel: Setting, seed: int) -> FederatedData:
        """Return who holds what; the data set is loaded once."""
        name = panel.data.dataset
        if name not in self._data:
            self._data[name] = load_data(name, self._code)
        return panel.data.federation(self._data[name], seed)

    def _write_devices(self) -> None:
        folder = self._folder
        if not folder.has_devices or is_whole(folder.devices):
            return
        tables = [DEVICES.empty_table()]
        for panel in folder.experiment.panels:
            for seed in panel.seeds:
                _, devices = self._cell(panel, seed)
                if devices is not None:
                    tables.append(device_table(panel.label, seed, devices))
        keep_table(folder.devices, pa.concat_tables(tables))

    def _write_federations(self) -> None:
        path = self._folder.federations
        if is_whole(path):
            return
        experiment = self._folder.experiment
        tables = [
            federation_table(panel.label, seed, self._federation(panel, seed))
            for panel in experiment.panels
            for seed in panel.seeds
        ]
        keep_table(path, pa.concat_tables(tables))

    def _write_tables(self, unit: Unit, histories: list[History]) -> None:
        for name, table in history_tables(unit.trials, histories).items():
            keep_table(self._folder.table(unit, name), table)

    def _track(self, unit: Unit, histories: list[History]) -> None:
        if self._tracker is not None and unit.candidate is None:
            for trial, history in zip(unit.trials, histories, strict=True):
                self._tracker.follow(trial, history.rounds)

    def _text(self, unit: Unit, done: int) -> str:
        rounds, trials = self._folder.rounds_of(unit), unit.trials
        seeds = sorted({trial.seed for trial in trials})
        panels = list(dict.fromkeys(trial.panel for trial in trials))
        what = "choosing lr, mu" if unit.candidate is not None else ", ".join(panels)
        seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}-{seeds[-1]}"
        return f"{what}, {seed}: round {done} of {rounds}"


class _DivergedError(Exception):
    """A candidate of a grid diverges: it is not trained to the end."""


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise WriteError(f"{path}: cannot be made ({reason})") from error


@contextmanager
def _few_threads(device: str) -> Iterator[None]:
    """Compute on one thread where the CPU trains: the models are small, and threads only wait."""
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
