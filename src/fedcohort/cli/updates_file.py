"""Reading the clients' last updates from a .npy file."""

from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from fedcohort.cli.sizes_file import Federation
from fedcohort.errors import DesignError, InputError
from fedcohort.similarity.measures import checked_updates

#: Characters of numpy's reason that are shown.
REASON = 70


def read_updates(path: Path, federation: Federation) -> NDArray[np.floating]:
    """Read one row per client, in the order of the file of sizes; return them in that of ids.

    Nothing is unpickled. Float32 and float64 stay on disk where the file has the order of ids.
    """
    array = _opened(path)
    n_clients = federation.population.n_clients
    if array.ndim == 2 and len(array) != n_clients:
        raise InputError(
            f"{path}: needs a row for each of the {n_clients} clients of {federation.source}; got "
            f"{len(array)} rows. Save them in the order of the sizes, zeros for clients that have "
            f"sent none."
        )
    try:
        with np.errstate(over="ignore"):  # what float64 cannot hold becomes infinite: refused
            updates = checked_updates(str(path), array, n_clients)
    except DesignError as error:
        raise InputError(str(error)) from error
    in_order = np.array_equal(federation.places, np.arange(n_clients))
    return updates if in_order else updates[federation.places]


def _opened(path: Path) -> NDArray[np.generic]:
    """Map the array into memory; unlike numpy.load this knows no other format than .npy."""
    try:
        with np.errstate(over="ignore"):  # of a damaged shape
            return np.asarray(open_memmap(path, mode="r"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path}: cannot be read ({reason}). Check the path.") from error
    except (ValueError, TypeError, OverflowError, SyntaxError, TokenError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")[:REASON]
        raise InputError(
            f"{path}: must be a .npy file of numbers; it is not, or not whole ({reason}). Write "
            f"it with numpy.save, without Python objects."
        ) from error
