"""CountSketch: a million numbers of an update in a few dozen, linearly."""

from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.streams import Stream, stream


@final
class CountSketch:
    r"""A seeded linear map from ``dimension`` to ``size`` numbers.

    Entry :math:`j` is added to bucket :math:`b(j)` with sign :math:`s(j)`, both drawn once from
    the seed. Inner products survive: :math:`E\langle Sx, Sy\rangle = \langle x, y\rangle`, with a
    variance of at most :math:`2 \|x\|^2 \|y\|^2 / size`.

    References
    ----------
    M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams", 2004.
    """

    def __init__(self, dimension: int, size: int, *, seed: int) -> None:
        if size < 1:
            raise MemoryOfUpdatesError(
                f"CountSketch: size must be at least 1; got {size}. 64 to 128 numbers serve well."
            )
        rng = stream(seed, use=Stream.SKETCH)
        buckets = rng.integers(size, size=dimension)
        signs = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), size=dimension)
        rows = np.arange(dimension)
        self._map = csr_array((signs, (rows, buckets)), shape=(dimension, size))

    def __call__(self, updates: NDArray[np.floating]) -> NDArray[np.float32]:
        """Sketch updates of shape (n, dimension) to (n, size)."""
        return np.asarray(updates @ self._map, dtype=np.float32)
