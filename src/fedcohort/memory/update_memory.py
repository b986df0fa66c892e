"""A memory of every client's last update, whole or sketched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import checked_whole
from fedcohort._display import short_repr
from fedcohort._updates import Array, as_numpy, moved
from fedcohort._whole_file import read_arrays, write_arrays
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.memory.base import Memory
from fedcohort.similarity.measures import inner_products
from fedcohort.streams import Stream, stream

FORMAT = "fedcohort update memory 4"
NEVER = -1
#: The names of the settings in a state.
SETTINGS = {"dimension", "sketch", "seed"}


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

    Designs that learn read it (``build(population, memory=memory)``).

    Parameters
    ----------
    n_clients, dimension
        The number of clients, and of a model's parameters.
    sketch
        None keeps updates whole, ``4 * n_clients * dimension`` bytes in float32. A number keeps a
        :class:`CountSketch` of that size for each.
    seed
        The seed of the sketch. Sketches with the same seed are comparable.

    Examples
    --------
    >>> memory = UpdateMemory(n_clients=2, dimension=1)
    >>> memory.record([0], [[4.0]], round_=7)
    >>> memory.updates.tolist(), memory.last_seen.tolist()
    ([[4.0], [0.0]], [7, -1])
    """

    def __init__(
        self,
        n_clients: int,
        dimension: int,
        *,
        sketch: int | None = None,
        seed: int = 0,
    ) -> None:
        number, width = _whole("n_clients", n_clients), _whole("dimension", dimension)
        self.sketch = None if sketch is None else _whole("sketch", sketch)
        self.seed = _whole("seed", seed, least=0)
        try:
            super().__init__(number, np.zeros(width, dtype=np.float32))
            self._sketch = None
            if self.sketch is not None:
                self._sketch = CountSketch(width, self.sketch, seed=self.seed)
            self._arrays = {
                "updates": np.zeros((number, self.sketch or width), dtype=np.float32),
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
        self._limits = {"last_seen": (NEVER, 2**63 - 1), "changed": (0, 1)}

    @property
    def updates(self) -> NDArray[np.floating]:
        """The last updates, shape (n_clients, dimension or sketch); zero before the first."""
        return _read_only(self._arrays["updates"])

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
        return self.shortened(as_numpy(rows))

    def products(self) -> NDArray[np.float64]:
        """Return all inner products of what is remembered, shape (n_clients, n_clients).

        The products are cached. Only rows of clients with a new update are computed again: m of n
        in a round.
        """
        updates, products = self._arrays["updates"], self._arrays.get("products")
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
        }
        return {"head": np.array(json.dumps(head)), **super().state()}

    @classmethod
    def of_state(cls, state: Mapping[str, NDArray[Any]]) -> Self:
        """Make a memory from the state that :meth:`state` returned; it uses numpy arrays."""
        try:
            head, kept = json.loads(str(state["head"])), state["updates"]
            if set(head) != SETTINGS or kept.ndim != 2 or kept.dtype.kind != "f":
                raise ValueError("its settings or updates are of another kind")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise cls._error(
                "this is not the state of a memory: its settings or its updates are missing or "
                "damaged. Pass what state() gave."
            ) from error
        memory = cls(len(kept), **head)
        memory.restore(state)
        return memory

    def __repr__(self) -> str:
        kept = {} if self.sketch is None else {"sketch": self.sketch}
        n, dimension, seen = self.n_clients, self.dimension, int(self.seen.sum())
        return short_repr(self, n_clients=n, dimension=dimension, **kept, seen=seen)

    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        self._arrays["updates"][clients] = updates
        self._arrays["changed"][clients] = True
        self._arrays["last_seen"][clients] = round_

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


def _whole(name: str, value: object, least: int = 1) -> int:
    return checked_whole("UpdateMemory", name, value, least=least, error=MemoryOfUpdatesError)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.setflags(write=False)
    return view
