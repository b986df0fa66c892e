"""Every run tests the same examples: a red build is red again."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("brief", settings.get_profile("fixed"), max_examples=25)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def one_thread() -> Iterator[None]:
    """Compute on one thread: the models are small, and threads only wait."""
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
