"""A data set on the device: bytes, converted batch by batch."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from fedcohort.simulation.datasets import Dataset


@final
class ResidentData:
    """Inputs and labels as tensors; inputs become float32 when they are taken."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.x = torch.from_numpy(dataset.x.copy()).to(device)
        self.y = torch.from_numpy(dataset.y.copy()).to(device)
        self.test_x = torch.from_numpy(dataset.test_x.copy()).to(device)
        self.test_y = torch.from_numpy(dataset.test_y.copy()).to(device)
        self._scale, self._shift = dataset.scale, dataset.shift

    def take(self, x: Tensor, positions: Tensor, into: Tensor | None = None) -> Tensor:
        """Return the samples at ``positions`` (any shape), ready for a model.

        ``into`` is a float32 buffer of as many rows or more: fresh memory costs more than the work.
        """
        found = x.index_select(0, positions.reshape(-1))
        rows = found.float() if into is None else into[: len(found)].copy_(found)
        if self._scale != 1.0:
            rows *= self._scale
        if self._shift != 0.0:
            rows += self._shift
        return rows.view(*positions.shape, *x.shape[1:])
