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
from fedcohort._updates import Array, as_numpy, double, like, moved, zero_rows
from fedcohort._whole_file import read_arrays, write_arrays
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.memory.base import Memory
from fedcohort.similarity.measures import BLOCK_ENTRIES, inner_products
from fedcohort.streams import Stream, stream

FORMAT = "fedcohort update memory 3"
NEVER = -1
#: The names of the settings in a state.
SETTINGS = {"dimension", "sketch", "seed", "shrink"}


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
        way_out = "64 to 128 numbers serve well."
        checked_whole(
            "CountSketch", "size", size, least=1, way_out=way_out, error=MemoryOfUpdatesError
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
            self._sketch = None
            kept = own
            if self.sketch is not None:
                self._sketch = CountSketch(width, self.sketch, seed=self.seed)
                kept = np.zeros(self.sketch, dtype=np.float32)
            self._arrays = {
                "updates": zero_rows(kept[None], number),
                "last_seen": np.full(number, NEVER, dtype=np.int64),
                "changed": np.zeros(number, dtype=bool),
            }
        except MemoryOfUpdatesError:
            raise
        except (MemoryError, ValueError, OverflowError, RuntimeError, TypeError) as error:
            raise self._error(
                f"{number} clients with {self.sketch or width} numbers each (of {width}) do not "
                f"fit into memory. Lower sketch, or forget clients."
            ) from error
        if self.dimension != width:
            raise self._error(
                f"zeros must have dimension numbers, {width}; got {self.dimension}. Pass "
                f"numpy.zeros(dimension)."
            )
        self._limits = {"last_seen": (NEVER, 2**63 - 1), "changed": (0, 1)}
        self._reweigh()

    @property
    def updates(self) -> NDArray[np.floating]:
        """The last updates, shape (n_clients, dimension or sketch); zero before the first."""
        return _read_only(as_numpy(self._arrays["updates"]))

    @property
    def last_seen(self) -> NDArray[np.int64]:
        """The round of each client's last update, shape (n_clients,); -1 before the first."""
        return np.array(self._arrays["last_seen"])

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which clients have sent an update, shape (n_clients,)."""
        return np.asarray(self.last_seen != NEVER)

    def shortened(self, updates: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return flat updates, one row each, in float32: whole, or the sketch."""
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = updates.astype(np.float32, copy=False)
            return vectors if self._sketch is None else self._sketch(vectors)

    def _kept(self, rows: Array) -> Array:
        return super()._kept(rows) if self._sketch is None else self.shortened(as_numpy(rows))

    def products(self) -> NDArray[np.float64]:
        """Return all inner products of what is remembered, shape (n_clients, n_clients).

        The products are cached. Only rows of clients with a new update are computed again: m of n
        in a round.
        """
        updates, products = as_numpy(self._arrays["updates"]), self._arrays.get("products")
        changed = np.flatnonzero(self._arrays["changed"])
        if products is None or 2 * len(changed) > self.n_clients:
            self._arrays["products"] = inner_products(updates)
        elif len(changed):
            products[changed] = rows = inner_products(updates, changed)
            products[:, changed] = rows.T
        self._arrays["changed"][:] = False
        return _read_only(self._arrays["products"])

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
        """Make a memory from the state that :meth:`state` returned; it uses numpy arrays."""
        try:
            head, kept = json.loads(str(state["head"])), state["updates"]
            is_float = kept.dtype in (np.float32, np.float64)
            if set(head) != SETTINGS or kept.ndim != 2 or not is_float:
                raise ValueError("its settings or updates are of another kind")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise cls._error(
                "this is not the state of a memory: its settings or its updates are missing or "
                "damaged. Pass what state() gave."
            ) from error
        zeros = None if head["sketch"] is not None else np.zeros(kept.shape[1], kept.dtype)
        memory = cls(len(kept), **head, importance=state.get("importance"), zeros=zeros)
        memory.restore(state)
        return memory

    def __repr__(self) -> str:
        kept = {} if self.sketch is None else {"sketch": self.sketch}
        n, dimension, seen = self.n_clients, self.dimension, int(self.seen.sum())
        return short_repr(self, n_clients=n, dimension=dimension, **kept, seen=seen)

    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        kept = self._arrays["updates"]
        if self._importance is not None and "sum" in self._arrays:
            change = double(updates) - double(kept[clients])
            shares = like(self._importance[clients], change)
            self._arrays["sum"] = self._arrays["sum"] + shares @ change
        kept[clients] = updates
        self._arrays["changed"][clients] = True
        self._arrays["last_seen"][clients] = round_

    def _reweigh(self) -> None:
        """Sum all updates by importance, in float64."""
        if self._importance is None or self._sketch is not None:
            return
        total = double(self.zeros)
        # In blocks: a float64 copy of all updates would need too much memory.
        at_once = max(1, BLOCK_ENTRIES // max(self.dimension, 1))
        there = np.flatnonzero(self._importance)
        for start in range(0, len(there), at_once):
            clients = there[start : start + at_once]
            kept = double(self._arrays["updates"][clients])
            total = total + like(self._importance[clients], kept) @ kept
        self._arrays["sum"] = total

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        for name, fill in (("updates", 0), ("changed", False), ("last_seen", NEVER)):
            self._arrays[name] = moved(self._arrays[name], order, fill=fill)
        if "products" in self._arrays:  # products of a new client's zero update are zero
            rows = moved(self._arrays["products"], order)
            self._arrays["products"] = moved(rows.T, order).T

    def _like_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        # The state determines whether inner products are cached. They are saved, not recomputed:
        # BLAS rounding depends on the batch's composition.
        own = {name: array for name, array in self._arrays.items() if name != "products"}
        if "products" in state:
            own["products"] = np.broadcast_to(0.0, (self.n_clients, self.n_clients))
        return own

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        self._check_whole()
        return self._arrays["updates"][clients]

    def _mean(self, importance: NDArray[np.float64]) -> Array:
        self._check_whole()
        return like(self._arrays["sum"], self.zeros)

    def _check_whole(self) -> None:
        if self._sketch is not None:
            raise self._error(
                f"needs whole updates to aggregate; it keeps sketches of {self.sketch} numbers. "
                f"Make another with sketch=None."
            )


def _whole(name: str, value: object, least: int = 1) -> int:
    return checked_whole("UpdateMemory", name, value, least=least, error=MemoryOfUpdatesError)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.setflags(write=False)
    return view
