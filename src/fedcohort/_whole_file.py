"""Atomic writes: after a crash or a power failure a file is complete or unchanged."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedcohort.errors import WriteError


def replace_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write to a temporary sibling of ``path``, then rename it.

    Links are followed; what is not a file (a pipe, a device) is written to directly.
    """
    target = path.resolve()
    # A fixed name, so that the next write replaces what a killed process left.
    temporary = target.with_name(f".{target.name}.part")
    try:
        if target.exists() and not target.is_file():
            write(target)
            return
        write(temporary)
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written ({reason_of(error)})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{folder}: cannot be made ({reason_of(error)})") from error


def reason_of(error: OSError) -> str:
    """Return the system's reason why a file cannot be used."""
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` atomically."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    replace_whole(path, write)


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
