"""One process at a time in a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcohort.errors import ExperimentError

try:
    import fcntl
except ImportError:  # pragma: no cover - elsewhere there is no such lock
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, owner: str) -> Iterator[None]:
    """Hold the lock at ``path``; refuse when another process holds it.

    The system lets go of it when a process ends, however it ends.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ExperimentError(
            f"{owner}: cannot be written ({reason}). Copy it to where you may write, or choose "
            f"another folder."
        ) from error
    try:
        if fcntl is not None and not _taken(descriptor):
            pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise ExperimentError(
                f"{owner}: process {pid or '?'} is running in it. Wait for it, or choose "
                f"another folder."
            )
        with suppress(OSError):  # a full disk: the lock holds without the number
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Take the lock; somebody who only looks holds it for a moment."""
    for _ in range(5):
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock."""
    if fcntl is None or not path.exists():
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
