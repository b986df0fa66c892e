"""How good a model is on the clients' own samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedcohort._display import record_repr
from fedcohort.simulation.data.federated_data import FederatedData, Indices
from fedcohort.simulation.engine.gradients import StackedLinearGradients
from fedcohort.simulation.engine.models import Layout, ResidentData, Stacked

#: Samples in a batch: on the CPU few enough for the cache.
BATCH = {"cpu": 512, "cuda": 8192}


@dataclass(frozen=True, slots=True)
class Quality:
    """A global model, judged on the clients' own samples.

    Attributes
    ----------
    loss
        sum p_i L_i, L_i the mean loss of client i's training samples.
    accuracy
        The p-weighted mean of the clients' test accuracies (of those that have test samples).
    accuracy_spread
        The p-weighted standard deviation of the clients' test accuracies.
    """

    loss: float
    accuracy: float
    accuracy_spread: float

    __repr__ = record_repr


@final
class Evaluator:
    """Evaluates models on one federation, dropout off, every sample once."""

    def __init__(self, model: nn.Module, data: ResidentData, federation: FederatedData) -> None:
        self._model, self._layout, self._data = copy.deepcopy(model).eval(), Layout(model), data
        fits = StackedLinearGradients.fits(model)
        self._chain = StackedLinearGradients(model) if fits else None  # type: ignore[arg-type]
        self._importance = federation.population.importance
        self._parts = federation.train
        self._train, self._test = _Samples(federation.train), _Samples(federation.test)

    def quality(self, flat: Tensor) -> Quality:
        """Judge the model with these parameters, shape (size,)."""
        loss = float(self._importance @ self.client_losses(flat))
        hits = self._over(flat, self._data.test_x, self._data.test_y, self._test, _hits)
        accuracies = self._test.means(hits)
        weight = self._importance * (self._test.sizes > 0)
        if weight.sum() == 0:
            return Quality(loss, float("nan"), float("nan"))
        weight = weight / weight.sum()
        mean = float(weight @ accuracies)
        spread = float(np.sqrt(weight @ (accuracies - mean) ** 2))
        return Quality(loss, mean, spread)

    def client_losses(self, flat: Tensor) -> NDArray[np.float64]:
        """Return every client's mean training loss, shape (n_clients,)."""
        losses = self._over(flat, self._data.x, self._data.y, self._train, _losses)
        return self._train.means(losses)

    def losses_of(
        self, flat: Tensor, clients: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean and the root mean square of these clients' training losses.

        Both have shape (len(clients),); a client without samples has 0.
        """
        samples = _Samples(tuple(self._parts[client] for client in clients))
        losses = self._over(flat, self._data.x, self._data.y, samples, _losses)
        return samples.means(losses), np.sqrt(samples.means(losses**2))

    @torch.no_grad()
    def _over(
        self,
        flat: Tensor,
        x: Tensor,
        y: Tensor,
        samples: _Samples,
        judge: Callable[[Tensor, Tensor], Tensor],
    ) -> NDArray[np.float64]:
        """Judge every used sample once, in large batches."""
        positions = samples.positions.to(x.device)
        if len(positions) == 0:
            return np.empty(0)
        outputs = self._outputs(self._layout.views(flat[None]))
        batches = positions.split(BATCH[x.device.type])
        buffer = torch.empty((len(batches[0]), *x.shape[1:]), device=x.device)
        scores = torch.cat([outputs(self._data.take(x, batch, buffer)) for batch in batches])
        return np.asarray(judge(scores, y[positions]).cpu(), dtype=np.float64)

    def _outputs(self, parameters: Stacked) -> Callable[[Tensor], Tensor]:
        """Return the model with these parameters (of one lane), dropout off, as a function."""
        if self._chain is not None:
            chain = self._chain
            return lambda x: chain.outputs(parameters, x[None])[0]
        own = {name: view[0] for name, view in parameters.items()}
        return lambda x: functional_call(self._model, own, (x,))


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    # As cross_entropy(reduction="none"), which is several times slower for few classes.
    return outputs.logsumexp(dim=1) - outputs.gather(1, labels.unsqueeze(1)).squeeze(1)


def _hits(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == labels).float()


class _Samples:
    """The samples that clients use, each once, and who uses which."""

    def __init__(self, parts: Indices) -> None:
        self.sizes = np.array([len(part) for part in parts], dtype=np.int64)
        entries = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        used, self._entry = np.unique(entries, return_inverse=True)
        self._client = np.repeat(np.arange(len(parts)), self.sizes)
        self.positions = torch.from_numpy(used)

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Average a value per used sample over every client; 0 for a client without samples."""
        sums = np.bincount(self._client, values[self._entry], minlength=len(self.sizes))
        return np.asarray(sums / np.maximum(self.sizes, 1), dtype=np.float64)
