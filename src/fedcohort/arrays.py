"""Numpy arrays and torch tensors alike: everything stays where the updates are."""

import sys
from collections.abc import Sequence
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
        return np.array(as_numpy(values), dtype=array.dtype)
    if isinstance(values, np.ndarray):
        return array.new_tensor(values)
    return values.to(array)


def double(array: Array) -> Array:
    """Return the array in float64."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double()


def as_numpy(array: Array) -> NDArray[Any]:
    """Return the array in numpy: itself, or a copy of a tensor."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor; torch is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def finite_rows(rows: Array) -> NDArray[np.bool_]:
    """Say of every row whether all its entries are finite."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.isfinite(rows).all(axis=1))
    return np.asarray(as_numpy(rows.isfinite().all(dim=1)), dtype=bool)


def row_norms(rows: Array) -> NDArray[np.float64]:
    """Return the Euclidean norm of every row, computed in float64."""
    if isinstance(rows, np.ndarray):
        return np.asarray(np.linalg.norm(double(rows), axis=1))
    return np.asarray(as_numpy(double(rows).norm(dim=1)))


def joined(arrays: Sequence[Array], *, stacked: bool = False) -> Array:
    """Join flat arrays end to end, or stack them as rows; in the kind of the first."""
    first = arrays[0]
    arrays = [each if same_place(first, each) else like(each, first) for each in arrays]
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays) if stacked else np.concatenate(arrays)
    torch = sys.modules["torch"]
    return torch.stack(list(arrays)) if stacked else torch.cat(list(arrays))


def same_place(first: Array, second: Array) -> bool:
    """Whether two arrays are of one kind and, as tensors, on one device."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    return bool(first.device == second.device)
