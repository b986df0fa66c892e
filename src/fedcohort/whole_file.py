"""Writing a file so that it is whole or not there, whenever the power fails."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedcohort.errors import InputError


def replace_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place.

    Links are followed; what is no file (a pipe, a device) is written to as it is.
    """
    target = path.resolve()
    # One name: what a killed process left is overwritten by the next one.
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
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path}: cannot be written ({reason}). Choose another path.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """Put ``content`` into ``path``."""

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
