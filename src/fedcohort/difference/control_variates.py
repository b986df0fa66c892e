"""What is remembered of the clients, and the aggregate that it makes steadier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.difference.arrays import Array, as_numpy, like
from fedcohort.errors import AggregationError


class ControlVariates(ABC):
    """What is remembered of the clients, h, and the aggregate that it makes steadier.

    Nothing changes but by ``record`` and ``reweigh``: in a round h is what it was before the draw.

    Parameters
    ----------
    importance
        p, shape (n_clients,).
    zeros
        Shape (dimension,), of the kind, type and device that updates have.
    shrink
        The part of what is remembered that is used.
    """

    def __init__(self, importance: ArrayLike, zeros: Array, *, shrink: float) -> None:
        self._importance: NDArray[np.float64] = np.array(importance, dtype=np.float64)
        self._zeros, self._shrink = zeros, shrink
        shape = tuple(getattr(zeros, "shape", ()))
        if self._importance.ndim != 1 or len(shape) != 1 or "float" not in str(zeros.dtype):
            raise AggregationError(
                f"Difference: a memory needs the clients' importance and a flat model of floats, "
                f"all 0; got shapes {self._importance.shape} and {shape}. Pass "
                f"population.importance and numpy.zeros(model.size)."
            )

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        """Return v, shape (dimension,); ``updates`` has one row for each of ``clients``."""
        self._check(clients, updates)
        weighed = like(weights, updates)
        if self._shrink == 0:
            return weighed @ updates
        return weighed @ (updates - self.of(clients)) + self.expected()

    def of(self, clients: NDArray[np.int64]) -> Array:
        """Return h of these clients, shape (len(clients), dimension)."""
        return self._shrink * self._remembered(clients)

    def expected(self) -> Array:
        """Return the sum of p h over all clients, shape (dimension,)."""
        return self._shrink * self._mean()

    def record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember the round's updates, one row for each of ``clients``."""
        self._check(clients, updates)
        with np.errstate(over="ignore"):
            kept = like(updates, self._zeros)
        if not (np.isfinite(kept) if isinstance(kept, np.ndarray) else kept.isfinite()).all():
            raise AggregationError(
                f"Difference: updates must be finite as {self._zeros.dtype} to be remembered. "
                f"Drop the client that sent others from the cohort."
            )
        self._record(clients, kept)

    def reweigh(self, importance: ArrayLike) -> None:
        """Take another p; clients beyond those that there were are new, one with p = 0 is away."""
        shares = np.array(importance, dtype=np.float64)
        n_known = len(self._importance)
        if shares.ndim != 1 or len(shares) < n_known:
            raise AggregationError(
                f"Difference: another importance needs an entry for each of the {n_known} clients "
                f"that there were; got shape {shares.shape}. Give 0 to those that are away."
            )
        self._importance = shares
        self._reweigh(n_known)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as numpy arrays."""
        return {name: as_numpy(array) for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        needed = {name: tuple(array.shape) for name, array in self._arrays().items()}
        found = {name: np.shape(array) for name, array in state.items()}
        if any(found.get(name) != shape for name, shape in needed.items()):
            raise AggregationError(
                f"Difference: the memory's state must have arrays of shapes {needed}; got {found}. "
                f"Restore it with the clients, the model and the settings that it was made with."
            )
        self._take(state)

    def _check(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Let updates of this memory's clients and model through."""
        n, (dimension,) = len(self._importance), self._zeros.shape
        shape = tuple(np.shape(updates))
        if isinstance(updates, np.ndarray) != isinstance(self._zeros, np.ndarray):
            raise AggregationError(
                f"Difference: this memory is of {type(self._zeros).__name__}s; got updates as "
                f"{type(updates).__name__}. Make the memory with zeros of the updates' kind."
            )
        if shape != (len(clients), dimension):
            raise AggregationError(
                f"Difference: this memory is for updates of shape ({len(clients)}, {dimension}), "
                f"one row per client; got {shape}. Make a memory for each model."
            )
        if len(np.unique(clients)) < len(clients) or not all(0 <= each < n for each in clients):
            raise AggregationError(
                f"Difference: clients must be distinct and from 0 to {n - 1}; got "
                f"{np.asarray(clients).tolist()}. Make a memory for each population."
            )

    @abstractmethod
    def _record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember updates that fit, in the memory's own type."""

    @abstractmethod
    def _reweigh(self, n_known: int) -> None:
        """Go on with another importance; ``n_known`` clients were there before."""

    @abstractmethod
    def _arrays(self) -> dict[str, Array]:
        """Return all that changes, by name."""

    @abstractmethod
    def _take(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over copies of arrays of the right shapes."""

    @abstractmethod
    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        """Return what is remembered of these clients, before it is shrunk."""

    @abstractmethod
    def _mean(self) -> Array:
        """Return the importance-weighted mean of what is remembered."""
