"""These tests need FLARE, which has an environment of its own: make test-frameworks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

#: Test modules say that they are skipped, and why; what they share cannot be imported without it.
collect_ignore = [] if find_spec("nvflare") else ["in_process.py"]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    from flare.in_process import Clock

    return Clock.installed(monkeypatch)
