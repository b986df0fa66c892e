"""Parameters of many models: a flat row each, or stacked by name."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

#: One tensor per parameter of the model, shape (lanes, *shape).
Stacked = dict[str, Tensor]


@final
class Layout:
    """Where each trained parameter of a model lies in a flat row."""

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.size = sum(math.prod(shape) for shape in self.shapes.values())

    def views(self, flat: Tensor) -> Stacked:
        """Return views by name into flat rows, shape (lanes, size)."""
        start, found = 0, {}
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            found[name] = flat[:, start:end].view(len(flat), *shape)
            start = end
        return found

    def stacked(self, flat: Tensor) -> Stacked:
        """Copy flat rows into one contiguous tensor per parameter.

        Contiguous, since batched products into views of a row would go lane by lane.
        """
        return {name: view.contiguous().clone() for name, view in self.views(flat).items()}

    def flat(self, parameters: Stacked) -> Tensor:
        """Put stacked parameters end to end, shape (lanes, size)."""
        rows = [parameters[name].reshape(len(parameters[name]), -1) for name in self.shapes]
        return torch.cat(rows, dim=1)
