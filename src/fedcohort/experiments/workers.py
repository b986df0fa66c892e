"""Local workers: processes that share the units of a run.

The driver assigns units, follows their progress and replaces workers that crash. A worker reads
commands from its standard input and writes messages to its standard output. It inherits the run
folder's lock, so that the run cannot be resumed before the last worker ends.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import IO, cast, final

import torch

from fedcohort.experiments.run_folder import RunFolder, logging_by
from fedcohort.experiments.runner import Ledger, Message, Outcome, UnitRunner
from fedcohort.experiments.units import Unit

#: Seconds between checks whether to stop, if no message arrives.
PAUSE = 0.2
#: The program of a worker, with the driver's ``sys.path``. It ends when the driver closes its side
#: of the input, also during imports, which take seconds.
PROGRAM = """
import json, os, select, sys, threading

def end_with_driver(pipe=os.dup(0)):
    driver = select.poll()
    driver.register(pipe, 0)
    driver.poll()
    os._exit(1)

threading.Thread(target=end_with_driver, daemon=True).start()
sys.path[:] = json.loads(sys.argv[1])
from fedcohort.experiments.workers import main
main()
"""
#: Variables that pin the threads of a worker from its start.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def usable_cores() -> int:
    """Return how many cores this process may use, by its affinity and its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _quota(Path("/sys/fs/cgroup"))))


def _quota(group: Path) -> int:
    """Return the cores that a control group (version 2 or 1) allows; many if it has no limit."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join((group / name).read_text() for name in names).split()
            if int(quota) > 0:  # "max" and -1 mean no limit
                return max(1, int(quota) // int(period))
    return sys.maxsize


def n_gpus(device: str) -> int:
    """Return how many GPUs a run can use; 0 if it trains on the CPU."""
    return torch.cuda.device_count() if device == "cuda" else 0


def auto_workers(n_units: int, cores: int, gpus: int) -> int:
    """Return one worker per GPU, or per core without one; not more than there are units.

    Examples
    --------
    >>> auto_workers(6, cores=2, gpus=0), auto_workers(6, cores=64, gpus=4)
    (2, 4)
    """
    return max(1, min(n_units, gpus or cores))


def gpu_of(worker: int, gpus: int, visible: str | None) -> str | None:
    """Return the ``CUDA_VISIBLE_DEVICES`` of a worker; None leaves it as it is.

    ``visible`` is the driver's own.

    Examples
    --------
    >>> [gpu_of(worker, gpus=2, visible=None) for worker in range(3)]
    ['0', '1', '0']
    >>> gpu_of(1, gpus=2, visible="5,7")
    '7'
    """
    if gpus < 2:
        return None
    names = visible.split(",") if visible else [str(k) for k in range(gpus)]
    return names[worker % gpus].strip()


@dataclass(frozen=True, slots=True)
class Job:
    """The first message to a worker: the run folder and its settings."""

    folder: Path
    threads: int
    n_workers: int
    tracked: bool
    lock: int


#: A command to a worker: run the unit with this number, or stop after this round.
Command = int | None
#: What a worker sends.
Sent = Message | Outcome


@final
class Team:
    """Workers that share the units of a run, a crew."""

    def __init__(self, ledger: Ledger, *, size: int, lock: int) -> None:
        self._ledger, self._lock = ledger, lock
        self.size = self.room = size
        self._workers: dict[int, _Worker] = {}
        self._inbox: SimpleQueue[tuple[_Worker, Sent | None]] = SimpleQueue()

    def begin(self, unit: Unit) -> None:
        """Assign a unit to an idle worker; start one if there is none."""
        idle = [k for k, worker in self._workers.items() if worker.unit is None]
        number = (idle or [k for k in range(self.size) if k not in self._workers])[0]
        if not idle:
            self._workers[number] = self._started(number)
        self._workers[number].begin(unit)

    def ended(self) -> Iterator[tuple[Unit, Outcome, int]]:
        """Handle a worker's next message; yield the unit that it has ended."""
        try:
            worker, message = self._inbox.get(timeout=PAUSE)
        except Empty:
            return
        if message is None:  # forget the worker
            message = Outcome(crash=worker.end())
            del self._workers[worker.number]
        if not isinstance(message, Outcome):
            self._ledger.handle(message, worker.number)
        elif worker.unit is not None:
            unit, worker.unit = worker.unit, None
            yield unit, message, worker.number

    def stop(self) -> None:
        """Ask all workers to stop after their rounds."""
        for worker in self._workers.values():
            worker.stop()

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers.values():
            worker.end()

    def _started(self, number: int) -> _Worker:
        folder = self._ledger.folder
        gpus = n_gpus(folder.device)
        threads = 1 if folder.device == "cpu" else max(1, usable_cores() // self.size)
        job = Job(folder.path, threads, self.size, self._ledger.is_tracked, self._lock)
        gpu = gpu_of(number, gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return _Worker(number, job, self._inbox, gpu=gpu)


@final
class _Worker:
    """The driver's side of a worker."""

    def __init__(
        self,
        number: int,
        job: Job,
        inbox: SimpleQueue[tuple[_Worker, Sent | None]],
        *,
        gpu: str | None,
    ) -> None:
        self.number, self._inbox = number, inbox
        self.unit: Unit | None = None
        env = {**os.environ, **dict.fromkeys(THREADS, str(job.threads))}
        if gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = gpu
        with _sigint_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(job.lock,),
                env=env,
            )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)
        self._send(job)
        Thread(target=self._listen, daemon=True).start()

    def begin(self, unit: Unit) -> None:
        """Assign a unit to the worker."""
        self.unit = unit
        self._send(unit.number)

    def stop(self) -> None:
        """Ask the worker to stop after its round."""
        self._send(None)

    def end(self) -> str:
        """Kill the worker if it lives; return how it ended."""
        self._process.kill()
        code = self._process.wait()
        with suppress(OSError):
            self._input.close()
        if code >= 0:
            return f"ended with exit code {code}"
        why = " (as the system does when memory runs out)" if code == -signal.SIGKILL else ""
        return f"was killed by signal {-code}{why}"

    def _send(self, value: Job | Command) -> None:
        with suppress(OSError):  # a crash is handled when its output ends
            pickle.dump(value, self._input)
            self._input.flush()

    def _listen(self) -> None:
        """Put messages into the driver's inbox, and None when there are no more."""
        with self._output, suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self._inbox.put((self, pickle.load(self._output)))
        self._inbox.put((self, None))


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT for processes that start here: a terminal sends it to the whole group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    """Run units until the driver ends the process."""
    commands, messages = _channels()
    job: Job = pickle.load(commands)
    os.set_inheritable(job.lock, False)
    turn = Lock()

    def send(message: Sent) -> None:
        try:
            with turn:  # designs that are built in threads log too
                pickle.dump(message, messages)
                messages.flush()
        except OSError:
            os._exit(1)  # the driver is gone

    torch.set_num_interop_threads(job.threads)
    with forwarding(send):
        _work(job, _Commands(commands), send)


def _channels() -> tuple[IO[bytes], IO[bytes]]:
    """Return standard input and output, and keep the user's code from using them."""
    commands, messages = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return commands, messages


@final
class _Commands:
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


def forwarding(send: Callable[[logging.LogRecord], None]) -> AbstractContextManager[None]:
    """Send the package's log to the driver."""
    return logging_by(_Forward(send))


@final
class _Forward(QueueHandler):
    """Formats lines of the log so that they can be pickled."""

    def __init__(self, send: Callable[[logging.LogRecord], None]) -> None:
        super().__init__(SimpleQueue())
        self._send = send

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a line."""
        self._send(record)


def _work(job: Job, commands: _Commands, send: Callable[[Sent], None]) -> None:
    folder = RunFolder.open(job.folder)
    units = {unit.number: unit for unit in folder.units}
    stop, n_workers = commands.stop.is_set, job.n_workers
    runner = UnitRunner(folder, send, stop, tracked=job.tracked, n_workers=n_workers)
    while True:
        send(runner.run(units[commands.units.get()]))
