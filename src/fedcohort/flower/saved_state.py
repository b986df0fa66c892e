"""What a restarted server needs, in one file."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import FlowerError
from fedcohort.whole_file import read_sealed, write_sealed

FORMAT = "fedcohort flower state 4"
HEAD, UPDATE, INNER, VARIATE = "head", "update.", "inner.", "variate."


@dataclass(frozen=True, slots=True)
class Origin:
    """What a state belongs to: another one's is refused."""

    seed: int
    sketch: int | None
    strategy: str
    names: str
    estimator: str


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """What is saved.

    Attributes
    ----------
    rounds
        How many rounds were drawn.
    population
        The nodes' clients and their sizes, by :class:`Directory`.
    selections
        Who was drawn how often, by :class:`SelectionLog`.
    updates
        What is remembered of the clients' updates, by client.
    inner
        The inner strategy's own state, as arrays.
    known, variates
        The clients that the difference estimator remembers, and its arrays.
    reports
        What clients reported beside their updates, by :class:`SignalBook`.
    """

    rounds: int
    population: Mapping[str, Mapping[str, Any]]
    selections: Mapping[str, Mapping[str, float]]
    updates: Mapping[str, NDArray[np.float32]]
    inner: Mapping[str, NDArray[Any]]
    known: Sequence[str]
    variates: Mapping[str, NDArray[Any]]
    reports: Mapping[str, Mapping[str, float]]


def write_state(path: Path, state: SavedState, origin: Origin) -> None:
    """Write the file, whole or not at all."""
    head = {
        "origin": asdict(origin),
        "rounds": state.rounds,
        "population": state.population,
        "selections": state.selections,
        # Names of clients and arrays can be any text: entries of the file are numbered.
        "updates": list(state.updates),
        "inner": list(state.inner),
        "known": list(state.known),
        "variates": list(state.variates),
        "reports": state.reports,
    }
    arrays: dict[str, NDArray[Any]] = {HEAD: np.frombuffer(json.dumps(head).encode(), np.uint8)}
    arrays |= {f"{UPDATE}{k}": update for k, update in enumerate(state.updates.values())}
    arrays |= {f"{INNER}{k}": array for k, array in enumerate(state.inner.values())}
    arrays |= {f"{VARIATE}{k}": array for k, array in enumerate(state.variates.values())}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_sealed(path, FORMAT, buffer.getvalue())


def read_state(path: Path, origin: Origin) -> SavedState:
    """Read the file back; refuse another file, and one of another origin."""
    try:
        content = io.BytesIO(read_sealed(path, FORMAT))
    except (OSError, ValueError) as error:
        raise FlowerError(
            f"CohortStrategy: {path} cannot be read ({error}). Start without it."
        ) from error
    with np.load(content, allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    head = json.loads(arrays[HEAD].tobytes())
    for name, own in asdict(origin).items():
        if head["origin"][name] != own:
            raise FlowerError(
                f"CohortStrategy: {path} was written with another {name}, "
                f"{head['origin'][name]}; got {own}. Use the same one."
            )
    return SavedState(
        head["rounds"],
        head["population"],
        head["selections"],
        {key: arrays[f"{UPDATE}{k}"] for k, key in enumerate(head["updates"])},
        {name: arrays[f"{INNER}{k}"] for k, name in enumerate(head["inner"])},
        head["known"],
        {name: arrays[f"{VARIATE}{k}"] for k, name in enumerate(head["variates"])},
        head["reports"],
    )
