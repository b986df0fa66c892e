"""A whole Flower deployment on this machine: a SuperLink and SuperNodes, stopped at the end.

With ``secure=True`` all traffic is under TLS, and only nodes whose keys were registered may join.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from certificates import write_certificates, write_node_key

APP = Path(__file__).parent
#: A line in a log before every start.
START = "=== start ==="
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class LocalFederation:
    """SuperLink and SuperNodes on loopback; use it in a ``with`` statement.

    ``app`` is the folder of the Flower app that :meth:`run` runs. With ``database`` the SuperLink
    keeps its state in a file; otherwise it forgets nodes and runs when it ends.
    """

    superlink: subprocess.Popen[bytes]

    def __init__(
        self,
        folder: Path,
        n_nodes: int,
        *,
        secure: bool = False,
        database: bool = False,
        app: Path = APP,
    ) -> None:
        self.folder, self.n_nodes, self.secure, self.app = folder, n_nodes, secure, app
        self.database = database
        self.port = free_port()
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        # Flower starts programs of its own, which lie beside this Python.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {"FLWR_HOME": str(folder), "PATH": path}
        self._environment = {**os.environ, **ENVIRONMENT, **own}

    def __enter__(self) -> LocalFederation:
        self.folder.mkdir(parents=True, exist_ok=True)
        connection = (
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
        )
        if self.secure:
            write_certificates(self.folder)
            connection += f'root-certificates = "{self.folder / "ca.crt"}"\n'
        else:
            connection += "insecure = true\n"
        (self.folder / "config.toml").write_text(connection)
        self.start_superlink()
        for number in range(self.n_nodes):
            self.start_node(number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        end = time.monotonic() + 10
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.2)
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Find the processes that Flower started for itself: they have our ``FLWR_HOME``."""
        mark = f"FLWR_HOME={self.folder}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again, and wait until it listens."""
        options = self._superlink_options()
        self.superlink = self._start("flower-superlink", *options, name="superlink")
        self._wait_for_port()

    def kill_superlink(self, timeout: float = 60) -> None:
        """Kill the SuperLink as ``kill -9`` does; wait until the programs it started have ended."""
        started = _descendants(self.superlink.pid)
        self.superlink.kill()
        self.superlink.wait()
        end = time.monotonic() + timeout
        while any(map(_is_running, started)) and time.monotonic() < end:
            time.sleep(0.2)

    def start_node(
        self, number: int, *, register: bool = True, partition: int | None = None, **config: Any
    ) -> None:
        """Start a SuperNode, or start it again: in a secure federation with the key that it had.

        A new key is registered first. The partition is the node's number, if none is given;
        ``config`` goes into the node's configuration too.
        """
        options = ["--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        if self.secure:
            private = self.folder / f"node-{number}.key"
            if not private.exists():
                public, private = write_node_key(self.folder, number)
                if register:
                    self.flwr("supernode", "register", str(public))
            options += ["--root-certificates", str(self.folder / "ca.crt")]
            options += ["--auth-supernode-private-key", str(private)]
        else:
            options.append("--insecure")
        own = number if partition is None else partition
        values = {"partition-id": own, "num-partitions": self.n_nodes, **config}
        configuration = " ".join(f"{key}={_toml(value)}" for key, value in values.items())
        self.nodes[number] = self._start(
            "flower-supernode", *options, "--node-config", configuration, name=f"node-{number}"
        )

    def node_id(self, number: int) -> int | None:
        """Return the id that the SuperLink gave a node when it started last; None before that."""
        last = self.log_of(f"node-{number}").rpartition(START)[2]
        found = re.search(r"SuperNode ID: (\d+)", last)
        return int(found[1]) if found else None

    def signal_node(self, number: int, sent: signal.Signals) -> None:
        """Send a signal to a node's process and all that it started; wait for a killed one."""
        process = self.nodes[number]
        for each in [process.pid, *_descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(each, sent)
        if sent == signal.SIGKILL:
            process.wait()

    def run(self, *, timeout: float = 240, pause: float = 5, **config: Any) -> str:
        """Run the app to its end, looked for every ``pause`` seconds: a second of work each time.

        Return how it ended.
        """
        run_id = self.submit(**config)
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            status = self.runs()[run_id]
            if status.startswith("finished"):
                return status
            time.sleep(pause)
        return "still running"

    def submit(self, **config: Any) -> str:
        """Start a run of the app; return its id."""
        settings = " ".join(f"{key.replace('_', '-')}={_toml(v)}" for key, v in config.items())
        started = self.flwr("run", str(self.app), "--run-config", settings, "--format", "json")
        return str(json.loads(started)["run-id"])

    def runs(self) -> dict[str, str]:
        """Return the status of the runs that the SuperLink knows, by id."""
        listed = json.loads(self.flwr("list", "--format", "json"))["runs"]
        return {str(each["run-id"]): str(each["status"]) for each in listed}

    def flwr(self, *arguments: str) -> str:
        """Call the ``flwr`` command and return what it prints."""
        result = subprocess.run(
            [_command("flwr"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RuntimeError(f"flwr {arguments[0]}: {result.stdout} {result.stderr}")
        return result.stdout

    def log_of(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _superlink_options(self) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--isolation", "subprocess"]
        if self.database:
            options += ["--database", str(self.folder / "state.db")]
        if not self.secure:
            return [*options, "--insecure"]
        files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        for option, name in files.items():
            options += [f"--ssl-{option}", str(self.folder / name)]
        return [*options, "--enable-supernode-auth"]

    def _start(self, command: str, *options: str, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            log.write(f"{START}\n".encode())
            log.flush()
            process = subprocess.Popen(
                [_command(command), *options],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def _wait_for_port(self, timeout: float = 60) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.2)
        raise RuntimeError(f"the SuperLink did not start:\n{self.log_of('superlink')}")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they started (Linux)."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _is_running(pid: int) -> bool:
    """Whether a process has not ended (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _command(name: str) -> str:
    """Return the program beside this Python."""
    return str(Path(sys.executable).parent / name)


def _toml(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else str(value)
