"""Locks: one process at a time uses a folder or a file."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcohort._whole_file import reason_of
from fedcohort.errors import ExperimentError, FedcohortError

try:
    import fcntl
except ImportError:  # pragma: no cover - elsewhere there is no such lock
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(
    path: Path, owner: str, *, error: type[FedcohortError] = ExperimentError, keep: bool = True
) -> Iterator[int]:
    """Hold the lock at ``path``; refuse if another process holds it. Yield its file descriptor.

    The system releases the lock when the process and all that inherited the descriptor have
    ended, even if they are killed. Without ``keep``, the lock's file is removed afterwards.
    """
    descriptor = _opened(path, owner, error)
    try:
        while fcntl is not None:
            if not _taken(descriptor):
                pid, what = _holder(descriptor), "folder" if keep else "file"
                doing = "is running in" if keep else "is using"
                raise error(
                    f"{owner}: process {pid or '?'} {doing} it. Wait for it, or choose another "
                    f"{what}."
                )
            if keep or _is_at(path, descriptor):
                break
            os.close(descriptor)  # the one who had the lock has removed its file
            descriptor = _opened(path, owner, error)
        with suppress(OSError):  # a full disk: the lock holds without the number
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        try:
            yield descriptor
        finally:
            if not keep:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _opened(path: Path, owner: str, error: type[FedcohortError]) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as cause:
        raise error(
            f"{owner}: cannot be written ({reason_of(cause)}). Copy it to where you may write, or "
            f"choose another folder."
        ) from cause


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether the open file is still the one at ``path``."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _taken(descriptor: int) -> bool:
    """Take the lock. :func:`is_locked` in another process holds it for a moment.

    If the holder is dead, wait longer: its workers are about to end.
    """
    begin = time.monotonic()
    while True:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        seconds = 0.1 if _is_alive(_holder(descriptor)) else 10
        if time.monotonic() - begin > seconds:
            return False
        time.sleep(0.02)


def _holder(descriptor: int) -> str:
    """Return the number of the process that took the lock last."""
    return os.pread(descriptor, 20, 0).decode(errors="replace").strip()


def _is_alive(pid: str) -> bool:
    """Return whether a process runs; True if unknown."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, OSError):
        return True
    return True


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
