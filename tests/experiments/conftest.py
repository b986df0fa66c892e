"""Simulations made by hand compute as a run does."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Compute on one thread: the models are small, and threads only wait."""
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
