"""Numpy arrays and torch tensors alike: the estimator lives where the updates are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A numpy array or a torch tensor.
Array = Any


def zero_rows(zeros: Array, n: int) -> Array:
    """Return n rows of zeros."""
    if isinstance(zeros, np.ndarray):
        return np.zeros((n, *zeros.shape), dtype=zeros.dtype)
    return zeros.new_zeros((n, *zeros.shape))


def like(values: Array, array: Array) -> Array:
    """Return a copy of the values in the kind, type and device of an array."""
    if isinstance(array, np.ndarray):
        return np.array(values, dtype=array.dtype)
    if isinstance(values, np.ndarray):
        return array.new_tensor(values)
    return values.to(array)


def double(array: Array) -> Array:
    """Return the array in float64."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def as_numpy(array: Array) -> NDArray[np.generic]:
    """Return a copy."""
    plain: NDArray[np.generic] = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return plain.copy()
