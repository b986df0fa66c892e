"""A memory of every client's last update, whole or sketched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from fedcohort._archive import json_array, json_value, read_archive, without_prefix, write_archive
from fedcohort._arguments import as_array, checked_path, checked_whole
from fedcohort._display import short_repr
from fedcohort._updates import Array, as_numpy, reordered
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.memory.base import NEVER, Memory
from fedcohort.similarity.measures import inner_products
from fedcohort.streams import Stream, stream

#: What a memory's archive means, and its version.
KIND = "memory of updates 5"
#: The names of the settings in a state.
SETTINGS = {"dimension", "sketch", "seed"}


class Pending(NamedTuple):
    """Updates of a round that a memory does not show yet: positions, and what is kept of each."""

    clients: NDArray[np.int64]
    kept: NDArray[np.float32]
    round_: int


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
        way_out, error = "64 to 128 numbers serve well.", MemoryOfUpdatesError
        size = checked_whole("CountSketch", "size", size, least=1, way_out=way_out, error=error)
        dimension = checked_whole("CountSketch", "dimension", dimension, least=1, error=error)
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
        #: Updates that designs must not know yet, by round.
        self._pending: list[Pending] = []

    @classmethod
    def of(cls, updates: ArrayLike) -> Self:
        """Return a memory in which every client has sent one update; shape (n_clients, d).

        Floating-point updates keep their type, integers become floats. The first record copies
        them.
        """
        rows = as_array(updates)
        if rows.ndim != 2 or rows.dtype.kind not in "iuf":
            raise cls._error(
                f"updates must be numbers of shape (n_clients, dimension); got {rows.dtype} of "
                f"shape {rows.shape}. Flatten each client's update."
            )
        memory = cls(*rows.shape)
        memory._arrays["updates"] = _read_only(rows if rows.dtype.kind == "f" else rows * 1.0)
        memory._arrays["last_seen"][:] = 0
        return memory

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return super().nbytes + sum(each.kept.nbytes for each in self._pending)

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

    def shortened(self, rows: Array) -> NDArray[np.float32]:
        """Return flat updates, one row each, in float32: whole, or the sketch."""
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = as_numpy(rows).astype(np.float32, copy=False)
            return vectors if self._sketch is None else self._sketch(vectors)

    def record_kept(self, clients: NDArray[np.int64], kept: Array, *, round_: int) -> None:
        """Remember what :meth:`shortened` returned for valid updates, one row per client."""
        if not self._arrays["updates"].flags.writeable:  # the caller's, given to ``of``
            self._arrays["updates"] = self._arrays["updates"].copy()
        self._arrays["updates"][clients] = kept
        self._arrays["changed"][clients] = True
        self._arrays["last_seen"][clients] = round_

    def record_later(self, clients: NDArray[np.int64], kept: Array, *, round_: int) -> None:
        """Keep updates pending, as for :meth:`record_kept`, until :meth:`publish`."""
        self._pending.append(Pending(clients, kept, round_))

    def publish(self, before_round: int, prepared: Self | None = None) -> Self:
        """Return the memory with the pending updates of earlier rounds.

        ``prepared`` is what :meth:`ahead` made of them; by default this memory records them.
        """
        memory = prepared or self
        due = [each for each in self._pending if each.round_ < before_round]
        memory._pending = [each for each in self._pending if each.round_ >= before_round]
        for each in due if prepared is None else ():
            memory.record_kept(each.clients, each.kept, round_=each.round_)
        return memory

    def ahead(self, before_round: int) -> Callable[[], Self]:
        """Return a function, safe in a thread, that publishes into a copy of this memory."""
        due = [each for each in self._pending if each.round_ < before_round]

        def published() -> Self:
            if not due:
                return self
            memory = copy(self)
            memory._arrays = {name: array.copy() for name, array in self._arrays.items()}
            memory._pending = due
            return memory.publish(before_round)

        return published

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

    def save(self, path: str | Path) -> None:
        """Write the memory to a file, atomically."""
        file = checked_path(type(self).__name__, "path", path, error=MemoryOfUpdatesError)
        write_archive(file, KIND, self.state())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a memory from a file; raise if the file is something else."""
        file = checked_path(cls.__name__, "path", path, error=MemoryOfUpdatesError)
        try:
            return cls.of_state(read_archive(file, KIND))
        except ValueError as error:
            reason = str(error).removeprefix(f"{cls.__name__}: ").partition(". ")[0]
            raise cls._error(
                f"{file} is not a memory of updates ({reason}). Start without it."
            ) from error

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the memory's state and settings as numpy arrays."""
        head = {
            "dimension": self.dimension,
            "sketch": self.sketch,
            "seed": self.seed,
        }
        found = {"head": json_array(head), **super().state()}
        if self._pending:
            clients, rows, rounds = zip(*self._pending, strict=True)
            found["pending.clients"], found["pending.rows"] = map(np.concatenate, (clients, rows))
            found["pending.rounds"] = np.repeat(rounds, list(map(len, clients)))
        return found

    @classmethod
    def of_state(cls, state: Mapping[str, NDArray[Any]]) -> Self:
        """Make a memory from the state that :meth:`state` returned; it uses numpy arrays."""
        try:
            head, kept = json_value(state["head"]), state["updates"]
            if set(head) != SETTINGS or kept.ndim != 2 or kept.dtype.kind != "f":
                raise ValueError("its settings or updates are of another kind")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise cls._error(
                "this is not the state of a memory: its settings or its updates are missing or "
                "damaged. Pass what state() gave."
            ) from error
        memory = cls(len(kept), **head)
        memory._arrays["updates"] = memory._arrays["updates"].astype(kept.dtype, copy=False)
        memory.restore(state)
        return memory

    def __repr__(self) -> str:
        kept = {} if self.sketch is None else {"sketch": self.sketch}
        n, dimension, seen = self.n_clients, self.dimension, int(self.seen.sum())
        return short_repr(self, n_clients=n, dimension=dimension, **kept, seen=seen)

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        for name, fill in (("updates", 0), ("changed", False), ("last_seen", NEVER)):
            self._arrays[name] = reordered(self._arrays[name], order, fill=fill)
        if "products" in self._arrays:  # products of a new client's zero update are zero
            rows = reordered(self._arrays["products"], order)
            self._arrays["products"] = reordered(rows.T, order).T
        place = np.full(self.n_clients, NEVER)  # each client's new position
        place[order[order >= 0]] = np.flatnonzero(order >= 0)
        self._pending = [
            each._replace(clients=place[each.clients][stay], kept=each.kept[stay])
            for each in self._pending
            for stay in [place[each.clients] >= 0]
        ]

    def _like_state(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        # The state determines whether inner products are cached. Save them, do not recompute:
        # BLAS rounding depends on the batch's composition.
        # A list: a design that is built in the background may add the products meanwhile.
        own = {name: array for name, array in list(self._arrays.items()) if name != "products"}
        if "products" in state:
            own["products"] = np.broadcast_to(0.0, (self.n_clients, self.n_clients))
        if without_prefix("pending.", state):
            n = np.size(state.get("pending.rounds", ()))
            width = self._arrays["updates"].shape[1]
            own["pending.clients"] = own["pending.rounds"] = np.zeros(n, dtype=np.int64)
            own["pending.rows"] = np.broadcast_to(np.float32(0), (n, width))
            self._limits["pending.clients"] = (0, self.n_clients - 1)
        return own

    def _adopt(self, arrays: dict[str, Array]) -> None:
        pending = without_prefix("pending.", arrays)
        rounds = pending.get("rounds", np.empty(0))
        self._pending = [
            Pending(pending["clients"][rounds == each], pending["rows"][rounds == each], each)
            for each in np.unique(rounds).tolist()
        ]
        super()._adopt({k: v for k, v in arrays.items() if not k.startswith("pending.")})


def _whole(name: str, value: object, least: int = 1) -> int:
    return checked_whole("UpdateMemory", name, value, least=least, error=MemoryOfUpdatesError)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.setflags(write=False)
    return view
