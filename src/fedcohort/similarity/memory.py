"""The memory of updates: what the server remembers of every client."""

import json
from collections.abc import Sequence
from operator import index
from pathlib import Path
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._whole_file import read_arrays, write_arrays
from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.similarity.measures import inner_products
from fedcohort.similarity.sketch import CountSketch

FORMAT = "fedcohort update memory 2"
NEVER = -1


@final
class UpdateMemory:
    """The last update of every client, whole or sketched; zero before the first.

    Parameters
    ----------
    n_clients, dimension
        How many clients there are, and how many parameters a model has.
    sketch
        None keeps updates whole, ``4 * n_clients * dimension`` bytes; a number keeps that many
        numbers of each (a :class:`CountSketch`).
    seed
        Of the sketch: memories with one seed are comparable.

    Examples
    --------
    >>> memory = UpdateMemory(n_clients=3, dimension=2)
    >>> memory.record([2], [[0.5, -1.0]], round_=7)
    >>> memory.updates.tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.5, -1.0]]
    >>> memory.last_seen.tolist()
    [-1, -1, 7]
    """

    def __init__(
        self, n_clients: int, dimension: int, sketch: int | None = None, seed: int = 0
    ) -> None:
        try:
            self.n_clients, self.dimension = index(n_clients), index(dimension)
            self.sketch, self.seed = None if sketch is None else index(sketch), index(seed)
        except TypeError as error:
            raise MemoryOfUpdatesError(f"UpdateMemory: needs whole numbers ({error}).") from error
        if self.n_clients < 1 or self.dimension < 1:
            raise MemoryOfUpdatesError(
                f"UpdateMemory: needs at least one client and one parameter; got {n_clients} and "
                f"{dimension}."
            )
        self._sketch = None if sketch is None else CountSketch(dimension, sketch, seed=seed)
        self._updates = np.zeros((n_clients, sketch or dimension), dtype=np.float32)
        self._products: NDArray[np.float64] | None = None
        self._changed = np.zeros(n_clients, dtype=bool)
        self._last_seen = np.full(n_clients, NEVER, dtype=np.int64)

    @property
    def updates(self) -> NDArray[np.float32]:
        """What is remembered, shape (n_clients, dimension or sketch); zero for the unseen."""
        view = self._updates.view()
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

    def record(
        self,
        clients: Sequence[int] | NDArray[np.integer],
        updates: ArrayLike | Sequence[Sequence[ArrayLike]],
        *,
        round_: int,
    ) -> None:
        """Remember one update per client.

        Each update is a flat vector of ``dimension`` numbers, or a list of arrays that have as
        many entries together (a model's layers). Nothing is recorded if one cannot be used.
        """
        positions = self._positions(clients)
        if round_ < 0:
            raise MemoryOfUpdatesError(f"UpdateMemory: round_ must be 0 or more; got {round_}.")
        self._put(positions, self.shortened(self._vectors(updates, len(positions))), round_)

    def record_shortened(
        self, clients: NDArray[np.int64], kept: NDArray[np.float32], *, round_: int
    ) -> None:
        """Remember what :meth:`shortened` gave, one row per client."""
        self._put(self._positions(clients), kept, round_)

    def shortened(self, updates: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return what is kept of flat updates, one row each: all of it, or its sketch."""
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = updates.astype(np.float32, copy=False)
            return vectors if self._sketch is None else self._sketch(vectors)

    def _put(self, positions: NDArray[np.int64], vectors: NDArray[np.float32], round_: int) -> None:
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            client = positions[np.argmin(finite)]
            raise MemoryOfUpdatesError(
                f"UpdateMemory: updates must be finite float32 numbers; client {client}'s is not. "
                f"Leave the client out, and keep what it sent before."
            )
        self._updates[positions] = vectors
        self._changed[positions] = True
        self._last_seen[positions] = round_

    def products(self) -> NDArray[np.float64]:
        """Return all inner products of what is remembered, shape (n_clients, n_clients).

        They are kept: only the rows of clients that sent an update since are computed again, m of
        n in a round.
        """
        changed = np.flatnonzero(self._changed)
        if self._products is None or 2 * len(changed) > self.n_clients:
            self._products = inner_products(self._updates)
        elif len(changed):
            rows = inner_products(self._updates, changed)
            self._products[changed] = rows
            self._products[:, changed] = rows.T
        self._changed[:] = False
        view = self._products.view()
        view.setflags(write=False)
        return view

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client.

        Clients that are not in ``order`` are forgotten.
        """
        is_known = order >= 0
        old, n = order[is_known], len(order)
        updates, self._updates = self._updates, np.zeros((n, self._updates.shape[1]), np.float32)
        self._updates[is_known] = updates[old]
        changed, self._changed = self._changed, np.zeros(n, dtype=bool)
        self._changed[is_known] = changed[old]
        seen, self._last_seen = self._last_seen, np.full(n, NEVER, dtype=np.int64)
        self._last_seen[is_known] = seen[old]
        if self._products is not None:  # those with a new client's update, which is zero, are 0
            products, self._products = self._products, np.zeros((n, n))
            self._products[np.ix_(is_known, is_known)] = products[np.ix_(old, old)]
        self.n_clients = n

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        products = 0 if self._products is None else self._products.nbytes
        return self._updates.nbytes + self._last_seen.nbytes + self._changed.nbytes + products

    def _positions(self, clients: object) -> NDArray[np.int64]:
        """Validate distinct positions of clients."""
        positions = np.asarray(clients)
        whole = positions.ndim == 1 and (positions.dtype.kind in "iu" or positions.size == 0)
        if (
            not whole
            or len(np.unique(positions)) < len(positions)
            or (positions.size and not 0 <= positions.min() <= positions.max() < self.n_clients)
        ):
            raise MemoryOfUpdatesError(
                f"UpdateMemory: clients must be distinct numbers from 0 to {self.n_clients - 1}; "
                f"got {positions.tolist()}."
            )
        return positions.astype(np.int64)

    def _vectors(self, updates: object, n: int) -> NDArray[np.float32]:
        """Flatten the updates to shape (n, dimension)."""
        try:
            flat = [_flat(update) for update in updates]  # type: ignore[attr-defined]
        except (TypeError, ValueError) as error:
            raise MemoryOfUpdatesError(
                f"UpdateMemory: needs one update of numbers per client ({error}). Flatten each "
                f"client's update."
            ) from error
        shapes = {update.shape for update in flat}
        if len(flat) != n or not shapes <= {(self.dimension,)}:
            raise MemoryOfUpdatesError(
                f"UpdateMemory: needs {n} updates of {self.dimension} numbers, one per client; got "
                f"{len(flat)} of shapes {sorted(shapes)}. Flatten each client's update."
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite: refused
            return np.array(flat, dtype=np.float32).reshape(n, self.dimension)

    def save(self, path: Path) -> None:
        """Write the memory to a file, whole or not at all."""
        write_arrays(Path(path), FORMAT, self.state())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a memory back; anything else is refused."""
        try:
            return cls.of_state(read_arrays(Path(path), FORMAT))
        except (OSError, ValueError) as error:
            raise MemoryOfUpdatesError(
                f"UpdateMemory: {path} is not a memory of updates ({error}). Start without it."
            ) from error

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as arrays."""
        head = {
            "dimension": self.dimension,
            "sketch": self.sketch,
            "seed": self.seed,
        }
        arrays: dict[str, NDArray[np.generic]] = {
            "head": np.array(json.dumps(head)),
            "updates": self._updates,
            "last_seen": self._last_seen,
        }
        # Not computed again: BLAS rounding depends on the batch's composition.
        if self._products is not None:
            arrays |= {"products": self._products, "changed": self._changed}
        return arrays

    @classmethod
    def of_state(cls, state: dict[str, NDArray[np.generic]]) -> Self:
        """Make the memory that ``state`` came from."""
        memory = cls(len(state["last_seen"]), **json.loads(str(state["head"])))
        memory._updates[...] = state["updates"]
        memory._last_seen[...] = state["last_seen"]
        if "products" in state:
            memory._products = state["products"].astype(np.float64)
            memory._changed[...] = state["changed"]
        return memory


def _flat(update: object) -> NDArray[np.floating]:
    """Return an update as one vector of numbers: as it is, or its arrays end to end."""
    if isinstance(update, (list, tuple)) and any(np.ndim(part) > 0 for part in update):
        update = np.concatenate([np.ravel(part) for part in update])
    array = np.asarray(update)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"got {array.dtype}")
    return array
