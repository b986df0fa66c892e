"""The engine: all clients of all cohorts take their local steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from fedcohort.simulation.batches import Lane, Schedule, make_schedule
from fedcohort.simulation.cuda_graph import GraphedSteps
from fedcohort.simulation.gradients import StackedLinearGradients, gradients_of
from fedcohort.simulation.local_training import LocalTraining, Sgd
from fedcohort.simulation.parameters import Layout
from fedcohort.simulation.resident_data import ResidentData

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
