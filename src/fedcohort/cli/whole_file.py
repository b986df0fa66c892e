"""Writing a file so that it is whole or not there."""

import os
from collections.abc import Callable
from pathlib import Path

from fedcohort.errors import InputError


def replace_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path}: cannot be written ({reason}). Choose another path.") from error
    finally:
        temporary.unlink(missing_ok=True)
