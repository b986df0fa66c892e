"""Real clusters of two nodes on this machine, of Slurm and of Ray, on 127.0.0.1 only."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, final

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/%n
SlurmctldLogFile={home}/controller.log
SlurmdLogFile={home}/%n.log
SlurmctldPidFile={home}/controller.pid
SlurmdPidFile={home}/%n.pid
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Return the programs of Slurm that are not installed; Debian has them in /usr/sbin."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


@final
class SlurmCluster:
    """Two nodes of one core each. Its commands find it by ``env``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(home / "slurm.conf")}

    def call(self, *command: object) -> str:
        """Run a command of Slurm; return what it prints."""
        words = list(map(str, command))
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def pid(self, name: str) -> int:
        """Return the process of a daemon."""
        return int((self.home / f"{name}.pid").read_text())

    def lose(self, node: str, *processes: int) -> None:
        """Kill a node with the processes of its job, as a machine dies, and tell the controller."""
        for pid in (self.pid(node), *processes):
            os.kill(pid, signal.SIGKILL)
        self.call("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")

    def start(self, node: str) -> None:
        """Start a node, also one that was lost."""
        self.call("slurmd", "-N", node)


#: A user's own code: a model, and a design whose runs wait at a :class:`Gate`.
OWN = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedcohort import Recipe
from fedcohort.designs import MultinomialDesign
from fedcohort.simulation import mlp

def own(dataset):
    return mlp(64, 3)

@dataclass(frozen=True)
class Waiting(Recipe):
    name: ClassVar[str] = "waiting"

    def design(self, population, known):
        gate = Path(os.environ["GATE"])
        if known.round_ >= 20 and not (gate / "open").exists():
            (gate / f"waits-{os.getpid()}").touch()
            while not any((gate / name).exists() for name in ("ajar", "open")):
                time.sleep(0.02)
            time.sleep(0.1)
        return MultinomialDesign(population, self.cohort_size)
"""


@final
class Gate:
    """Where units of the design ``mine.py:Waiting`` wait in round 20, so that a test can kill them.

    They find it by the environment variable ``GATE``, also on the nodes of a cluster. Once it is
    ajar, they take a tenth of a second for every round, until it is open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def n_waiting(self) -> int:
        """Return how many processes have come to the gate since it was closed."""
        return len(list(self.path.glob("waits-*")))

    def set(self, name: Literal["closed", "ajar", "open"]) -> None:
        """Close the gate, or leave it ajar, or open it for good."""
        for each in self.path.iterdir():
            each.unlink()
        if name != "closed":
            (self.path / name).touch()


def until(condition: Callable[[], object], seconds: float, said: Callable[[], str] = str) -> None:
    """Wait for a condition; ``said`` tells what is the matter if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.1)


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Start Slurm's controller and two nodes; stop them by their numbers."""
    with ExitStack() as stack:
        # A short path: a socket's may have 107 characters.
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        found = SlurmCluster(home)
        (home / "state").mkdir()
        for node in ("n1", "n2"):
            (home / node).mkdir()
        key = home / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host, user = socket.gethostname().partition(".")[0], getpass.getuser()
        text = CONF.format(host=host, user=user, home=home, ports=_free_ports(3))
        (home / "slurm.conf").write_text(text)
        stack.callback(_stop, found)
        named = {"key-file": key, "socket": home / "munge.socket", "pid-file": home / "munge.pid"}
        named |= {"log-file": home / "munge.log", "seed-file": home / "munge.seed"}
        found.call("munged", "--force", *(f"--{name}={path}" for name, path in named.items()))
        found.call("slurmctld")
        for node in ("n1", "n2"):
            found.start(node)
        until(lambda: found.call("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", 60)
        yield found


def _stop(found: SlurmCluster) -> None:
    """End the jobs, then the daemons."""
    with suppress(AssertionError, OSError):
        found.call("scancel", "--user", getpass.getuser(), "--signal=KILL", "--full")
        found.call("scancel", "--user", getpass.getuser())
        until(lambda: not found.call("squeue", "-h"), 20)
    for name in ("n1", "n2", "controller", "munge"):
        with suppress(OSError, ValueError):
            os.kill(found.pid(name), signal.SIGTERM)
            until(lambda name=name: not (found.home / f"{name}.pid").exists(), 10)  # type: ignore[misc]


#: How often a node of Ray is started.
TRIES = 8


def _has_started(said: Path) -> bool:
    return "Ray runtime started" in said.read_text()


@final
class RayNodes:
    """Two nodes of one core each; programs on this machine join the first, the head."""

    def __init__(self) -> None:
        self._port = _free_ports(1)[0]
        self.address = f"127.0.0.1:{self._port}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, home: str) -> None:
        """Start the head, then the other node."""
        head = (f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={home}")
        self._start(Path(home), "--head", *head)
        self._start(Path(home), f"--address={self.address}")

    def _start(self, home: Path, *options: str) -> None:
        """Start a node, and wait until it is one.

        Ray gives up if its agents need more than 15 seconds, as on a busy machine: try again.
        """
        command = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus=1", "--block"]
        command += ["--node-ip-address=127.0.0.1", "--disable-usage-stats"]
        said = home / "said.txt"
        for _ in range(TRIES):
            with said.open("wb") as output:
                env = {**os.environ, "PYTHONUNBUFFERED": "1"}
                node = subprocess.Popen([*command, *options], stdout=output, stderr=output, env=env)
            self.nodes.append(node)
            until(lambda: _has_started(said) or node.poll() is not None, 300)  # noqa: B023
            if _has_started(said):
                return
            self.nodes.remove(node)
        raise AssertionError(said.read_text())

    def lose(self, number: int) -> None:
        """Kill a node and all that it has started, as a machine dies."""
        _kill(self.nodes[number].pid)
        self.nodes[number].wait(timeout=60)


def _kill(pid: int) -> None:
    with suppress(OSError):
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        os.kill(pid, signal.SIGKILL)
        for each in below.split():
            _kill(int(each))


@contextmanager
def two_ray_nodes() -> Iterator[RayNodes]:
    """Start two nodes of Ray; kill them at the end."""
    # A short path: a socket's may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as home:
        nodes = RayNodes()
        try:
            nodes.start(home)
            yield nodes
        finally:
            for number in reversed(range(len(nodes.nodes))):
                nodes.lose(number)


def _free_ports(n: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
