"""The model, and plain training of it, for the peers that use PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

from peers.workload import (
    BATCH,
    CLASSES,
    EVALUATION_BATCH,
    HIDDEN,
    INPUTS,
    LR,
    STEPS,
    Parameters,
    as_floats,
)

Samples = tuple[Tensor, Tensor]


def new_model(start: Parameters) -> nn.Sequential:
    """Return the model with these parameters."""
    return with_parameters(
        nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)), start
    )


@torch.no_grad()
def with_parameters(model: nn.Sequential, start: Parameters) -> nn.Sequential:
    """Give the model these parameters."""
    for parameter, array in zip(model.parameters(), start, strict=True):
        parameter.copy_(torch.from_numpy(array))
    return model


def parameters_of(model: nn.Module) -> Parameters:
    """Return the model's parameters as arrays."""
    return tuple(parameter.detach().numpy().copy() for parameter in model.parameters())


def samples(x: NDArray[np.uint8], y: NDArray[np.int64]) -> Samples:
    """Return pixels as floats, and labels, as a plain program holds them."""
    return torch.from_numpy(as_floats(x)), torch.from_numpy(y.reshape(-1))


def train_locally(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Take the steps, each on a fresh batch of distinct samples; return how many."""
    optimizer, taken = torch.optim.SGD(model.parameters(), lr=LR), 0
    for _ in range(STEPS):
        rows = torch.randperm(len(x))[:BATCH]
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        taken += 1
    return taken


@torch.no_grad()
def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Evaluate the loss on all samples, batch by batch."""
    pairs = zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True)
    losses = [cross_entropy(model(rows), labels, reduction="sum") for rows, labels in pairs]
    return float(torch.stack(losses).sum()) / len(y)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Evaluate the share of samples whose class is found, batch by batch."""
    pairs = zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True)
    hits = [(model(rows).argmax(dim=1) == labels).sum() for rows, labels in pairs]
    return float(torch.stack(hits).sum()) / len(y)


class LocalStepCounter:
    """Counts the steps of every optimizer with the clients' learning rate."""

    def __init__(self) -> None:
        self.taken = 0
        register_optimizer_step_post_hook(self._count)

    def _count(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.taken += optimizer.param_groups[0]["lr"] == LR
