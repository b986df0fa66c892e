"""Simulations of small models."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None: ...
