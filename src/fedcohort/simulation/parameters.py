"""Parameters as rows of one flat matrix: one row per lane, views by name."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn


@final
class Layout:
    """Where each parameter of a model lies in a flat row."""

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.size = sum(math.prod(shape) for shape in self.shapes.values())

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views by name of shape (\\*leading, \\*parameter shape) into (\\*leading, size)."""
        leading, start, found = flat.shape[:-1], 0, {}
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            found[name] = flat[..., start:end].unflatten(-1, shape) if shape else flat[..., start]
            start = end
        assert all(view.shape[: len(leading)] == leading for view in found.values())
        return found

    def flat(self, parameters: dict[str, Tensor]) -> Tensor:
        """Put parameters of shape (lanes, \\*shape) end to end, shape (lanes, size)."""
        lanes = next(iter(parameters.values())).shape[0]
        return torch.cat([parameters[name].reshape(lanes, -1) for name in self.shapes], dim=1)
