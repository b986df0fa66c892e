"""What a restarted server needs, in one file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import FlowerError
from fedcohort.whole_file import read_sealed, write_sealed

FORMAT = "fedcohort flower state 1"
UPDATE = "update."


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """How many rounds were drawn from which seed, and the clients' last updates (sketched)."""

    rounds: int
    seed: int
    sketch: int | None
    updates: Mapping[str, NDArray[np.float32]]


def write_state(path: Path, state: SavedState) -> None:
    """Write the file, whole or not at all."""
    arrays = {f"{UPDATE}{key}": update for key, update in state.updates.items()}
    head = {
        "rounds": np.array(state.rounds),
        "seed": np.array(state.seed),
        "sketch": np.array(state.sketch or 0),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **head, **arrays)  # type: ignore[arg-type]
    write_sealed(path, FORMAT, buffer.getvalue())


def read_state(path: Path, *, seed: int, sketch: int | None) -> SavedState:
    """Read the file back; refuse another file, and one of another seed or sketch."""
    try:
        content = io.BytesIO(read_sealed(path, FORMAT))
    except (OSError, ValueError) as error:
        raise FlowerError(
            f"CohortStrategy: {path} cannot be read ({error}). Start without it."
        ) from error
    with np.load(content, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    for name, own in (("seed", seed), ("sketch", sketch or 0)):
        if int(arrays[name]) != own:
            raise FlowerError(
                f"CohortStrategy: {path} was written with another {name}, "
                f"{int(arrays[name])}; got {own}. Use the same one."
            )
    updates = {
        name.removeprefix(UPDATE): array
        for name, array in arrays.items()
        if name.startswith(UPDATE)
    }
    return SavedState(int(arrays["rounds"]), seed, sketch, updates)
