"""Archives: the one format of saved state, for selectors, memories, simulations and plug-ins.

An archive begins with two lines: the format, and a JSON object with the meaning of the arrays, the
version of that meaning, and the arrays' names. The arrays follow in numpy's format, then the
SHA-256 of everything before it. Nothing is pickled.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write_archive(Path(folder) / "state", "counts 1", {"a": np.arange(3)})
...     read_archive(Path(folder) / "state", "counts 1")["a"].tolist()
[0, 1, 2]
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import read_array, write_array
from numpy.typing import NDArray

from fedcohort._whole_file import reason_of, replace_whole

#: The first line of every archive.
FORMAT = b"fedcohort archive 1\n"
#: Bytes that are read at a time.
BLOCK = 2**20
#: Arrays by name.
State = Mapping[str, NDArray[Any]]


def write_archive(path: Path, kind: str, arrays: State) -> None:
    """Write arrays to ``path`` atomically; only the owner may read the file.

    ``kind`` is what they mean and the version of that meaning, such as ``"selector 4"``.
    """
    meaning, version = _parsed(kind)
    head = {"meaning": meaning, "version": version, "arrays": list(arrays)}

    def write(temporary: Path) -> None:
        if not temporary.exists() or temporary.is_file():  # else a pipe or a device
            temporary.unlink(missing_ok=True)
            temporary.touch(mode=0o600)
        with temporary.open("wb") as opened:
            file = _HashedFile(opened)
            file.write(FORMAT + json.dumps(head).encode() + b"\n")
            for array in arrays.values():
                write_array(file, np.asarray(array), allow_pickle=False)
            opened.write(file.digest())

    replace_whole(path, write)


def read_archive(path: Path, kind: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive of this kind.

    Any other file is a ``ValueError`` that gives the reason: missing, foreign, damaged, or of
    another kind or version.
    """
    try:
        with path.open("rb") as file:
            return _read(file, *_parsed(kind))
    except OSError as error:
        raise ValueError(reason_of(error)) from error


def _read(file: BinaryIO, meaning: str, version: int) -> dict[str, NDArray[Any]]:
    if file.readline(len(FORMAT)) != FORMAT:
        raise ValueError("it is not an archive of fedcohort")
    if not _is_whole(file):
        raise ValueError("it is damaged")
    file.seek(len(FORMAT))
    head = json.loads(file.readline())
    if head["meaning"] != meaning:
        raise ValueError(f"it is the state of a {head['meaning']}, not of a {meaning}")
    if head["version"] != version:
        raise ValueError(f"its version is {head['version']}; this fedcohort reads {version}")
    return {name: read_array(file, allow_pickle=False) for name in head["arrays"]}


def _parsed(kind: str) -> tuple[str, int]:
    meaning, _, version = kind.rpartition(" ")
    return meaning, int(version)


def json_array(value: object) -> NDArray[np.uint8]:
    """Return a JSON value as an array, so that it can be part of a state."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_value(array: NDArray[Any]) -> Any:
    """Return the value of a :func:`json_array`."""
    return json.loads(array.tobytes())


def with_prefix(prefix: str, arrays: State) -> dict[str, NDArray[Any]]:
    """Put a prefix before the names of arrays."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: State) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names have the prefix, without it."""
    names = [name for name in arrays if str(name).startswith(prefix)]
    return {name.removeprefix(prefix): arrays[name] for name in names}


class _HashedFile:
    """A file that computes the SHA-256 of what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, sha256()

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        return self._file.write(content)

    def digest(self) -> bytes:
        return self._hash.digest()


def _is_whole(file: BinaryIO) -> bool:
    """Return whether the last bytes of a file are the SHA-256 of all others."""
    digest = sha256()
    left = file.seek(0, os.SEEK_END) - digest.digest_size
    file.seek(0)
    while left > 0 and (block := file.read(min(left, BLOCK))):
        digest.update(block)
        left -= len(block)
    return left == 0 and file.read() == digest.digest()
