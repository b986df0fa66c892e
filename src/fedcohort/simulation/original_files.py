"""Reading data sets from their original files; nothing is ever unpickled."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DataError

#: An image of CIFAR-10: a label, then three planes of 32 x 32.
CIFAR_RECORD = 1 + 3 * 32 * 32


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes: images or labels of the MNIST family."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is broken ({error}). Delete it and try again.") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{path}: is no IDX file of bytes. Delete it and try again.")
    n_axes = content[3]
    start = 4 + 4 * n_axes
    if len(content) < start:
        raise DataError(f"{path}: ends in its header. Delete it and try again.")
    shape = struct.unpack(f">{n_axes}I", content[4:start])
    if len(content) - start != np.prod(shape, dtype=np.int64):
        raise DataError(
            f"{path}: must hold {' x '.join(map(str, shape))} bytes; got {len(content) - start}. "
            f"Delete it and try again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one of the official binary CIFAR-10 files: images (n, 3, 32, 32) and labels (n,)."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}). Delete it and try again.") from error
    if content.size == 0 or content.size % CIFAR_RECORD:
        raise DataError(
            f"{path}: must hold records of {CIFAR_RECORD} bytes; got {content.size} bytes. "
            f"Delete it and try again."
        )
    records = content.reshape(-1, CIFAR_RECORD)
    if records[:, 0].max() > 9:
        raise DataError(f"{path}: has labels beyond 9. Delete it and try again.")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
