"""Stochastic gradient descent on many models at once, in place."""

from typing import final

import torch
from torch import Tensor

from fedcohort.simulation.local_training import LocalTraining
from fedcohort.simulation.parameters import Stacked


@final
class Sgd:
    """``torch.optim.SGD`` for every lane, with FedProx's pull towards the start."""

    def __init__(self, training: LocalTraining, start: Stacked) -> None:
        self._training, self._start = training, start
        self._velocity = (
            {name: torch.zeros_like(tensor) for name, tensor in start.items()}
            if training.momentum
            else {}
        )

    def reset(self) -> None:
        """Forget the momentum."""
        for velocity in self._velocity.values():
            velocity.zero_()

    def step(self, parameters: Stacked, gradients: Stacked, lr: Tensor) -> None:
        """Move every lane against its gradient; ``lr`` has shape (lanes,), 0 where a lane rests."""
        training = self._training
        for name, parameter in parameters.items():
            slope = gradients[name]
            if training.weight_decay:
                slope = slope.add(parameter, alpha=training.weight_decay)
            if training.mu:
                slope = slope.add(parameter - self._start[name], alpha=training.mu)
            if training.momentum:
                slope = self._velocity[name].mul_(training.momentum).add_(slope)
            rate = lr.view(-1, *[1] * (parameter.dim() - 1))
            parameter.addcmul_(slope, rate, value=-1)
