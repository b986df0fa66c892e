"""Local training of many clients at once, as a CUDA graph where there is a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from fedcohort.simulation.engine.gradients import Gradients, StackedLinearGradients, gradients_of
from fedcohort.simulation.engine.local_training import (
    Lane,
    LocalTraining,
    Schedule,
    Sgd,
    make_schedule,
)
from fedcohort.simulation.engine.models import ResidentData
from fedcohort.simulation.engine.stacked_layers import Layout

WARM_UP_STEPS = 3


@final
class GraphedSteps:
    """All steps of a round for a fixed number of lanes and steps.

    The schedule lies on the device; a counter there says which step is next, so that a replay needs
    nothing from the host.
    """

    def __init__(
        self, gradients: Gradients, layout: Layout, training: LocalTraining, data: ResidentData
    ) -> None:
        self._gradients, self._layout = gradients, layout
        self._training, self._data = training, data
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, start: Tensor, arrays: Sequence[np.ndarray]) -> Tensor:
        """Train from ``start`` and return the lanes' models, shape (lanes, size).

        ``arrays`` are, step by step: positions in the data set, sample weights, learning rates and
        dropout keys.
        """
        if self._graph is None:
            self._allocate(start, arrays)
        self._load(start, arrays)
        if self._graph is None:
            self._capture()
            self._load(start, arrays)
        assert self._graph is not None
        for _ in range(len(arrays[0])):
            self._graph.replay()
        return self._layout.flat(self._models)

    def _allocate(self, start: Tensor, arrays: Sequence[np.ndarray]) -> None:
        self._models, self._start = self._layout.stacked(start), self._layout.stacked(start)
        self._schedule = [torch.from_numpy(array).to(start.device) for array in arrays]
        self._counter = torch.zeros(1, dtype=torch.int64, device=start.device)
        self._sgd = Sgd(self._training, self._start)

    def _load(self, start: Tensor, arrays: Sequence[np.ndarray]) -> None:
        for name, view in self._layout.views(start).items():
            self._models[name].copy_(view)
            self._start[name].copy_(view)
        for held, array in zip(self._schedule, arrays, strict=True):
            held.copy_(torch.from_numpy(np.ascontiguousarray(array)))
        self._counter.zero_()
        self._sgd.reset()

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with _products_like_convolutions():
            with torch.cuda.stream(side):
                for _ in range(WARM_UP_STEPS):
                    self._counter.zero_()
                    self._step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            self._counter.zero_()
            with torch.cuda.graph(graph):
                self._step()
        self._graph = graph

    def _step(self) -> None:
        positions, weights, lr, keys = (
            part.index_select(0, self._counter)[0] for part in self._schedule
        )
        x = self._data.take(self._data.x, positions)
        y = self._data.y.index_select(0, positions.reshape(-1)).view(positions.shape)
        gradients = self._gradients(self._models, x, y, weights, keys)
        self._sgd.step(self._models, gradients, lr)
        self._counter.add_(1)


@contextmanager
def _products_like_convolutions() -> Iterator[None]:
    """Let matrix products use TF32 where convolutions do (torch's default), and nowhere else."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


#: Lanes whose parameters fill about this many bytes train at a time.
LANE_BYTES = 2**28


@final
class LocalTrainer:
    """Trains lanes: stacked parameters, one batch dimension per client, one loop over steps.

    Parameters
    ----------
    model
        Any ``nn.Module`` without batch norm; chains of linear layers and ReLUs have a faster path
        on the CPU.
    training
        What every client does.
    data
        The samples, on the device that trains.
    slots
        Lanes of one CUDA graph; fewer are padded. On the CPU it does not matter.
    """

    def __init__(
        self, model: nn.Module, training: LocalTraining, data: ResidentData, *, slots: int = 1
    ) -> None:
        self._training, self._data, self._device = training, data, data.x.device
        self._gradients, self._layout = gradients_of(model, self._device), Layout(model)
        self._at_once = max(1, LANE_BYTES // (4 * self._layout.size))
        self._slots = min(slots, self._at_once)
        linear = isinstance(self._gradients, StackedLinearGradients) and training.is_plain
        self._plain_step = self._gradients.descend if linear else None  # type: ignore[attr-defined]
        self._graphs: dict[int, GraphedSteps] = {}

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
        schedule = make_schedule(
            lanes, self._training, round_=round_, n_keys=self._gradients.n_keys
        )
        start = models[torch.tensor([lane.model for lane in lanes], device=self._device)]
        lr = self._training.lr_at(round_)
        steps = self._replay if self._device.type == "cuda" else self._loop
        return steps(start, schedule, lanes, lr) - start

    def _loop(self, start: Tensor, schedule: Schedule, lanes: Sequence[Lane], lr: float) -> Tensor:
        """Take the steps one after the other."""
        models = self._layout.stacked(start)
        sgd = Sgd(self._training, self._layout.views(start))
        x, y, positions = self._gathered(schedule, lanes)
        weights, active, keys = (
            torch.from_numpy(part)
            for part in (schedule.sample_weights, schedule.active, schedule.keys)
        )
        plain = self._plain_step if schedule.active.all() else None
        for step in range(len(positions)):
            rows = positions[step]
            inputs = self._data.take(self._data.x, rows) if x is None else _rows(x, rows)
            labels = y.index_select(0, rows.reshape(-1)).view(rows.shape)
            if plain is not None:
                plain(models, inputs, labels, weights[step], lr)
                continue
            gradients = self._gradients(models, inputs, labels, weights[step], keys[step])
            sgd.step(models, gradients, lr * active[step])
        return self._layout.flat(models)

    def _gathered(
        self, schedule: Schedule, lanes: Sequence[Lane]
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Convert the lanes' samples once, where that is less work than batch by batch."""
        n_samples = sum(len(lane.samples) for lane in lanes)
        if n_samples > schedule.positions.size:
            return None, self._data.y, torch.from_numpy(_in_dataset(schedule, lanes))
        samples = torch.from_numpy(np.concatenate([lane.samples for lane in lanes]))
        starts = np.cumsum([0, *(len(lane.samples) for lane in lanes[:-1])])
        positions = torch.from_numpy(schedule.positions + starts[None, :, None])
        return self._data.take(self._data.x, samples), self._data.y[samples], positions

    def _replay(
        self, start: Tensor, schedule: Schedule, lanes: Sequence[Lane], lr: float
    ) -> Tensor:
        """Take the steps by replaying a CUDA graph, which has room for ``slots`` lanes."""
        n_steps, spare = len(schedule.active), self._slots - len(lanes)
        if n_steps not in self._graphs:
            self._graphs[n_steps] = GraphedSteps(
                self._gradients, self._layout, self._training, self._data
            )
        arrays = (
            _in_dataset(schedule, lanes),
            schedule.sample_weights,
            np.float32(lr) * schedule.active,
            schedule.keys,
        )
        # Spare lanes rest: their weights and learning rates are 0.
        padded = [
            np.concatenate([a, np.zeros((n_steps, spare, *a.shape[2:]), a.dtype)], axis=1)
            for a in arrays
        ]
        rows = torch.cat([start, start[:1].expand(spare, -1)])
        return self._graphs[n_steps].run(rows, padded)[: len(lanes)]


def _rows(x: Tensor, positions: Tensor) -> Tensor:
    return x.index_select(0, positions.reshape(-1)).view(*positions.shape, *x.shape[1:])


def _in_dataset(schedule: Schedule, lanes: Sequence[Lane]) -> np.ndarray:
    """Return the schedule's positions in the whole data set, shape (steps, lanes, batch)."""
    return np.stack(
        [lane.samples[schedule.positions[:, k]] for k, lane in enumerate(lanes)], axis=1
    )
