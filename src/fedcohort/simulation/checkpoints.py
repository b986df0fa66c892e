"""Checkpoints: the whole state of a simulation in one file, whole or not there."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort._whole_file import read_arrays, write_arrays
from fedcohort.errors import SimulationError
from fedcohort.simulation.history import History

FORMAT = "fedcohort checkpoint 2"

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What a simulation needs to go on; random streams have addresses, so there is no generator.

    Attributes
    ----------
    fingerprint
        Of the arguments that the simulation was made with.
    rounds_done, models, histories
        Where it is.
    servers
        What each run's server keeps beside its history.
    """

    fingerprint: Mapping[str, str]
    rounds_done: int
    models: NDArray[np.float32]
    histories: Sequence[History]
    servers: Sequence[Arrays]

    def save(self, path: Path) -> None:
        """Write the file: first beside its place and onto the disk, then into its place."""
        head = {
            "fingerprint": dict(self.fingerprint),
            "rounds_done": self.rounds_done,
            "histories": [history.as_dicts() for history in self.histories],
        }
        arrays: Arrays = {"head": np.array(json.dumps(head)), "models": self.models}
        for number, server in enumerate(self.servers):
            arrays |= {f"{number}.{name}": array for name, array in server.items()}
        write_arrays(path, FORMAT, arrays)

    @classmethod
    def load(cls, path: Path, *, expected: Mapping[str, str]) -> Checkpoint:
        """Read a checkpoint of the simulation with this fingerprint; refuse every other file."""
        try:
            arrays = read_arrays(path, FORMAT)
        except (OSError, ValueError) as error:
            raise SimulationError(
                f"checkpoint {path}: cannot be read ({error}). Start anew, or use another file."
            ) from error
        head = json.loads(str(arrays.pop("head")))
        made_with, models = head["fingerprint"], arrays.pop("models")
        differ = [name for name in expected if made_with.get(name) != expected[name]]
        if differ:
            raise SimulationError(
                f"checkpoint {path}: was written by another simulation; {', '.join(differ)} "
                f"differ. Use the same arguments, or start anew."
            )
        histories = [History.of_dicts(rows) for rows in head["histories"]]
        servers: list[Arrays] = [{} for _ in histories]
        for name, array in arrays.items():
            number, _, rest = name.partition(".")
            servers[int(number)][rest] = array
        return cls(made_with, int(head["rounds_done"]), models, histories, servers)


def fingerprint(values: Mapping[str, object]) -> dict[str, str]:
    """Hash what a simulation was made with, name by name; arrays by their bytes."""
    return {name: _digest(value) for name, value in values.items()}


def _digest(value: object) -> str:
    digest = hashlib.sha256()
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape} ".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            with np.printoptions(threshold=sys.maxsize):
                digest.update(f"{_written(part)} ".encode())
    return digest.hexdigest()[:16]


def _written(part: object) -> str:
    """Write all fields of dataclasses, which may show themselves shorter."""
    if isinstance(part, tuple):
        return f"({' '.join(map(_written, part))})"
    if not is_dataclass(part):
        return repr(part)
    named = [(each.name, getattr(part, each.name)) for each in fields(part) if each.repr]
    return f"{type(part).__qualname__}({named!r})"
