"""Writing a file so that it is whole or not there, whenever the power fails."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import read_array, write_array
from numpy.typing import NDArray

from fedcohort.errors import WriteError

#: Bytes that are read at a time.
BLOCK = 2**20


def replace_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place.

    Links are followed; what is not a file (a pipe, a device) is written to directly.
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
        raise WriteError(f"{path}: cannot be written ({reason_of(error)})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{folder}: cannot be made ({reason_of(error)})") from error


def reason_of(error: OSError) -> str:
    """Return why a file cannot be used, in the system's words."""
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


def write_whole(path: Path, content: bytes) -> None:
    """Put ``content`` into ``path``."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    replace_whole(path, write)


def write_arrays(path: Path, kind: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put arrays into ``path``, with their kind before and their SHA-256 behind them.

    Only the owner may read the file.
    """

    def write(temporary: Path) -> None:
        if not temporary.exists() or temporary.is_file():  # else a pipe or a device
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600)
        with temporary.open("wb") as opened:
            file = _HashedFile(opened)
            file.write(f"{kind}\n{json.dumps(list(arrays))}\n".encode())
            for array in arrays.values():
                write_array(file, np.asarray(array), allow_pickle=False)
            opened.write(file.digest())

    replace_whole(path, write)


def read_arrays(path: Path, kind: str) -> dict[str, NDArray[Any]]:
    """Return what :func:`write_arrays` wrote; any other or damaged file is a ``ValueError``."""
    with path.open("rb") as file:
        if file.readline(len(kind) + 1) != f"{kind}\n".encode():
            raise ValueError(f"it is not a {kind}")
        if not _is_whole(file):
            raise ValueError("it is damaged")
        file.seek(len(kind) + 1)
        names = json.loads(file.readline())
        return {name: read_array(file, allow_pickle=False) for name in names}


def with_prefix(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Put a prefix before the names of arrays."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names have the prefix, without it."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


class _HashedFile:
    """A file that knows the SHA-256 of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, sha256()

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        return self._file.write(content)

    def digest(self) -> bytes:
        return self._hash.digest()


def _is_whole(file: BinaryIO) -> bool:
    """Whether the last bytes of a file are the SHA-256 of all others."""
    digest = sha256()
    left = file.seek(0, os.SEEK_END) - digest.digest_size
    file.seek(0)
    while left > 0 and (block := file.read(min(left, BLOCK))):
        digest.update(block)
        left -= len(block)
    return left == 0 and file.read() == digest.digest()


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
