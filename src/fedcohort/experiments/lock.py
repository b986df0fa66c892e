"""One process at a time in a run folder."""

from __future__ import annotations

import os
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
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pid = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
                raise ExperimentError(
                    f"{owner}: process {pid or '?'} is running in it. Wait for it, or choose "
                    f"another folder."
                ) from None
        with suppress(OSError):  # a full disk: the lock holds without the number
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


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
