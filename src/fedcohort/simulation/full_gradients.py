"""The gradient of every client's whole loss, dropout off."""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from fedcohort.simulation.federated_data import FederatedData
from fedcohort.simulation.gradients import gradients_of
from fedcohort.simulation.parameters import Layout
from fedcohort.simulation.resident_data import ResidentData

#: Samples whose gradients are computed at a time.
SAMPLES_AT_ONCE = 20_000


@final
class FullGradients:
    """Computes the clients' gradients of one federation, some clients at a time."""

    def __init__(self, model: nn.Module, data: ResidentData, federation: FederatedData) -> None:
        self._gradients = gradients_of(model, data.x.device, dropout=False)
        self._layout = Layout(model)
        self._data, self._parts = data, federation.train

    def __call__(self, flat: Tensor) -> Tensor:
        """Return every client's gradient at the parameters ``flat``, shape (n_clients, size)."""
        longest = max(len(part) for part in self._parts)
        at_once = max(1, SAMPLES_AT_ONCE // longest)
        found = []
        for start in range(0, len(self._parts), at_once):
            parts = self._parts[start : start + at_once]
            positions = np.zeros((len(parts), longest), dtype=np.int64)
            weights = np.zeros((len(parts), longest), dtype=np.float32)
            for k, part in enumerate(parts):
                positions[k, : len(part)] = part
                weights[k, : len(part)] = 1 / max(len(part), 1)
            found.append(self._of(flat, positions, weights))
        return torch.cat(found)

    def _of(self, flat: Tensor, positions: np.ndarray, weights: np.ndarray) -> Tensor:
        device = self._data.x.device
        where = torch.from_numpy(positions).to(device)
        x = self._data.take(self._data.x, where)
        y = self._data.y[where]
        models = self._layout.views(flat.expand(len(positions), -1).contiguous())
        # No dropout, so that the keys are never read.
        keys = torch.zeros((len(positions), self._gradients.n_keys), dtype=torch.int32)
        shares = torch.from_numpy(weights).to(device)
        return self._layout.flat(self._gradients(models, x, y, shares, keys.to(device)))
