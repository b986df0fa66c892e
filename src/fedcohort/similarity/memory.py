"""The memory of updates: what the server remembers of every client."""

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.errors import MemoryOfUpdatesError
from fedcohort.similarity.sketch import CountSketch
from fedcohort.whole_file import write_whole

FORMAT = "fedcohort update memory 1"
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
        if n_clients < 1 or dimension < 1:
            raise MemoryOfUpdatesError(
                f"UpdateMemory: needs at least one client and one parameter; got {n_clients} and "
                f"{dimension}."
            )
        self.n_clients, self.dimension = n_clients, dimension
        self.sketch, self.seed = sketch, seed
        self._sketch = None if sketch is None else CountSketch(dimension, sketch, seed=seed)
        self._updates = np.zeros((n_clients, sketch or dimension), dtype=np.float32)
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
        positions = np.asarray(clients, dtype=np.int64)
        if ((positions < 0) | (positions >= self.n_clients)).any():
            raise MemoryOfUpdatesError(
                f"UpdateMemory: clients must be 0 to {self.n_clients - 1}; got "
                f"{positions.tolist()}."
            )
        vectors = self._vectors(updates, len(positions))
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            client = positions[np.argmin(finite)]
            raise MemoryOfUpdatesError(
                f"UpdateMemory: updates must be finite float32 numbers; client {client}'s is not. "
                f"Leave the client out, and keep what it sent before."
            )
        self._updates[positions] = vectors if self._sketch is None else self._sketch(vectors)
        self._last_seen[positions] = round_

    def _vectors(self, updates: object, n: int) -> NDArray[np.float32]:
        """Flatten the updates to shape (n, dimension)."""
        if not isinstance(updates, np.ndarray):
            updates = [_flat(update) for update in updates]  # type: ignore[attr-defined]
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite: refused
            shapes = {np.shape(update) for update in updates}
            if len(updates) == n and shapes <= {(self.dimension,)}:
                return np.asarray(updates, dtype=np.float32).reshape(n, self.dimension)
        raise MemoryOfUpdatesError(
            f"UpdateMemory: needs {n} updates of {self.dimension} numbers, one per client; got "
            f"{len(updates)} of shapes {sorted(shapes)}. Flatten each client's update."
        )

    def save(self, path: Path) -> None:
        """Write the memory to a file, whole or not at all."""
        write_whole(path, _packed(self.state()))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a memory back; anything else is refused."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                state = {name: arrays[name] for name in arrays.files}
            return cls.of_state(state)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise MemoryOfUpdatesError(
                f"UpdateMemory: {path} is not a memory of updates ({error}). Start without it."
            ) from error

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as arrays."""
        head = {
            "format": FORMAT,
            "dimension": self.dimension,
            "sketch": self.sketch,
            "seed": self.seed,
        }
        return {
            "head": np.array(json.dumps(head)),
            "updates": self._updates,
            "last_seen": self._last_seen,
        }

    @classmethod
    def of_state(cls, state: dict[str, NDArray[np.generic]]) -> Self:
        """Make the memory that ``state`` came from."""
        head = json.loads(str(state["head"]))
        if head.pop("format", None) != FORMAT:
            raise ValueError("foreign format")
        memory = cls(len(state["last_seen"]), **head)
        for kept, found in ((memory._updates, "updates"), (memory._last_seen, "last_seen")):
            if state[found].shape != kept.shape or state[found].dtype != kept.dtype:
                raise ValueError(f"{found} of another shape")
            kept[...] = state[found]
        return memory


def _flat(update: object) -> NDArray[np.floating]:
    """Return an update as one vector: as it is, or its arrays end to end."""
    if isinstance(update, (list, tuple)) and any(np.ndim(part) > 0 for part in update):
        return np.concatenate([np.ravel(part) for part in update])
    return np.asarray(update)


def _packed(arrays: dict[str, NDArray[np.generic]]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
