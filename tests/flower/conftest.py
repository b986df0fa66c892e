"""A server app's identity, a clock that needs no waiting, and no traffic to Flower's makers."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.in_process import Clock, play_the_server


@pytest.fixture(autouse=True, scope="session")
def _identity() -> None:
    play_the_server()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock.installed(monkeypatch)
