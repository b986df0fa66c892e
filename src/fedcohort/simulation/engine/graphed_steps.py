"""The steps of a round as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor

from fedcohort.simulation.engine.gradients import Gradients, Sgd
from fedcohort.simulation.engine.models import Layout, ResidentData, Stacked

WARM_UP_STEPS = 3


@final
class GraphedSteps:
    """All steps of a round for a fixed number of lanes and steps.

    The schedule lies on the device, and so does a counter of steps: a replay needs nothing from
    the host.
    """

    def __init__(
        self,
        gradients: Gradients,
        make_sgd: Callable[[Stacked], Sgd],
        layout: Layout,
        data: ResidentData,
    ) -> None:
        self._gradients, self._make_sgd = gradients, make_sgd
        self._layout, self._data = layout, data
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
        self._sgd = self._make_sgd(self._start)

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
    """Meanwhile let matrix products use TF32 exactly if convolutions do, as is torch's default."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
