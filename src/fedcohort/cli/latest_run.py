"""Run folders that were not named: where a new one goes."""

from itertools import count
from pathlib import Path

#: Where runs go when nothing else is said.
RUNS = Path("runs")


def fresh_folder(name: str) -> Path:
    """Return ``runs/NAME``, or the first of ``runs/NAME-2``, ``-3`` ... that is not there."""
    candidates = (RUNS / (name if k == 1 else f"{name}-{k}") for k in count(1))
    return next(path for path in candidates if not path.exists())
