"""Time and peak memory of a piece of work, each in a process of its own."""

import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Single-threaded linear algebra: what is measured is the algorithm.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def in_own_process(script: str, *arguments: object) -> dict[str, Any]:
    """Run ``script cell ARGUMENTS`` with one thread and read the numbers that it prints as JSON."""
    command = [sys.executable, script, "cell", *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD}, check=False
    )
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}")
    numbers: dict[str, Any] = json.loads(result.stdout)
    return numbers


def cell_or(main: Callable[[], None], cells: Mapping[str, Callable[..., object]]) -> None:
    """Do what the command line says: ``cell NAME ARGUMENTS`` prints one cell as JSON, or all."""
    if sys.argv[1:2] == ["cell"]:
        name, *arguments = sys.argv[2:]
        values = (int(each) if each.isdigit() else each for each in arguments)
        print(json.dumps(cells[name](*values)))
    else:
        main()


def peak_megabytes() -> float:
    """Return the most memory that this process has held so far, or since a new peak began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start_new_peak() -> float:
    """Return the peak so far, and begin anew at what the process holds now (Linux)."""
    peak = peak_megabytes()
    Path("/proc/self/clear_refs").write_text("5")
    return peak


def machine() -> dict[str, str | int]:
    """Say where and when this was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
    }
