"""How far a round's step is from full participation, where every client trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort._display import record_repr
from fedcohort._updates import as_numpy
from fedcohort.designs import Design, MultinomialDesign
from fedcohort.memory import Memory
from fedcohort.simulation.data.federated_data import FederatedData
from fedcohort.simulation.engine.gradients import gradients_of
from fedcohort.simulation.engine.models import Layout, ResidentData

#: Train as many clients together as have this many bytes of models.
YARDSTICK_BYTES = 2**30
#: Samples whose gradients are computed at a time.
SAMPLES_AT_ONCE = 20_000

#: Trains clients, listed run by run, in a round; returns each run's updates, one row per client.
Train = Callable[[Sequence[NDArray[np.int64]], int], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Yardstick:
    r"""One round against full participation, where every client trains.

    Attributes
    ----------
    squared_error
        :math:`\|\sum w_i \Delta_i - \sum p_i \Delta_i\|^2` of the cohort that was drawn.
    design_variance
        Its expectation under the design, B (squared bias included); with the difference
        estimator B of what is not remembered; NaN where the design has no formula for it.
    multinomial_variance
        Its expectation under multinomial sampling and plain aggregation, B_MD.
    beta_squared
        Of Assumption 3 with :math:`\kappa = 0`:
        :math:`\sum p_i \|g_i\|^2 / \|\sum p_i g_i\|^2`, :math:`g_i` the clients' gradients.
    kappa_squared
        Of Assumption 3 with :math:`\beta = 1`:
        :math:`\sum p_i \|g_i\|^2 - \|\sum p_i g_i\|^2`.
    """

    squared_error: float
    design_variance: float
    multinomial_variance: float
    beta_squared: float
    kappa_squared: float

    __repr__ = record_repr

    @property
    def is_finite(self) -> bool:
        """Whether every client's training and gradient was finite."""
        return not math.isnan(self.squared_error)


def yardstick(
    design: Design,
    aggregate: NDArray[np.float32],
    updates: NDArray[np.float32],
    gradients: NDArray[np.float32],
    remembered: NDArray[np.float32] | None = None,
) -> Yardstick:
    """Compare a cohort's aggregate with what all clients' updates and gradients say.

    ``updates``, ``gradients`` and ``remembered`` (h of the difference estimator) have shape
    (n_clients, size), ``aggregate`` (size,). Where a client's are not finite, every number is NaN.
    """
    importance = design.population.importance
    if not all(np.isfinite(each).all() for each in (updates, gradients)):
        return Yardstick(*[math.nan] * len(fields(Yardstick)))
    error = aggregate.astype(np.float64) - importance @ updates
    mean = importance @ gradients
    squares = float(importance @ np.einsum("ij,ij->i", gradients, gradients, dtype=np.float64))
    of_mean = float(mean @ mean)
    left = updates if remembered is None else updates - remembered
    return Yardstick(
        squared_error=float(error @ error),
        design_variance=design.aggregate_variance(left) if design.exact_moments else math.nan,
        multinomial_variance=MultinomialDesign(
            design.population, design.cohort_size
        ).aggregate_variance(updates),
        beta_squared=squares / of_mean if of_mean > 0 else float("inf"),
        kappa_squared=max(squares - of_mean, 0.0),
    )


@final
class FullGradients:
    """Computes the clients' gradients of one federation, some clients at a time."""

    def __init__(self, model: nn.Module, data: ResidentData, federation: FederatedData) -> None:
        self._gradients = gradients_of(model, data.x.device, dropout=False)
        self._layout = Layout(model)
        self._data, self._parts = data, federation.train

    def __call__(self, flat: Tensor) -> Tensor:
        """Return every client's gradient at the parameters ``flat``, shape (n_clients, size)."""
        longest = max(len(part) for part in self._parts)
        at_once = max(1, SAMPLES_AT_ONCE // longest)
        found = []
        for start in range(0, len(self._parts), at_once):
            parts = self._parts[start : start + at_once]
            positions = np.zeros((len(parts), longest), dtype=np.int64)
            weights = np.zeros((len(parts), longest), dtype=np.float32)
            for k, part in enumerate(parts):
                positions[k, : len(part)] = part
                weights[k, : len(part)] = 1 / max(len(part), 1)
            found.append(self._of(flat, positions, weights))
        return torch.cat(found)

    def _of(self, flat: Tensor, positions: np.ndarray, weights: np.ndarray) -> Tensor:
        device = self._data.x.device
        where = torch.from_numpy(positions).to(device)
        x = self._data.take(self._data.x, where)
        y = self._data.y[where]
        models = self._layout.views(flat.expand(len(positions), -1).contiguous())
        # No dropout, so that the keys are never read.
        keys = torch.zeros((len(positions), self._gradients.n_keys), dtype=torch.int32)
        shares = torch.from_numpy(weights).to(device)
        return self._layout.flat(self._gradients(models, x, y, shares, keys.to(device)))


@final
class FullParticipation:
    """Compares rounds with rounds in which all available clients take part."""

    def __init__(
        self,
        federations: Sequence[FederatedData],
        model: nn.Module,
        data: ResidentData,
        train: Train,
        pool: Executor,
    ) -> None:
        self._sizes = [each.population.sizes for each in federations]
        self._gradients = [FullGradients(model, data, each) for each in federations]
        self._train, self._pool = train, pool

    def yardsticks(
        self,
        models: Tensor,
        designs: Sequence[Design | None],
        steps: Sequence[Tensor],
        variates: Sequence[Memory | None],
        round_: int,
    ) -> list[Yardstick | None]:
        """Return every run's yardstick; None where nothing was drawn.

        The arguments have one entry per run: its model, design and step, and what its difference
        estimator remembers.
        """
        found: dict[int, Future[Yardstick]] = {}
        for some in self._fitting(models, [k for k, own in enumerate(designs) if own is not None]):
            for k, updates in self._everyones_updates(models, some, round_).items():
                memory, everyone = variates[k], np.arange(len(updates))
                remembered = None if memory is None else as_numpy(memory.of(everyone))
                gradients = self._gradients[k](models[k]).cpu().numpy()
                facts = (designs[k], steps[k].cpu().numpy(), updates, gradients, remembered)
                found[k] = self._pool.submit(yardstick, *facts)  # type: ignore[arg-type]
        return [found[k].result() if k in found else None for k in range(len(designs))]

    def _fitting(self, models: Tensor, which: list[int]) -> Iterator[list[int]]:
        """Divide runs, in order, into groups whose clients' models fit ``YARDSTICK_BYTES``."""
        some: list[int] = []
        for k in which:
            held = sum(len(self._sizes[each]) for each in [*some, k])
            if some and 4 * held * models.shape[1] > YARDSTICK_BYTES:
                yield some
                some = []
            some.append(k)
        if some:
            yield some

    def _everyones_updates(
        self, models: Tensor, some: list[int], round_: int
    ) -> dict[int, NDArray[np.float32]]:
        """Train all clients of these runs; shape (n_clients, size) each, 0 without samples."""
        clients = [
            np.flatnonzero(sizes if k in some else 0 * sizes) for k, sizes in enumerate(self._sizes)
        ]
        trained = self._train(clients, round_)
        found = {}
        for k in some:
            updates = np.zeros((len(self._sizes[k]), models.shape[1]), dtype=np.float32)
            updates[clients[k]] = trained[k].cpu().numpy()
            found[k] = updates
        return found
