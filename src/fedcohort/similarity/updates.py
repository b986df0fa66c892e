"""The updates that similarity is measured on, checked at the door."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import DesignError

#: Larger entries are refused: their squares would leave the range of floats.
LARGEST_ENTRY = 1e150


def checked_updates(owner: str, updates: ArrayLike, n_clients: int) -> NDArray[np.floating]:
    """Let real, finite updates of shape (n_clients, dimension) through, float32 as it is."""
    try:
        array = np.asarray(updates)
    except ValueError:  # rows of different lengths
        array = np.empty(0, dtype=object)
    shaped = array.ndim == 2 and len(array) == n_clients and array.shape[1] > 0
    if not shaped or array.dtype.kind not in "iuf":
        raise DesignError(
            f"{owner}: updates must be real numbers of shape ({n_clients}, dimension), one row "
            f"per client; got {array.dtype} of shape {array.shape}. Flatten each client's update, "
            f"and record zeros for clients that have sent none."
        )
    values = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    # NaN fails every comparison, so one comparison finds all that cannot be used.
    usable = largest_entries(values) <= LARGEST_ENTRY
    if not usable.all():
        client = int(np.argmin(usable))
        bad = int((~(largest_entries(values[client][:, None]) <= LARGEST_ENTRY)).sum())
        raise DesignError(
            f"{owner}: updates must be finite and below {LARGEST_ENTRY:g}; client {client} sent "
            f"{bad} other values. Drop the client's update, or record zeros for it."
        )
    return values


def largest_entries(updates: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the largest absolute entry of every update, shape (n_clients,), without a copy."""
    largest = np.maximum(updates.max(axis=1), -updates.min(axis=1))
    return np.asarray(largest, dtype=np.float64)
