"""Fed-BioMed nodes on this machine, each with a small table; stopped at the end."""

from __future__ import annotations

import configparser
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

#: Lies beside this Python.
FEDBIOMED = str(Path(sys.executable).parent / "fedbiomed")


class LocalNodes:
    """Nodes by name, and a researcher's folder; use it in a ``with`` statement.

    Parameters
    ----------
    folder
        Where everything is written.
    rows
        How many rows each node's table has, by the node's name.
    """

    def __init__(self, folder: Path, rows: Mapping[str, int]) -> None:
        self.folder, self.rows = folder, dict(rows)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        port = str(_free_port())
        self._environment = {
            "FBM_SERVER_HOST": "127.0.0.1",
            "FBM_SERVER_PORT": port,
            "FBM_RESEARCHER_IP": "127.0.0.1",
            "FBM_RESEARCHER_PORT": port,
            # Seconds until the researcher takes a silent node for lost; 10 by default.
            "FBM_SERVER_NODE_DISCONNECTION_TIMEOUT": "3",
            "FBM_RESEARCHER_COMPONENT_ROOT": str(folder / "researcher"),
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> LocalNodes:
        self.folder.mkdir(parents=True, exist_ok=True)
        # A researcher's script reads them when it imports fedbiomed.researcher.
        os.environ.update(self._environment)
        making = [
            self._command("component", "create", "-c", "NODE", "-p", self._path(name), "-n", name)
            for name in self.rows
        ]
        researcher = str(self.folder / "researcher")
        making.append(self._command("component", "create", "-c", "RESEARCHER", "-p", researcher))
        _wait_for(making)
        _wait_for([self._add_table(name) for name in self.rows])
        for name in self.rows:
            self.start(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._running):
            self.kill(name)

    def names(self) -> dict[str, str]:
        """Return the nodes' names by their ids, which Fed-BioMed makes."""
        found = {}
        for name in self.rows:
            config = configparser.ConfigParser()
            config.read(Path(self._path(name)) / "etc" / "config.ini")
            found[config["default"]["id"]] = name
        return found

    def log(self) -> str:
        """Return what Fed-BioMed's commands and nodes have said."""
        return (self.folder / "fedbiomed.log").read_text(errors="replace")

    def start(self, name: str) -> None:
        """Start a node that is not running."""
        self._running[name] = self._command("node", "-p", self._path(name), "start")

    def kill(self, name: str) -> None:
        """Kill a node with all its processes, as a power failure would."""
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _path(self, name: str) -> str:
        return str(self.folder / name)

    def _add_table(self, name: str) -> subprocess.Popen[bytes]:
        """Write a node's table and a description of it, and tell the node."""
        rng = np.random.default_rng(self.rows[name])
        columns = rng.normal(size=(self.rows[name], 2))
        outcome = columns @ [1.0, 2.0] + rng.normal(scale=0.5, size=len(columns)) > 0
        table, description = self.folder / f"{name}.csv", self.folder / f"{name}.json"
        lines = [f"{a:.4f},{b:.4f},{int(c)}" for (a, b), c in zip(columns, outcome, strict=True)]
        table.write_text("\n".join(["age,dose,outcome", *lines, ""]))
        about = {"name": "patients", "description": "patients", "tags": "patients"}
        description.write_text(json.dumps({"path": str(table), "data_type": "csv", **about}))
        return self._command(
            "node", "-p", self._path(name), "dataset", "add", "--file", str(description)
        )

    def _command(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command of Fed-BioMed, in a group of its own; its output goes to a file."""
        with (self.folder / "fedbiomed.log").open("ab") as log:
            return subprocess.Popen(
                [FEDBIOMED, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _wait_for(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.wait(timeout=300):
            raise RuntimeError(f"{process.args!r} failed: look at fedbiomed.log")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(experiment: Any, nodes: LocalNodes, seconds: float = 120) -> None:
    """Wait until all nodes answer a ping."""
    from fedbiomed.common.message import PingRequest
    from fedbiomed.researcher.requests import StopOnTimeout

    ping, end = PingRequest(researcher_id=experiment.researcher_id), time.monotonic() + seconds
    n_online = 0
    while n_online < len(nodes.rows):
        if time.monotonic() > end:
            raise TimeoutError(f"not all nodes came: {nodes.log()[-2000:]}")
        time.sleep(0.5)
        with experiment.requests.send(ping, policies=[StopOnTimeout(2)]) as request:
            n_online = len(request.replies())
