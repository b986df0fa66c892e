"""Distances between updates: angle, L2 or L1, for all pairs at once.

Every measure takes updates of shape (n, dimension). It returns *condensed* distances: the upper
triangle row by row, shape (n (n - 1) / 2,), the format of ``scipy.cluster.hierarchy``.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import as_array
from fedcohort._updates import is_tensor, largest_entries
from fedcohort.errors import DesignError


def checked_updates(
    owner: str, updates: ArrayLike, n_clients: int | None = None
) -> NDArray[np.floating]:
    """Validate real, finite updates of shape (n_clients, dimension); float32 is not converted.

    None is any number of clients.
    """
    if isinstance(updates, np.ma.MaskedArray) and np.ma.is_masked(updates):
        raise DesignError(
            f"{owner}: updates must be known of every client; some entries are masked. Fill the "
            f"rows of clients that have sent none with zeros."
        )
    array = as_array(updates.detach().cpu() if is_tensor(updates) else updates)  # type: ignore[union-attr]
    n = "n_clients" if n_clients is None else n_clients
    shaped = array.ndim == 2 and array.shape[1] > 0 and n_clients in (None, len(array))
    if not shaped or array.dtype.kind not in "iuf":
        raise DesignError(
            f"{owner}: updates must be real numbers of shape ({n}, dimension), one row "
            f"per client; got {array.dtype} of shape {array.shape}. Flatten each client's update, "
            f"and record zeros for clients that have sent none."
        )
    values = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    # NaN fails every comparison, so one comparison finds all invalid entries.
    usable = largest_entries(values) <= LARGEST_FACTOR
    if not usable.all():
        client = int(np.argmin(usable))
        bad = int((~(largest_entries(values[client][:, None]) <= LARGEST_FACTOR)).sum())
        raise DesignError(
            f"{owner}: updates must be finite and below {LARGEST_FACTOR:g}; client {client} sent "
            f"{bad} other values. Drop the client's update, or record zeros for it."
        )
    return values


Measure = Callable[[NDArray[np.floating]], NDArray[np.float64]]
MeasureName = Literal["arccos", "l2", "l1"]

#: The largest entry of an update: float64 must hold sums of squares.
LARGEST_FACTOR = 1e150
#: Numbers that are worked on at a time: 32 MB in float64.
BLOCK_ENTRIES = 2**22
#: All pairs of more clients than this do not fit into the memory of one machine.
LARGEST_EXACT = 20_000
#: Updates converted to float64 at a time.
BLOCK_ROWS = 2**14


def arccos(updates: NDArray[np.floating]) -> NDArray[np.float64]:
    r"""Return the angles :math:`\arccos\langle x, y\rangle / (\|x\|\|y\|)`, from 0 to pi.

    Two zero updates have the angle 0: clients that were never seen belong together. A zero and a
    non-zero update have the angle pi/2. Computed with one BLAS product in float64. The cosine is
    clipped to [-1, 1], since rounding can exceed it for proportional updates.

    Examples
    --------
    >>> arccos(np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0]])).round(4).tolist()
    [0.0, 1.5708, 1.5708]
    """
    updates = checked_updates("arccos", updates)
    # Scale by the largest entry first: squares of 1e-200 would underflow.
    largest = largest_entries(updates)
    zero = largest == 0
    scale = np.where(zero, 1.0, largest)[:, None]
    return angles(_gram(len(updates), (block / scale for block in _blocks(updates))))


def angles(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the angles of vectors with these inner products, shape (n, n), which it overwrites.

    Examples
    --------
    >>> angles(np.array([[4.0, 2.0], [2.0, 1.0]])).tolist()
    [0.0]
    """
    squares = products.diagonal()
    zero = squares == 0
    norm = np.sqrt(np.where(zero, 1.0, squares))
    products /= norm[:, None]
    products /= norm[None, :]
    products[np.ix_(zero, zero)] = 1.0
    found = _condensed(products)
    np.clip(found, -1.0, 1.0, out=found)
    return np.arccos(found, out=found)


def inner_products(
    updates: NDArray[np.floating], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return the inner products of these rows (by default all) with all updates.

    Examples
    --------
    >>> inner_products(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1])).tolist()
    [[11.0, 25.0]]
    """
    if rows is None:
        return _gram(len(updates), _blocks(updates))
    products = np.zeros((len(rows), len(updates)))
    for block in _blocks(updates):
        products += block[rows] @ block.T
    return products


def l2(updates: NDArray[np.floating]) -> NDArray[np.float64]:
    r"""Return the Euclidean distances :math:`\|x - y\|_2`, from one BLAS product in float64.

    The error is about 1e-8 of the largest update. If one update is a hundred million times larger
    than the others, the distances between the others are lost.

    Examples
    --------
    >>> l2(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [5.0]
    """
    updates = checked_updates("l2", updates)
    # Centre, and scale by the largest entry: a common shift or tiny entries cost no precision.
    scale = float(largest_entries(updates).max(initial=0.0)) or 1.0
    n = max(len(updates), 1)
    centred = ((block - block.sum(axis=0) / n) / scale for block in _blocks(updates))
    squares = _gram(len(updates), centred)
    norms = squares.diagonal().copy()
    squares *= -2.0
    squares += norms[:, None]
    squares += norms[None, :]
    distances = _condensed(squares)
    np.maximum(distances, 0.0, out=distances)
    np.sqrt(distances, out=distances)
    distances *= scale
    return distances


def l1(updates: NDArray[np.floating]) -> NDArray[np.float64]:
    r"""Return the Manhattan distances :math:`\|x - y\|_1`; slower, since BLAS cannot compute them.

    Examples
    --------
    >>> l1(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [7.0]
    """
    from scipy.spatial.distance import pdist

    return pdist(checked_updates("l1", updates), "cityblock")


#: The measures by name.
MEASURES: dict[MeasureName, Measure] = {"arccos": arccos, "l2": l2, "l1": l1}


def unit_vectors(updates: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the updates scaled to length 1, shape (n, dimension or one more).

    The distance of two unit vectors grows with their angle. All zero updates get the same unit
    vector, in one more dimension: at a right angle to all others.

    Examples
    --------
    >>> unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]])).astype(float).round(2).tolist()
    [[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]
    """
    updates = checked_updates("unit_vectors", updates)
    largest = largest_entries(updates)
    zero = largest == 0
    n, dimension = updates.shape
    units = np.zeros((n, dimension + int(zero.any())), dtype=np.float32)
    own = units[:, :dimension]
    # Scale by the largest entry first: squares of 1e-200 would underflow.
    np.divide(updates, np.where(zero, 1.0, largest)[:, None], out=own, casting="same_kind")
    norms = np.sqrt(np.einsum("ij,ij->i", own, own))
    own /= np.where(zero, np.float32(1.0), norms)[:, None]
    if zero.any():
        units[zero, dimension] = 1.0
    return units


def centred_points(updates: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the centred updates in float32, scaled to a largest entry of 1.

    A common shift, or entries of 1e-200 or 1e150, then cost no precision.

    Examples
    --------
    >>> centred_points(np.array([[1e9 + 2.0, 0.0], [1e9, 0.0]])).tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """
    points = np.empty(updates.shape, dtype=np.float32)
    if not len(updates):
        return points
    mean = updates.mean(axis=0, dtype=np.float64)
    furthest = np.maximum(updates.max(axis=0) - mean, mean - updates.min(axis=0))
    unit = float(furthest.max(initial=0.0)) or 1.0
    for start in range(0, len(updates), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        points[block] = (updates[block] - mean) / unit
    return points


def _blocks(updates: NDArray[np.floating]) -> Iterator[NDArray[np.float64]]:
    """Yield the updates in float64, some columns at a time."""
    step = max(1, BLOCK_ENTRIES // max(1, len(updates)))
    for start in range(0, updates.shape[1], step):
        yield updates[:, start : start + step].astype(np.float64)


def _gram(n: int, blocks: Iterator[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return all inner products, shape (n, n)."""
    products = np.zeros((n, n))
    for block in blocks:
        # numpy detects the transposed factor and computes only half of the product (syrk).
        products += block @ block.T
    return products


def _condensed(square: NDArray[np.float64]) -> NDArray[np.float64]:
    """Copy the upper triangle, row by row."""
    from scipy.spatial.distance import squareform

    return squareform(square, force="tovector", checks=False)
