"""Flower's programs on this machine: an environment of their own, free ports, and an end."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

#: Nothing leaves this machine: no reports, no downloads, and Ray on loopback alone.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
PORT = re.compile(r"(?:--port |127\.0\.0\.1:)(\d+)")
#: Seconds for a program to start, and to end.
TO_START, TO_END = 90.0, 15.0


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether a program listens on a port of this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def with_free_ports(page: str) -> str:
    """Return a page with other ports in place of those that are taken."""
    for port in sorted(set(PORT.findall(page))):
        if is_listening(int(port)):
            page = re.sub(rf"\b{port}\b", str(free_port()), page)
    return page


class Terminals:
    """Commands that stay until the end of a page, each in a terminal of its own.

    Parameters
    ----------
    folder
        Where the commands run, and keep what they print.
    environment
        Their environment; programs that Flower starts for itself have the same ``FLWR_HOME``.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._open: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._open):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        end_programs(self._environment["FLWR_HOME"])
        for number, process in enumerate(self._open):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if error is not None:
                error.add_note(f"terminal {number}: {self._log(number)[-3000:]}")

    def open(self, command: str) -> None:
        """Start a command; where it names its port, wait until it listens there."""
        number = len(self._open)
        ports = [int(port) for port in re.findall(r"--port (\d+)", command)]
        taken = [port for port in ports if is_listening(port)]
        assert not taken, f"{command}\nuses ports that others have: {taken}"
        with (self._folder / f"terminal-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                shell=True,
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._open.append(process)
        end = time.monotonic() + TO_START
        while not all(is_listening(port) for port in ports):
            assert process.poll() is None, f"{command}\nended:\n{self._log(number)}"
            assert time.monotonic() < end, f"{command}\ndoes not listen:\n{self._log(number)}"
            time.sleep(0.2)

    def _log(self, number: int) -> str:
        return (self._folder / f"terminal-{number}.log").read_text(errors="replace")


def end_programs(home: str) -> None:
    """End the programs with this ``FLWR_HOME``, such as a SuperLink that ``flwr run`` started."""
    for number in _programs(home):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)
    end = time.monotonic() + TO_END
    while (left := _programs(home)) and time.monotonic() < end:
        time.sleep(0.2)
    for number in left:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def _programs(home: str) -> list[int]:
    mark = f"FLWR_HOME={home}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found
