"""A memory of every client's last update, whole or sketched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import checked_whole
from fedcohort._display import short_repr
from fedcohort._updates import Array, as_numpy, double, like, zero_rows
from fedcohort._whole_file import read_arrays, write_arrays
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.memory.base import Memory, moved
from fedcohort.similarity.measures import inner_products
from fedcohort.streams import Stream, stream

FORMAT = "fedcohort update memory 3"
NEVER = -1
#: Numbers converted to float64 at a time, 32 MB.
NUMBERS_AT_ONCE = 2**22


@final
class CountSketch:
    r"""A seeded linear map from ``dimension`` to ``size`` numbers.

    Entry :math:`j` is added to bucket :math:`b(j)` with sign :math:`s(j)`, both drawn once from
    the seed. Inner products are kept on average: :math:`E\langle Sx, Sy\rangle = \langle x,
    y\rangle`, with a variance of at most :math:`2 \|x\|^2 \|y\|^2 / size`.

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

    def __repr__(self) -> str:
        dimension, size = self._map.shape
        return short_repr(self, dimension=int(dimension), size=int(size))

    def __call__(self, updates: NDArray[np.floating]) -> NDArray[np.float32]:
        """Sketch updates of shape (n, dimension) to (n, size)."""
        return np.asarray(updates @ self._map, dtype=np.float32)


@final
class UpdateMemory(Memory):
    """The last update of every client, whole or sketched; zero before the first.

    Designs that learn read it (``build(population, memory=memory)``). The difference estimator
    uses it too (``aggregate(model, updates, cohort, memory=memory)``), if updates are whole and
    ``importance`` is given.

    Parameters
    ----------
    n_clients, dimension
        The number of clients, and of a model's parameters.
    sketch
        None keeps updates whole, ``4 * n_clients * dimension`` bytes in float32. A number keeps a
        :class:`CountSketch` of that size for each.
    seed
        The seed of the sketch. Sketches with the same seed are comparable.
    importance
        p, the population's, shape (n_clients,). Needed to aggregate.
    zeros
        A flat model of zeros, numpy or torch. Whole updates are kept in its type, on its device.
        The default is numpy float32.
    shrink
        The factor that the estimator puts on what is remembered, from 0 to 1.

    Examples
    --------
    >>> memory = UpdateMemory(n_clients=2, dimension=1, importance=[0.5, 0.5])
    >>> memory.record([0], [[4.0]], round_=7)
    >>> memory.updates.tolist(), memory.last_seen.tolist()
    ([[4.0], [0.0]], [7, -1])
    >>> memory.aggregate(np.array([0]), np.array([1.0]), np.array([[5.0]])).tolist()
    [3.0]
    """

    def __init__(
        self,
        n_clients: int,
        dimension: int,
        *,
        sketch: int | None = None,
        seed: int = 0,
        importance: ArrayLike | None = None,
        zeros: Array | None = None,
        shrink: float = 1.0,
    ) -> None:
        number, width = _whole("n_clients", n_clients), _whole("dimension", dimension)
        self.sketch = None if sketch is None else _whole("sketch", sketch)
        self.seed = _whole("seed", seed, least=0)
        try:
            own = np.zeros(width, dtype=np.float32) if zeros is None else zeros
            super().__init__(number, own, importance=importance, shrink=shrink)
            short = None if self.sketch is None else np.zeros(self.sketch, dtype=np.float32)
            self._kept = zero_rows(own if short is None else short, number)
            self._sketch = None if short is None else CountSketch(width, len(short), seed=self.seed)
            self._last_seen = np.full(number, NEVER, dtype=np.int64)
            self._changed = np.zeros(number, dtype=bool)
        except (MemoryError, ValueError, OverflowError) as error:
            if isinstance(error, MemoryOfUpdatesError):
                raise
            raise self._error(
                f"{number} clients with {self.sketch or width} numbers each (of {width}) do not "
                f"fit into memory. Lower sketch, or forget clients."
            ) from error
        if self.dimension != width:
            raise self._error(
                f"zeros must have dimension numbers, {width}; got {self.dimension}. Pass "
                f"numpy.zeros(dimension)."
            )
        #: The importance-weighted sum of all rows in float64; unused with sketches.
        self._sum = double(self._zeros)
        self._products: NDArray[np.float64] | None = None

    @property
    def updates(self) -> NDArray[np.floating]:
        """The last updates, shape (n_clients, dimension or sketch); zero before the first."""
        view = as_numpy(self._kept).view()
        view.setflags(write=False)
        return view

    @property
    def last_seen(self) -> NDArray[np.int64]:
        """The round of each client's last update, shape (n_clients,); -1 before the first."""
        return self._last_seen.copy()

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which clients have sent an update, shape (n_clients,)."""
        return np.asarray(self._last_seen != NEVER)

    def shortened(self, updates: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return what is kept of flat updates, one row each: whole in float32, or the sketch."""
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = updates.astype(np.float32, copy=False)
            return vectors if self._sketch is None else self._sketch(vectors)

    def record_shortened(
        self, clients: NDArray[np.int64], kept: NDArray[np.float32], *, round_: int
    ) -> None:
        """Remember the result of :meth:`shortened`, one row per client."""
        positions = self._positions(clients)
        self._check_finite(positions, kept)
        self._record(positions, kept, round_)

    def products(self) -> NDArray[np.float64]:
        """Return all inner products of what is remembered, shape (n_clients, n_clients).

        The products are cached. Only rows of clients with a new update are computed again: m of n
        in a round.
        """
        changed, updates = np.flatnonzero(self._changed), as_numpy(self._kept)
        if self._products is None or 2 * len(changed) > self.n_clients:
            self._products = inner_products(updates)
        elif len(changed):
            rows = inner_products(updates, changed)
            self._products[changed] = rows
            self._products[:, changed] = rows.T
        self._changed[:] = False
        view = self._products.view()
        view.setflags(write=False)
        return view

    def save(self, path: Path) -> None:
        """Write the memory to a file, atomically."""
        write_arrays(Path(path), FORMAT, self.state())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a memory from a file; raise if the file is something else."""
        try:
            return cls.of_state(read_arrays(Path(path), FORMAT))
        except (OSError, ValueError) as error:
            reason = str(error).removeprefix(f"{cls.__name__}: ").partition(". ")[0]
            raise cls._error(
                f"{path} is not a memory of updates ({reason}). Start without it."
            ) from error

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the memory's state and settings as numpy arrays."""
        head = {
            "dimension": self.dimension,
            "sketch": self.sketch,
            "seed": self.seed,
            "shrink": self._shrink,
        }
        return {"head": np.array(json.dumps(head)), **super().state()}

    @classmethod
    def of_state(cls, state: Mapping[str, NDArray[Any]]) -> Self:
        """Make a memory from the state that :meth:`state` returned; it uses numpy arrays.

        Raises
        ------
        MemoryOfUpdatesError
            If an array is missing, has another shape, or is not finite.
        """
        try:
            head, kept = json.loads(str(state["head"])), state["updates"]
            if kept.dtype not in (np.float32, np.float64):
                raise ValueError("updates must be floats")
            zeros = None if head["sketch"] is not None else np.zeros(kept.shape[1], kept.dtype)
            memory = cls(len(kept), **head, importance=state.get("importance"), zeros=zeros)
        except MemoryOfUpdatesError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise cls._error(
                f"this is not the state of a memory ({error}). Pass what state() gave."
            ) from error
        memory.restore(state)
        return memory

    def __repr__(self) -> str:
        kept = {} if self.sketch is None else {"sketch": self.sketch}
        n, dimension, seen = self.n_clients, self.dimension, int(self.seen.sum())
        return short_repr(self, n_clients=n, dimension=dimension, **kept, seen=seen)

    def _rows(self, updates: Any, n: int) -> Array:
        """Return updates, flat or as lists of layers, as rows; sketched if this memory sketches."""
        if not isinstance(self._zeros, np.ndarray):
            return super()._rows(updates, n)
        if not (isinstance(updates, np.ndarray) and updates.dtype.kind in "iuf"):
            updates = self._flattened(updates, n)
        if updates.shape != (n, self.dimension):
            raise self._error(
                f"needs {n} updates of {self.dimension} numbers, one per client; got shape "
                f"{updates.shape}. Flatten each client's update."
            )
        with np.errstate(over="ignore"):  # an overflow becomes infinite, and is refused later
            rows = updates.astype(self._zeros.dtype, copy=False)
        return rows if self._sketch is None else self.shortened(rows)

    def _flattened(self, updates: Any, n: int) -> NDArray[np.floating]:
        try:
            flat = [_flat(update) for update in updates]
        except (TypeError, ValueError) as error:
            raise self._error(
                f"needs one update of numbers per client ({str(error)[:80]}). Flatten each "
                f"client's update."
            ) from error
        shapes = {update.shape for update in flat}
        if len(flat) != n or not shapes <= {(self.dimension,)}:
            raise self._error(
                f"needs {n} updates of {self.dimension} numbers, one per client; got {len(flat)} "
                f"of shapes {sorted(shapes)}. Flatten each client's update."
            )
        return np.array(flat).reshape(n, self.dimension)

    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        if self._importance is not None and self._sketch is None:
            change = double(updates) - double(self._kept[clients])
            self._sum = self._sum + like(self._importance[clients], change) @ change
        self._kept[clients] = updates
        self._changed[clients] = True
        self._last_seen[clients] = round_

    def _reweigh(self) -> None:
        self._sum = double(self._zeros)
        if self._importance is None or self._sketch is not None:
            return
        # In blocks: a float64 copy of all updates would need too much memory.
        at_once = max(1, NUMBERS_AT_ONCE // max(self.dimension, 1))
        there = np.flatnonzero(self._importance)
        for start in range(0, len(there), at_once):
            clients = there[start : start + at_once]
            kept = double(self._kept[clients])
            self._sum = self._sum + like(self._importance[clients], kept) @ kept

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        old, new, n = order[order >= 0], np.flatnonzero(order >= 0), len(order)
        kept, self._kept = self._kept, zero_rows(self._kept[0], n)
        self._kept[new] = kept[old]
        self._changed = moved(self._changed, order, fill=False)
        self._last_seen = moved(self._last_seen, order, fill=NEVER)
        if self._products is not None:  # products of a new client's zero update are zero
            products, self._products = self._products, np.zeros((n, n))
            self._products[np.ix_(new, new)] = products[np.ix_(old, old)]

    def _arrays(self) -> dict[str, Array]:
        arrays = {"updates": self._kept, "last_seen": self._last_seen, "changed": self._changed}
        if self._importance is not None and self._sketch is None:
            arrays["sum"] = self._sum
        # Saved, not recomputed: BLAS rounding depends on the batch's composition.
        return arrays if self._products is None else arrays | {"products": self._products}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned; if it is invalid, change nothing.

        Raises
        ------
        MemoryOfUpdatesError
            If an array is missing, has another shape, or is not finite.
        """
        before = self._products
        # The state determines whether inner products are cached.
        has_products = isinstance(state, Mapping) and "products" in state
        self._products = np.zeros((self.n_clients,) * 2) if has_products else None
        try:
            super().restore(state)
        except MemoryOfUpdatesError:
            self._products = before
            raise

    def _can_take(self, name: str, array: NDArray[Any]) -> bool:
        if name == "last_seen":
            return array.dtype.kind in "iu" and bool((array >= NEVER).all())
        if name == "changed":
            return array.dtype.kind == "b"
        return super()._can_take(name, array)

    def _take(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._kept = like(state["updates"], self._kept)
        self._last_seen = state["last_seen"].astype(np.int64)
        self._changed = state["changed"].astype(bool)
        if "sum" in self._arrays():
            self._sum = like(state["sum"], self._sum)
        if self._products is not None:
            self._products = state["products"].astype(np.float64)

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        self._check_whole()
        return self._kept[clients]

    def _mean(self) -> Array:
        self._check_whole()
        return like(self._sum, self._zeros)

    def _check_whole(self) -> None:
        if self._sketch is not None:
            raise self._error(
                f"needs whole updates to aggregate; it keeps sketches of {self.sketch} numbers. "
                f"Make another with sketch=None."
            )


def _whole(name: str, value: object, least: int = 1) -> int:
    return checked_whole("UpdateMemory", name, value, least=least, error=MemoryOfUpdatesError)


def _flat(update: object) -> NDArray[np.floating]:
    """Return an update as one vector; a list of arrays is concatenated."""
    if isinstance(update, (list, tuple)) and any(np.ndim(part) > 0 for part in update):
        update = np.concatenate([np.ravel(part) for part in update])
    array = np.asarray(update)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"got {array.dtype}")
    return array
