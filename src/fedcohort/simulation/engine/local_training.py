"""What every client does: its settings, and the batches that it trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort._arguments import brief
from fedcohort._display import record_repr
from fedcohort.errors import SimulationError
from fedcohort.simulation.engine.stacked_layers import Stacked
from fedcohort.streams import Stream, draw_subsets, stream

#: Models are float32: a larger factor would be infinite.
LARGEST = float(torch.finfo(torch.float32).max)
#: Steps, epochs or samples: no machine computes or holds more.
MOST = 10**9


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """Stochastic gradient descent on the client's own samples.

    Attributes
    ----------
    steps
        SGD steps a round, each on a fresh random batch of distinct samples (the paper); or
    epochs
        passes over the client's shuffled samples, batch by batch, instead of ``steps``.
    batch_size
        Samples in a batch; a client with fewer uses all it has.
    lr, lr_decay
        The learning rate is ``lr * lr_decay ** round``.
    momentum, weight_decay
        As in ``torch.optim.SGD``; momentum starts anew every round.
    mu
        FedProx: adds ``mu / 2`` times the squared distance to the global model to the loss.
    """

    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 50
    lr: float = 0.01
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0

    def __repr__(self) -> str:
        return record_repr(self)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise SimulationError(
                f"LocalTraining: needs either steps or epochs; got steps={self.steps} and "
                f"epochs={self.epochs}. The paper's figure 1 has steps=50."
            )
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= MOST):
                raise SimulationError(
                    f"LocalTraining: {name} must be a whole number (int) of at least 1 and at most "
                    f"10^9; got {brief(value)}."
                )
        for name, low, high in (
            ("lr", 0.0, LARGEST),
            ("lr_decay", 0.0, LARGEST),
            ("momentum", 0.0, 1.0),
            ("weight_decay", 0.0, LARGEST),
            ("mu", 0.0, LARGEST),
        ):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not low <= value < high:
                limit = "3.4e38, the largest float32" if high == LARGEST else f"{high:g}"
                raise SimulationError(
                    f"LocalTraining: {name} must be at least {low:g} and below {limit}; got "
                    f"{brief(value)}."
                )

    @property
    def is_plain(self) -> bool:
        """Whether a step is the gradient times the learning rate, and nothing else."""
        return self.momentum == 0 and self.weight_decay == 0 and self.mu == 0

    def samples_processed(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many samples clients of these sizes go through in a round, repeats counted."""
        if self.epochs is not None:
            return self.epochs * sizes
        return np.asarray((self.steps or 0) * np.minimum(self.batch_size, sizes))

    def lr_at(self, round_: int) -> float:
        """Return the learning rate of a round."""
        try:
            rate = self.lr * self.lr_decay**round_
        except OverflowError:
            return float("inf")
        return rate if rate <= LARGEST else float("inf")  # torch refuses what float32 cannot hold


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


#: The positions of every batch, padded with 0, and the batches' lengths.
Batches = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One client's training: whose samples, from which model, with whose randomness."""

    #: Row of the model that the client starts from.
    model: int
    seed: int
    client: int
    #: Positions of the client's samples in the data set.
    samples: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Every step of every lane.

    Attributes
    ----------
    positions
        Within the lane's own samples, shape (steps, lanes, batch_size); 0 where there is none.
    sample_weights
        1 / batch for the samples of a step's batch, 0 elsewhere; same shape, float32.
    active
        1 where the lane takes the step, 0 where it has finished; shape (steps, lanes), float32.
    keys
        Random words for dropout masks, shape (steps, lanes, n_keys), int32.
    """

    positions: NDArray[np.int64]
    sample_weights: NDArray[np.float32]
    active: NDArray[np.float32]
    keys: NDArray[np.int32]


def make_schedule(
    lanes: Sequence[Lane], training: LocalTraining, *, round_: int, n_keys: int
) -> Schedule:
    """Lay out the round: as many steps as the busiest lane takes."""
    # Runs with one seed share every client's randomness: a client is laid out once.
    known: dict[tuple[int, int, int], Batches] = {}
    batches = []
    for lane in lanes:
        whose = (lane.seed, lane.client, len(lane.samples))
        if whose not in known:
            known[whose] = _lane_batches(lane, training, round_)
        batches.append(known[whose])
    steps = max(len(lengths) for _, lengths in batches)
    shape = (steps, len(lanes), training.batch_size)
    positions = np.zeros(shape, dtype=np.int64)
    weights = np.zeros(shape, dtype=np.float32)
    active = np.zeros(shape[:2], dtype=np.float32)
    keys = np.zeros((*shape[:2], n_keys), dtype=np.int32)
    places = np.arange(training.batch_size)
    for k, (lane, (rows, lengths)) in enumerate(zip(lanes, batches, strict=True)):
        taken = len(lengths)
        active[:taken, k] = 1
        positions[:taken, k, : rows.shape[1]] = rows
        weights[:taken, k] = (places < lengths[:, None]) / lengths[:, None]
        if n_keys:
            rng = stream(lane.seed, round_=round_, use=Stream.DROPOUT, client=lane.client)
            # Key by key: what comes first does not depend on how many follow.
            words = rng.integers(-(2**31), 2**31, size=(n_keys, taken), dtype=np.int32)
            keys[:taken, k] = words.T
    return Schedule(positions, weights, active, keys)


def _lane_batches(lane: Lane, training: LocalTraining, round_: int) -> Batches:
    """Return the positions of every batch, padded with 0, and the batches' lengths."""
    rng = stream(lane.seed, round_=round_, use=Stream.BATCHES, client=lane.client)
    n, most = len(lane.samples), training.batch_size
    if training.steps is not None:
        batch = min(most, n)
        rows = draw_subsets(rng, n, batch, training.steps)
        return rows, np.full(training.steps, batch)
    assert training.epochs is not None  # for mypy: LocalTraining has one of the two
    per_epoch = -(-n // most)
    padded = np.zeros((training.epochs, per_epoch * most), dtype=np.int64)
    for row in padded:
        row[:n] = rng.permutation(n)
    lengths = np.minimum(n - most * np.arange(per_epoch), most)
    return padded.reshape(-1, most), np.tile(lengths, training.epochs)
