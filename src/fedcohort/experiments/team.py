"""The driver of several workers: share the units, follow their progress, replace dead workers.

Workers inherit the run folder's lock, so that the run cannot be resumed before the last one ends.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, cast, final

import torch

from fedcohort._whole_file import make_folder, write_whole
from fedcohort.experiments.run_folder import RunFolder
from fedcohort.experiments.unit_runner import Advanced, Begun
from fedcohort.experiments.units import Schedule, Unit
from fedcohort.experiments.worker import Command, Done, Failed, Job, Message

if TYPE_CHECKING:
    from fedcohort.experiments.runner import Account

log = logging.getLogger(__name__)

#: How often a worker that died is started again before its unit is given up.
RESTARTS = 3
#: Seconds after which the driver looks whether to stop, if no worker says anything.
PAUSE = 0.2
#: What a worker's Python runs. It ends when the driver's side of its input is closed, from the
#: first moment on: imports take seconds. Its ``sys.path`` is the driver's.
PROGRAM = """
import json, os, select, sys, threading

def end_with_driver(pipe=os.dup(0)):
    driver = select.poll()
    driver.register(pipe, 0)
    driver.poll()
    os._exit(1)

threading.Thread(target=end_with_driver, daemon=True).start()
sys.path[:] = json.loads(sys.argv[1])
from fedcohort.experiments.worker import main
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


@final
class Team:
    """Workers that share the units of a run."""

    def __init__(
        self, folder: RunFolder, schedule: Schedule, account: Account, *, size: int, lock: int
    ) -> None:
        self._folder, self._schedule, self._account = folder, schedule, account
        self._size, self._lock = size, lock
        self._crew: dict[int, _Worker] = {}
        self._inbox: SimpleQueue[tuple[_Worker, Message | None]] = SimpleQueue()
        self._deaths: Counter[Unit] = Counter()
        self._stopping = self._is_stopped = False

    def run(self) -> None:
        """Run all units; raise ``KeyboardInterrupt`` if the observer stops them."""
        try:
            self._assign()
            while any(worker.unit is not None for worker in self._crew.values()):
                with suppress(Empty):
                    self._hear(*self._inbox.get(timeout=PAUSE))
                if not self._stopping and self._account.observer.should_stop():
                    self._stop()
                self._assign()
        finally:
            for worker in self._crew.values():
                worker.end()
        if self._is_stopped:
            raise KeyboardInterrupt

    def _assign(self) -> None:
        """Give units to workers that have none; start workers that are not there."""
        for number in range(0 if self._stopping else self._size):
            worker = self._crew.get(number)
            if worker is not None and worker.unit is not None:
                continue
            unit = self._schedule.take()
            if unit is None:
                return
            if worker is None:
                worker = self._crew[number] = self._started(number)
            worker.begin(unit)

    def _started(self, number: int) -> _Worker:
        folder, gpus = self._folder, n_gpus(self._folder.device)
        threads = 1 if folder.device == "cpu" else max(1, usable_cores() // self._size)
        job = Job(folder.path, threads, self._size, self._account.is_tracked, self._lock)
        gpu = gpu_of(number, gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return _Worker(number, job, self._inbox, gpu=gpu)

    def _stop(self) -> None:
        self._stopping = True
        self._is_stopped = bool(self._schedule.left)
        for worker in self._crew.values():
            worker.stop()

    def _hear(self, worker: _Worker, message: Message | None) -> None:
        if message is None:
            self._bury(worker)
        elif isinstance(message, (Begun, Advanced)):
            self._account.hear(message, worker.number)
        elif isinstance(message, Failed):
            raise message.error()
        elif isinstance(message, Done):
            self._is_stopped |= message.is_stopped
            if worker.unit is not None and not message.is_stopped:
                self._schedule.finish(worker.unit)
                self._account.finish(worker.unit, worker.number)
            worker.unit = None
        else:
            logging.getLogger(message.name).handle(message)

    def _bury(self, worker: _Worker) -> None:
        """Let the unit of a dead worker begin again; give it up if that happens too often."""
        why, unit = worker.end(), worker.unit
        del self._crew[worker.number]
        if unit is None:
            return
        if self._stopping:
            self._is_stopped = True
            return
        self._deaths[unit] += 1
        if self._deaths[unit] <= RESTARTS:
            self._schedule.put_back(unit)
            tries = f"starting it again ({self._deaths[unit]} of {RESTARTS})"
            self._notice(f"unit {unit.number}: its worker {why}; {tries}")
            return
        text = f"its worker died {self._deaths[unit]} times, and the last one {why}"
        self._schedule.fail(unit, text)
        make_folder(self._folder.unit_folder(unit))
        write_whole(self._folder.failed(unit), f"{text}\n".encode())
        self._notice(f"unit {unit.number}: failed: {text}")

    def _notice(self, text: str) -> None:
        log.warning("%s", text)
        self._account.observer.noticed(text)


@final
class _Worker:
    """The driver's side of a worker."""

    def __init__(
        self,
        number: int,
        job: Job,
        inbox: SimpleQueue[tuple[_Worker, Message | None]],
        *,
        gpu: str | None,
    ) -> None:
        self.number, self._inbox = number, inbox
        self.unit: Unit | None = None
        env = {**os.environ, **dict.fromkeys(THREADS, str(job.threads))}
        if gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = gpu
        with _deaf_to_ctrl_c():
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
        """Give the worker a unit."""
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
        with suppress(OSError):  # if the worker is dead, its end will be heard
            pickle.dump(value, self._input)
            self._input.flush()

    def _listen(self) -> None:
        """Put messages into the driver's inbox, and None when there are no more."""
        with self._output, suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                self._inbox.put((self, pickle.load(self._output)))
        self._inbox.put((self, None))


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Start processes that do not get SIGINT, which a terminal sends to the whole group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
