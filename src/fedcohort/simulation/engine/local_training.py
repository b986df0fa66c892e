"""Local training: what every client does, and how many clients do it at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort._arguments import MOST, brief, checked_numbers, checked_whole
from fedcohort._display import record_repr
from fedcohort._fields import Float, Record, choice, number, whole
from fedcohort.errors import SimulationError
from fedcohort.simulation.engine.gradients import (
    Adam,
    LocalOptimizer,
    ParameterLayout,
    ResidentData,
    Sgd,
    StackedLinearGradients,
    gradients_of,
    rows_at,
)
from fedcohort.simulation.engine.models import Stacked
from fedcohort.streams import Stream, draw_subsets, stream

#: Models are float32: a larger factor would be infinite.
LARGEST_FLOAT32 = float(torch.finfo(torch.float32).max)
SMALLEST_FLOAT32 = float(torch.finfo(torch.float32).tiny)
NEVER = "From 1 on, no step is ever forgotten."


def rate(default: Float) -> Float:
    """Declare a factor that float32 can hold; it can be None if this is its default."""
    return number(default, least=0, below=LARGEST_FLOAT32, way_out="Models are float32.")


@dataclass(frozen=True, slots=True)
class LocalTraining(Record):
    """Descent along stochastic gradients on the client's own samples.

    Attributes
    ----------
    steps
        SGD steps in a round, each on a fresh random batch of distinct samples (the paper).
    epochs
        Instead of ``steps``: passes over the client's shuffled samples, batch by batch.
    batch_size
        Samples in a batch; a client with fewer samples uses all of them.
    lr, lr_decay
        The learning rate is ``lr * lr_decay ** round``.
    lr_root
        Instead or besides: divide the learning rate by the square root of ``1 + round / lr_root``,
        as FedAWE does with 10; None: do not.
    optimizer
        ``"sgd"`` or ``"adam"``.
    momentum
        As in ``torch.optim.SGD``; momentum restarts every round. Only with ``sgd``.
    weight_decay
        As in ``torch.optim.SGD`` and ``torch.optim.Adam``: adds to the gradient.
    beta1, beta2, eps
        As in ``torch.optim.Adam``, only with ``adam``. Both moments are 0 at the start of every
        round: clients keep nothing between rounds, and send nothing but their update.
    mu
        FedProx: adds ``mu / 2`` times the squared distance to the global model to the loss.
    """

    _error = SimulationError

    steps: int | None = whole(None, least=1, most=MOST)
    epochs: int | None = whole(None, least=1, most=MOST)
    batch_size: int = whole(50, least=1, most=MOST)
    lr: float = rate(0.01)
    lr_decay: float = rate(1.0)
    lr_root: float | None = number(None, least=1e-9, most=MOST)
    optimizer: str = choice("sgd", ("sgd", "adam"))
    momentum: float = number(0.0, least=0, below=1, way_out=NEVER)
    weight_decay: float = rate(0.0)
    mu: float = rate(0.0)
    beta1: float = number(0.9, least=0, below=1, way_out=NEVER)
    beta2: float = number(0.999, least=0, below=1, way_out=NEVER)
    eps: float = number(1e-8, least=SMALLEST_FLOAT32, below=1, way_out="Models are float32.")

    __repr__ = record_repr

    def _check(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise SimulationError(
                f"LocalTraining: needs either steps or epochs; got steps={brief(self.steps)} and "
                f"epochs={brief(self.epochs)}. The paper's figure 1 has steps=50."
            )
        other = ("momentum",) if self.optimizer == "adam" else ("beta1", "beta2", "eps")
        default = {each.name: each.default for each in fields(LocalTraining)}
        for name in other:
            if getattr(self, name) != default[name]:
                raise SimulationError(
                    f"LocalTraining: {name} is not a setting of optimizer {self.optimizer!r}; got "
                    f"{getattr(self, name)}. Leave it out."
                )

    @property
    def is_plain(self) -> bool:
        """Whether a step is the gradient times the learning rate, and nothing else."""
        plain = self.optimizer == "sgd" and self.momentum == 0
        return plain and self.weight_decay == 0 and self.mu == 0

    def samples_processed(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many samples clients of these sizes process in a round, repeats counted."""
        sizes = checked_numbers(
            "LocalTraining", "sizes", sizes, "n_clients", whole=True, error=SimulationError
        )
        if self.epochs is not None:
            return self.epochs * sizes
        return np.asarray((self.steps or 0) * np.minimum(self.batch_size, sizes))

    def lr_at(self, round_: int) -> float:
        """Return the learning rate of a round."""
        round_ = checked_whole("LocalTraining", "round_", round_, error=SimulationError)
        try:
            rate = self.lr * self.lr_decay**round_
        except OverflowError:
            return float("inf")
        if self.lr_root is not None:
            rate /= math.sqrt(1 + round_ / self.lr_root)
        return (
            rate if rate <= LARGEST_FLOAT32 else float("inf")
        )  # torch refuses what float32 cannot hold


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One client's training in the batch: its start, its randomness and its samples.

    ``model`` is the row of the model that the client starts from, ``samples`` are positions in the
    data set.
    """

    model: int
    seed: int
    client: int
    samples: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Every step of every lane."""

    #: Within the lane's own samples, shape (steps, lanes, batch_size); 0 without one.
    positions: NDArray[np.int64]
    #: 1 / batch for the samples of a step's batch, 0 elsewhere; the same shape.
    sample_weights: NDArray[np.float32]
    #: 1 where the lane takes the step, 0 where it has finished; shape (steps, lanes).
    active: NDArray[np.float32]
    #: Random words for dropout masks, shape (steps, lanes, n_keys).
    keys: NDArray[np.int32]


def make_schedule(
    lanes: Sequence[Lane], training: LocalTraining, *, round_: int, n_keys: int
) -> Schedule:
    """Lay out the round: as many steps as the longest lane takes."""
    # Runs with one seed share every client's randomness: lay out each client once.
    owners = [(lane.seed, lane.client, len(lane.samples)) for lane in lanes]
    distinct = dict(zip(owners, lanes, strict=True))
    known = {owner: _lane_batches(lane, training, round_) for owner, lane in distinct.items()}
    batches = [known[owner] for owner in owners]
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
            # Key by key: a key does not depend on how many follow.
            words = rng.integers(-(2**31), 2**31, size=(n_keys, taken), dtype=np.int32)
            keys[:taken, k] = words.T
    return Schedule(positions, weights, active, keys)


def _lane_batches(
    lane: Lane, training: LocalTraining, round_: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of every batch, padded with 0, and the batches' lengths."""
    rng = stream(lane.seed, round_=round_, use=Stream.BATCHES, client=lane.client)
    n, most = len(lane.samples), training.batch_size
    if training.steps is not None:
        batch = min(most, n)
        return draw_subsets(rng, n, batch, training.steps), np.full(training.steps, batch)
    assert training.epochs is not None  # for mypy: LocalTraining has one of the two
    per_epoch = -(-n // most)
    padded = np.zeros((training.epochs, per_epoch * most), dtype=np.int64)
    for row in padded:
        row[:n] = rng.permutation(n)
    lengths = np.minimum(n - most * np.arange(per_epoch), most)
    return padded.reshape(-1, most), np.tile(lengths, training.epochs)


#: A learning rate or mu: a number for all lanes, or one for each lane, shape (lanes,).
Rate = float | Tensor

#: Train as many lanes at a time as have about this many bytes of parameters.
LANE_BYTES = 2**28


@final
class LocalTrainer:
    """Trains many clients at once, each in a lane: one loop over the steps of all.

    ``data`` lies on the device that trains. ``slots`` are the lanes of one CUDA graph; fewer lanes
    are padded, and the CPU ignores it. ``trainings`` are the trainings of the models' rows where
    ``lr`` or ``mu`` differ; by default all rows train alike.
    """

    def __init__(
        self,
        model: nn.Module,
        training: LocalTraining,
        data: ResidentData,
        *,
        slots: int = 1,
        trainings: Sequence[LocalTraining] = (),
    ) -> None:
        self._training, self.data, self._device = training, data, data.x.device
        self._trainings, every = trainings, trainings or (training,)
        self._has_same_lr = len({each.lr for each in every}) == 1
        #: The mu of all lanes; None if they differ.
        self.same_mu = every[0].mu if len({each.mu for each in every}) == 1 else None
        is_plain = all(each.is_plain for each in every)
        self.gradients = gradients_of(model, self._device, sequences=data.has_sequences)
        self.layout = ParameterLayout(model)
        self._at_once = max(1, LANE_BYTES // (4 * self.layout.size))
        self._slots = min(slots, self._at_once)
        linear = isinstance(self.gradients, StackedLinearGradients) and is_plain
        self._plain_step = self.gradients.descend if linear else None  # type: ignore[attr-defined]
        self._graphs: dict[int, _GraphedSteps] = {}

    def updates(self, models: Tensor, lanes: Sequence[Lane], round_: int) -> Tensor:
        """Train every lane and return client model minus global model, shape (lanes, size).

        ``models`` has shape (n_models, size); a lane starts from row ``lane.model``.
        """
        at_once = self._slots if self._device.type == "cuda" else self._at_once
        parts = [
            self._train(models, lanes[start : start + at_once], round_)
            for start in range(0, len(lanes), at_once)
        ]
        return torch.cat(parts) if parts else models.new_empty((0, models.shape[1]))

    def _train(self, models: Tensor, lanes: Sequence[Lane], round_: int) -> Tensor:
        order = list(range(len(lanes)))
        if self._training.epochs is not None and self._device.type == "cpu":  # see ``_loop``
            order.sort(key=lambda k: len(lanes[k].samples), reverse=True)
            lanes = [lanes[k] for k in order]
        schedule = make_schedule(lanes, self._training, round_=round_, n_keys=self.gradients.n_keys)
        start = models[torch.tensor([lane.model for lane in lanes], device=self._device)]
        steps = self._replay if self._device.type == "cuda" else self._loop
        found = steps(start, schedule, lanes, self._rates(lanes, round_)) - start
        return found if order == sorted(order) else found[np.argsort(order)]

    def _rates(self, lanes: Sequence[Lane], round_: int) -> tuple[Rate, Rate]:
        """Return the learning rate and mu of a round: one for all, or one for each lane."""
        own = [self._trainings[lane.model] if self._trainings else self._training for lane in lanes]
        pairs = [(each.lr_at(round_), each.mu) for each in own]
        lr, mu = torch.tensor(pairs, dtype=torch.float32).T
        return pairs[0][0] if self._has_same_lr else lr, mu if self.same_mu is None else pairs[0][1]

    def _loop(
        self, start: Tensor, schedule: Schedule, lanes: Sequence[Lane], rates: tuple[Rate, Rate]
    ) -> Tensor:
        """Take the steps one after the other; the lanes that still train come first."""
        models, (lr, mu) = self.layout.stacked(start), rates
        optimizer = self.optimizer(self.layout.views(start))
        arrays = (schedule.sample_weights, schedule.active, schedule.keys)
        weights, active, keys = map(torch.from_numpy, arrays)
        plain = self._plain_step if schedule.active.all() else None
        places, data = torch.from_numpy(_in_dataset(schedule, lanes)), self.data
        # One buffer for all steps stays in the processor's cache.
        buffer = data.buffer(places[0].numel())
        for step, n in enumerate(schedule.active.sum(axis=1).astype(int).tolist()):
            rows = places[step, :n]
            inputs, labels = data.take(data.x, rows, buffer), rows_at(data.y, rows)
            if plain is not None and isinstance(lr, Tensor):
                # The step is linear in the sample weights, so these can carry the rates.
                plain(models, inputs, labels, weights[step] * lr[:, None], 1.0)
                continue
            if plain is not None:
                plain(models, inputs, labels, weights[step], lr)
                continue
            own = {name: tensor[:n] for name, tensor in models.items()}
            gradients = self.gradients(own, inputs, labels, weights[step, :n], keys[step, :n])
            pull = mu[:n] if isinstance(mu, Tensor) else mu
            optimizer.step(own, gradients, (lr * active[step])[:n], pull)
        return self.layout.flat(models)

    def optimizer(self, start: Stacked) -> LocalOptimizer:
        """Return a new optimiser of lanes that begin at ``start``."""
        own = self._training
        if own.optimizer == "sgd":
            return Sgd(start, momentum=own.momentum, weight_decay=own.weight_decay)
        return Adam(
            start, beta1=own.beta1, beta2=own.beta2, eps=own.eps, weight_decay=own.weight_decay
        )

    def _replay(
        self, start: Tensor, schedule: Schedule, lanes: Sequence[Lane], rates: tuple[Rate, Rate]
    ) -> Tensor:
        """Take the steps by replaying a CUDA graph of ``slots`` lanes."""
        n_steps, spare = len(schedule.active), self._slots - len(lanes)
        arrays = (
            _in_dataset(schedule, lanes),
            schedule.sample_weights,
            np.asarray(rates[0], dtype=np.float32) * schedule.active,
            np.asarray(rates[1], dtype=np.float32) * np.ones_like(schedule.active),
            schedule.keys,
        )
        # Spare lanes rest: their weights and learning rates are 0.
        padded = [
            np.concatenate([a, np.zeros((n_steps, spare, *a.shape[2:]), a.dtype)], axis=1)
            for a in arrays
        ]
        rows = torch.cat([start, start[:1].expand(spare, -1)])
        if n_steps not in self._graphs:
            self._graphs[n_steps] = _GraphedSteps(self, rows, padded)
        return self._graphs[n_steps].run(rows, padded)[: len(lanes)]


def _in_dataset(schedule: Schedule, lanes: Sequence[Lane]) -> np.ndarray:
    """Return the schedule's positions in the whole data set, shape (steps, lanes, batch)."""
    return np.stack(
        [lane.samples[schedule.positions[:, k]] for k, lane in enumerate(lanes)], axis=1
    )


#: Steps before a graph is recorded: libraries allocate their memory in the first ones.
WARM_UP_STEPS = 3


class _GraphedSteps:
    """One CUDA graph of a step, for a fixed number of lanes and steps.

    The schedule lies on the device, and so does a counter of steps: a replay needs nothing from
    the host. ``arrays`` are, step by step: positions in the data set, sample weights, learning
    rates, mu and dropout keys.
    """

    def __init__(self, trainer: LocalTrainer, start: Tensor, arrays: Sequence[np.ndarray]) -> None:
        self._trainer, layout = trainer, trainer.layout
        self._models, self._start = layout.stacked(start), layout.stacked(start)
        self._schedule = [torch.from_numpy(array).to(start.device) for array in arrays]
        self._counter = torch.zeros(1, dtype=torch.int64, device=start.device)
        self._optimizer = trainer.optimizer(self._start)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with _products_like_convolutions():
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_STEPS):
                    self._counter.zero_()
                    self._step()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            self._counter.zero_()
            with torch.cuda.graph(self._graph):
                self._step()

    def run(self, start: Tensor, arrays: Sequence[np.ndarray]) -> Tensor:
        """Train from ``start`` and return the lanes' models, shape (lanes, size)."""
        for name, view in self._trainer.layout.views(start).items():
            self._models[name].copy_(view)
            self._start[name].copy_(view)
        for held, array in zip(self._schedule, arrays, strict=True):
            held.copy_(torch.from_numpy(np.ascontiguousarray(array)))
        self._counter.zero_()
        self._optimizer.reset()
        for _ in range(len(arrays[0])):
            self._graph.replay()
        return self._trainer.layout.flat(self._models)

    def _step(self) -> None:
        positions, weights, lr, mu, keys = (
            part.index_select(0, self._counter)[0] for part in self._schedule
        )
        data = self._trainer.data
        x, y = data.take(data.x, positions), rows_at(data.y, positions)
        gradients = self._trainer.gradients(self._models, x, y, weights, keys)
        same = self._trainer.same_mu
        self._optimizer.step(self._models, gradients, lr, mu if same is None else same)
        self._counter.add_(1)


@contextmanager
def _products_like_convolutions() -> Iterator[None]:
    """Use TF32 in matrix products if convolutions use it, which is torch's default."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
