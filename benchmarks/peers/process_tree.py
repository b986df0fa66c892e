"""Memory and CPU time of a process and all that it started, as Linux tells them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PROC = Path("/proc")


def family(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


@dataclass
class Usage:
    """What a family used so far: its largest memory, and its CPU time over time."""

    peak_bytes: int = 0
    times: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    _cpu_of: dict[int, float] = field(default_factory=dict)

    def sample(self, root: int, now: float) -> None:
        """Look at every process of the family; the ended ones keep the time that they took."""
        members = family(root)
        self.peak_bytes = max(self.peak_bytes, sum(map(_own_bytes, members)))
        for pid in members:
            fields = _stat(pid)
            if fields:
                ticks = int(fields[11]) + int(fields[12])
                self._cpu_of[pid] = ticks / os.sysconf("SC_CLK_TCK")
        self.times.append(now)
        self.cpu_seconds.append(sum(self._cpu_of.values()))

    def cores(self, start: float, end: float) -> float:
        """Return how many cores were busy on average between two times."""
        used = np.interp([start, end], self.times, self.cpu_seconds)
        return float((used[1] - used[0]) / (end - start))


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name: state, parent, ..."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return []


def _own_bytes(pid: int) -> int:
    """Return the memory that a process holds; what several share counts once in all."""
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0
