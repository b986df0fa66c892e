"""Writing a file so that it is whole or not there, whenever the power fails."""

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from fedcohort.errors import WriteError


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
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise WriteError(f"{path}: cannot be written ({reason.lower()})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """Put ``content`` into ``path``."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    replace_whole(path, write)


def write_sealed(path: Path, kind: str, content: bytes) -> None:
    """Put ``content`` into ``path`` behind its kind and its SHA-256."""
    write_whole(path, f"{kind}\n{sha256(content).hexdigest()}\n".encode() + content)


def read_sealed(path: Path, kind: str) -> bytes:
    """Return what :func:`write_sealed` wrote; any other or damaged file is a ``ValueError``."""
    found, _, rest = path.read_bytes().partition(b"\n")
    digest, _, content = rest.partition(b"\n")
    if found != kind.encode():
        raise ValueError(f"it is no {kind}")
    if digest != sha256(content).hexdigest().encode():
        raise ValueError("it is damaged")
    return content


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
