"""Processes of a deployment are killed, in FLARE's POC mode: what the page says of each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from documented_blocks import blocks_of
from flare.in_process import lines
from flower_programs import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "nvflare-deployment.md").read_text(encoding="utf-8")
#: What the server is called in these kits: it then listens on this machine alone.
SERVER, SITES = "localhost", ("site-1", "site-2", "site-3")
#: What FLARE calls a job that a killed process ended.
ENDED = "FINISHED:EXECUTION_EXCEPTION"
Found = TypeVar("Found")


@pytest.mark.slow
def test_a_job_goes_on_without_a_killed_site_and_continues_after_a_killed_job_process(
    tmp_path: Path,
) -> None:
    with Deployment(tmp_path) as own:
        own.export("--rounds", "12", "--timeout", "8")
        with own.submitting_again() as output:
            own.wait_for_rounds(2)
            kill(own.process_of("site-2"))
            missed = wait_for(lambda: [line for line in own.log() if "site-2" in line["failed"]])
            own.wait_for_rounds(len(own.log()) + 3)
            kill(own.job_process("site-3"))
            wait_for(lambda: ENDED in output())
            first = own.log()
            wait_for(lambda: "FINISHED:COMPLETED" in output())
        log = own.log()

    assert [line["failed"] for line in missed] == [{"site-2": "no answer: the deadline has passed"}]
    after = [line["drawn"] for line in first if line["round"] > missed[0]["round"]]
    assert len(after) >= 3
    assert not any("site-2" in drawn for drawn in after)
    assert any("site-2" in line["weights"] for line in log[len(first) :])
    assert list(dict.fromkeys(line["round"] for line in log)) == list(range(12))


@pytest.mark.slow
def test_a_killed_training_process_loses_one_answer_and_a_killed_server_the_job(
    tmp_path: Path,
) -> None:
    with Deployment(tmp_path) as own:
        own.export("--rounds", "50", "--timeout", "120", "--external")
        own.submit()
        own.wait_for_rounds(1)
        failed = wait_for(lambda: own.failures_after_killing("site-1"))
        wait_for(lambda: "site-1" in own.log()[-1]["weights"])
        kill(own.process_of(SERVER))
        wait_for(lambda: not own.children(own.process_of("site-1")))
        wait_for(lambda: "Registered clients: 3" in own.flare("system", "status"))
        before = len(own.log())
        job = own.submit()
        own.wait_for_rounds(before + 1)
        jobs = own.flare("job", "list")
        kill(own.job_process(SERVER))
        end = own.flare("job", "wait", job)
        log = own.log()

    assert set(failed) == {"error: EXECUTION_EXCEPTION"}
    assert jobs.count("RUNNING") == 2
    assert ENDED in end
    assert list(dict.fromkeys(line["round"] for line in log)) == list(range(len(log)))


class Deployment:
    """A server and three sites, each with a supervisor, its process, and processes of jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kits = folder, folder / "poc" / "example_project" / "prod_00"
        home = folder / "home"  # FLARE keeps there which federation a command is for
        home.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "NVFLARE_POC_WORKSPACE": str(folder / "poc"),
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Self:
        self.flare("poc", "prepare", "-n", "3")
        project = (self.folder / "poc" / "project.yml").read_text()
        project = project.replace("name: server\n", f"name: {SERVER}\n")
        project = re.sub("fed_learn_port: .*", f"fed_learn_port: {free_port()}", project)
        (self.folder / "project.yml").write_text(project)
        self.flare("poc", "prepare", "-i", "project.yml", "--force")
        try:
            assert "Clients ready: 3/3" in self.flare("poc", "start", "--timeout", "100")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """Kill every process that was started, first those that would start others again."""
        supervisors = [self._pid(name, "daemon_pid.fl") for name in (SERVER, *SITES)]
        known = [pid for pid in supervisors if pid is not None]
        below = [pid for supervisor in known for pid in self._below(supervisor)]
        for pid in known + below:
            with suppress(ProcessLookupError):
                kill(pid)

    def flare(self, *command: str) -> str:
        """Run a command of FLARE; return what it prints."""
        result = subprocess.run(
            ["nvflare", *command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=150,
        )
        return result.stdout

    def export(self, *flags: str) -> None:
        """Write the example's job, all three sites drawn in most rounds."""
        job = ROOT / "examples" / "nvflare-digits" / "job.py"
        folders = ("--folder", str(self.folder / "kept"), "--export", str(self.folder / "jobs"))
        command = [sys.executable, str(job), "--sites", "3", "--draws", "3", *folders, *flags]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def submit(self) -> str:
        return self.flare("job", "submit", "-j", "jobs/digits").partition("job_id: ")[2].strip()

    @contextmanager
    def submitting_again(self) -> Iterator[Callable[[], str]]:
        """Run the page's loop until its end; yield a function that returns its output."""
        (loop,) = [block.text for block in blocks_of(PAGE) if "nvflare job wait" in block.text]
        loop = loop.replace("sleep 20", "sleep 1")  # no site has to come back
        output = self.folder / "output"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", loop],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield output.read_text
                assert process.wait(60) == 0
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def log(self) -> list[dict[str, Any]]:
        path = self.folder / "kept" / "selections.jsonl"
        return lines(path) if path.exists() else []

    def wait_for_rounds(self, number: int) -> None:
        wait_for(lambda: len(self.log()) >= number)

    def process_of(self, name: str) -> int:
        """Return the process of the server or a site."""
        pid = self._pid(name, "pid.fl")
        assert pid is not None
        return pid

    def job_process(self, name: str) -> int:
        """Return the process of the server or a site that runs its part of the job."""
        return wait_for(lambda: self.children(self.process_of(name)))[-1]

    def failures_after_killing(self, site: str) -> list[str]:
        """Kill the processes in which a site trains now; return its failures up to now.

        A process that is ending has sent its answer already, so that its death is no failure.
        """
        for job in self.children(self.process_of(site)):
            for training in self.children(job):
                with suppress(ProcessLookupError):
                    kill(training)
        return [line["failed"][site] for line in self.log() if site in line["failed"]]

    @staticmethod
    def children(pid: int) -> list[int]:
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
        pairs = [line.split() for line in table.stdout.splitlines()]
        return [int(own) for own, parent in pairs if int(parent) == pid]

    def _below(self, pid: int) -> list[int]:
        own = self.children(pid)
        return own + [each for child in own for each in self._below(child)]

    def _pid(self, name: str, file: str) -> int | None:
        """Return the number that a kit's script has written down; None before it has."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.kits / name / file).read_text())
        return None


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def wait_for(found: Callable[[], Found]) -> Found:
    """Wait until something is found, and return it; fail after four minutes."""
    end = time.monotonic() + 240
    while not (result := found()):
        assert time.monotonic() < end, "nothing was found in four minutes"
        time.sleep(0.2)
    return result
