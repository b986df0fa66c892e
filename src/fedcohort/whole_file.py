"""Writing a file so that it is whole or not there, whenever the power fails."""

import io
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def write_arrays(path: Path, kind: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put arrays into ``path`` behind their kind and their SHA-256; only the owner may read it."""
    packed = io.BytesIO()
    # Numbered: names can be any text.
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    numbered = {str(k): array for k, array in enumerate(arrays.values())}
    np.savez(packed, names=names, **numbered)  # type: ignore[arg-type]
    head = f"{kind}\n{sha256(packed.getbuffer()).hexdigest()}\n".encode()

    def write(temporary: Path) -> None:
        temporary.touch(mode=0o600)
        with temporary.open("wb") as file:
            file.write(head)
            file.write(packed.getbuffer())

    replace_whole(path, write)


def read_arrays(path: Path, kind: str) -> dict[str, NDArray[Any]]:
    """Return what :func:`write_arrays` wrote; any other or damaged file is a ``ValueError``."""
    found, _, rest = path.read_bytes().partition(b"\n")
    digest, _, content = rest.partition(b"\n")
    if found != kind.encode():
        raise ValueError(f"it is no {kind}")
    if digest != sha256(content).hexdigest().encode():
        raise ValueError("it is damaged")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        names = json.loads(arrays["names"].tobytes())
        return {name: arrays[str(k)] for k, name in enumerate(names)}


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
