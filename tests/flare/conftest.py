"""These tests need FLARE, which has an environment of its own: make test-frameworks."""

import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from flare.in_process import Clock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.installed(monkeypatch)
