"""Stochastic gradient descent on the rows of a matrix, in place."""

from typing import final

from torch import Tensor

from fedcohort.simulation.local_training import LocalTraining


@final
class Sgd:
    """``torch.optim.SGD`` for every row at once, with FedProx's pull towards the start."""

    def __init__(self, training: LocalTraining, start: Tensor) -> None:
        self._training, self._start = training, start
        self._velocity = start * 0 if training.momentum else None

    def reset(self) -> None:
        """Forget the momentum."""
        if self._velocity is not None:
            self._velocity.zero_()

    def step(self, flat: Tensor, gradient: Tensor, lr: Tensor) -> None:
        """Move every row against its gradient; ``lr`` has shape (lanes,), 0 where a lane rests."""
        training = self._training
        if training.weight_decay:
            gradient = gradient.add(flat, alpha=training.weight_decay)
        if training.mu:
            gradient = gradient.add(flat, alpha=training.mu).sub_(self._start, alpha=training.mu)
        if self._velocity is not None:
            self._velocity.mul_(training.momentum).add_(gradient)
            gradient = self._velocity
        flat.addcmul_(gradient, lr.unsqueeze(1), value=-1)
