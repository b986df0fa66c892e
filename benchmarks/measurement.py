"""Time and peak memory of a piece of work, each in a process of its own."""

import json
import os
import platform
import resource
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

#: Single-threaded linear algebra: what is measured is the algorithm.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def in_own_process(script: str, *arguments: object) -> dict[str, float]:
    """Run ``script cell ARGUMENTS`` with one thread and read the numbers that it prints as JSON."""
    command = [sys.executable, script, "cell", *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD}, check=False
    )
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}")
    numbers: dict[str, float] = json.loads(result.stdout)
    return numbers


def peak_megabytes() -> float:
    """Return the most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
