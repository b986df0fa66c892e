"""Run folders that were not named: where a new one goes, and which one is the latest."""

import json
from itertools import count
from pathlib import Path

from fedcohort.errors import InputError

#: Where runs go when nothing else is said.
RUNS = Path("runs")


def fresh_folder(name: str) -> Path:
    """Return ``runs/NAME``, or the first of ``runs/NAME-2``, ``-3`` ... that is not there."""
    candidates = (RUNS / (name if k == 1 else f"{name}-{k}") for k in count(1))
    return next(path for path in candidates if not path.exists())


def latest_run() -> Path:
    """Return the run under ``./runs`` that was begun last."""
    begun = {path.parent: _created(path) for path in RUNS.glob("*/run.json")}
    if not begun:
        raise InputError(
            f"report: needs a run; there is none under ./{RUNS}. Name a run folder, or make one "
            f"with: fedcohort run FILE"
        )
    return max(begun, key=lambda path: (begun[path], path.name))


def _created(head: Path) -> str:
    try:
        content = json.loads(head.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(content.get("created", "")) if isinstance(content, dict) else ""
