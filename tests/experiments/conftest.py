"""Simulations made by hand compute as a run does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from small_runs import TWO_UNITS, tables

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None: ...


@pytest.fixture(scope="session")
def whole(originals: Callable[[str, int | None], Path]) -> dict[str, pa.Table]:
    """Return the tables of the run of two units when nothing happens to it."""
    return tables(originals(TWO_UNITS, None))
