"""Simulations made by hand compute as a run does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from small_runs import TWO_UNITS, go_on, make_folder, start, tables

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None: ...


@pytest.fixture(scope="session")
def whole(originals: Callable[[str, int | None], Path]) -> dict[str, pa.Table]:
    """Return the tables of the run of two units when nothing happens to it."""
    return tables(originals(TWO_UNITS, None))


@pytest.fixture
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return an experiment's home with a file of code beside it: the test module's ``OWN``."""
    (tmp_path / "mine.py").write_text(request.module.OWN)
    return tmp_path


@pytest.fixture
def goes_on_without(own: Path) -> Callable[[str], Path]:
    """Return what runs an experiment, in two parts, whose own file is gone by then."""

    def gone(text: str) -> Path:
        path = make_folder(own, text)
        (own / "mine.py").unlink()
        go_on(path, rounds=3)
        go_on(path)
        return path

    return gone


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``fedcohort``; whatever is left of it at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: object) -> subprocess.Popen[str]:
        processes.append(start(*arguments))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
