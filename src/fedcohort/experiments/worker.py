"""The worker's side: run the units that the driver names, and tell it how it goes.

A worker reads commands from its standard input and writes messages to its standard output.
"""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import IO, final

import torch

from fedcohort.errors import ExperimentError, FedcohortError, WriteError
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.unit_runner import Advanced, Begun, UnitRunner, few_threads, saying_why
from fedcohort.experiments.units import Unit


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is told first."""

    folder: Path
    threads: int
    n_workers: int
    tracked: bool
    lock: int


@dataclass(frozen=True, slots=True)
class Done:
    """The worker's unit is done, or was stopped after a round."""

    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker's unit raised an error.

    Attributes
    ----------
    text
        The sentence for the user, or the traceback of an internal error.
    place
        What could not be written and why, if that was the cause.
    """

    text: str
    place: str | None = None
    is_internal: bool = False

    def error(self) -> Exception:
        """Return the error for the driver to raise."""
        if self.is_internal:
            return RuntimeError(f"a worker failed:\n{self.text}")
        error = ExperimentError(self.text)
        error.__cause__ = None if self.place is None else WriteError(self.place)
        return error


#: A command to a worker: run the unit with this number, or stop after this round.
Command = int | None
Message = Begun | Advanced | Done | Failed | logging.LogRecord


def main() -> None:
    """Run units until the driver ends the process."""
    commands, messages = _channels()
    job: Job = pickle.load(commands)
    os.set_inheritable(job.lock, False)
    turn = Lock()

    def tell(message: Message) -> None:
        try:
            with turn:  # designs that are built in threads log too
                pickle.dump(message, messages)
                messages.flush()
        except OSError:
            os._exit(1)  # the driver is gone

    package = logging.getLogger("fedcohort")
    package.addHandler(_Forward(tell))
    package.setLevel(logging.INFO)
    torch.set_num_interop_threads(job.threads)
    with few_threads(job.threads):
        _work(job, _Orders(commands), tell)


def _channels() -> tuple[IO[bytes], IO[bytes]]:
    """Return standard input and output, and keep the user's code from using them."""
    commands, messages = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return commands, messages


@final
class _Orders:
    """The driver's commands, read in a thread: numbers of units, and whether to stop."""

    def __init__(self, commands: IO[bytes]) -> None:
        self._commands = commands
        self.units: SimpleQueue[int] = SimpleQueue()
        self.stop = Event()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                command: Command = pickle.load(self._commands)
                if command is None:
                    self.stop.set()
                else:
                    self.units.put(command)
        finally:
            os._exit(1)  # the driver is gone


@final
class _Forward(QueueHandler):
    """Sends log lines to the driver."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        super().__init__(SimpleQueue())
        self._tell = tell

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a line, formatted so that it can be pickled."""
        self._tell(record)


def _work(job: Job, orders: _Orders, tell: Callable[[Message], None]) -> None:
    folder = RunFolder.open(job.folder)
    units = {unit.number: unit for unit in folder.units}
    runner = UnitRunner(folder, tell, orders.stop.is_set, tracked=job.tracked)

    def outcome(unit: Unit) -> Message:
        try:
            if orders.stop.is_set():
                return Done(is_stopped=True)
            with saying_why(folder, n_workers=job.n_workers):
                runner.run(unit)
        except KeyboardInterrupt:
            return Done(is_stopped=True)
        except FedcohortError as error:
            cause = error.__cause__
            return Failed(str(error), cause.place if isinstance(cause, WriteError) else None)
        except Exception:
            return Failed(traceback.format_exc(), is_internal=True)
        return Done()

    while True:
        tell(outcome(units[orders.units.get()]))
