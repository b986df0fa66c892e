"""Every run tests the same examples: a red build is red again."""

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from small_runs import SMALL, small_run

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


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int | None], Path]:
    """Return what runs an experiment, once however often it is asked for; tests get copies."""

    @cache
    def original(text: str, rounds: int | None) -> Path:
        return small_run(tmp_path_factory.mktemp("original"), text, rounds=rounds)

    return original


@pytest.fixture
def ran(originals: Callable[[str, int | None], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return what puts a run, whole or its first rounds, into a folder that the test may change."""

    def copied(text: str = SMALL, *, rounds: int | None = None, home: Path = tmp_path) -> Path:
        shutil.copytree(originals(text, rounds).parent, home, dirs_exist_ok=True)
        return home / "run"

    return copied
