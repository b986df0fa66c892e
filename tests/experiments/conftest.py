"""Simulations made by hand compute as a run does."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread(one_thread: None) -> None: ...
