"""What client k adds to the model, and how many samples it has."""

import numpy as np
from numpy.typing import NDArray

SHAPES = ((3, 2), (4,))
DIMENSION = 10
#: The server scales larger updates down to this norm.
MAX_NORM = 100.0


def size_of(client: int) -> int:
    """Return a client's number of samples."""
    return 20 + 10 * (client % 7)


def update_of(client: int) -> NDArray[np.float32]:
    """Return what a client adds to the model, as one vector."""
    return np.random.default_rng(client).normal(size=DIMENSION).astype(np.float32)


def layers(vector: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Cut a vector into the model's arrays."""
    return [vector[:6].reshape(SHAPES[0]), vector[6:].reshape(SHAPES[1])]
