"""Checkpoints: one file with the model, the selector, and the clients' sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._whole_file import (
    make_folder,
    read_arrays,
    with_prefix,
    without_prefix,
    write_arrays,
)
from fedcohort.errors import NvflareError
from fedcohort.nvflare.answers import as_array, in_kind_of
from fedcohort.nvflare.settings import OWNER

FORMAT = "fedcohort nvflare state 1"


@final
@dataclass(frozen=True, slots=True, eq=False)
class SavedRun:
    """A run between two rounds.

    Attributes
    ----------
    model
        The model's arrays by name.
    selector
        The selector's state.
    sizes
        Samples by client, as they were claimed.
    optimizer, moments
        The server optimiser, as JSON has it, and its state; None without one.
    """

    model: Mapping[str, NDArray[Any]]
    selector: Mapping[str, NDArray[Any]]
    sizes: Mapping[str, int]
    optimizer: Mapping[str, Any] | None = None
    moments: Mapping[str, NDArray[Any]] | None = None

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all; only its owner may read it."""
        kept = {"sizes": dict(self.sizes), "optimizer": self.optimizer}
        head = {"model": list(self.model), "has_moved": self.moments is not None, **kept}
        numbered = {str(k): array for k, array in enumerate(self.model.values())}
        arrays = with_prefix("selector.", self.selector) | with_prefix("model.", numbered)
        arrays |= with_prefix("moments.", self.moments or {})
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        make_folder(path.parent)
        write_arrays(path, FORMAT, arrays)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; refuse a damaged one, and one of another kind."""
        try:
            arrays = read_arrays(path, FORMAT)
        except (OSError, ValueError) as error:
            raise NvflareError(
                f"{OWNER}: {path} cannot be read ({error}). Start without it."
            ) from error
        head, model = json.loads(arrays["head"].tobytes()), without_prefix("model.", arrays)
        named = {name: model[str(k)] for k, name in enumerate(head["model"])}
        moments = without_prefix("moments.", arrays) if head["has_moved"] else None
        selector = without_prefix("selector.", arrays)
        return cls(named, selector, head["sizes"], head["optimizer"], moments)

    def check_optimizer(self, optimizer: Mapping[str, Any] | None) -> None:
        """Refuse another server optimiser than the one that was saved."""
        if self.optimizer != optimizer:
            raise NvflareError(
                f"{OWNER}: the checkpoint was written with another server_optimizer, "
                f"{self.optimizer}; got {optimizer}. Use the same one."
            )

    def model_like(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model in the kinds and types of these parameters; refuse another model."""
        shapes = {str(name): as_array(value).shape for name, value in params.items()}
        if {name: array.shape for name, array in self.model.items()} != shapes:
            raise NvflareError(
                f"{OWNER}: the checkpoint has a model of other arrays than the persistor's. Use "
                f"another checkpoint for another model."
            )
        return {name: in_kind_of(params[name], array) for name, array in self.model.items()}
