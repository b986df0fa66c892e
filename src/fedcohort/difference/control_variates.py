"""What is remembered of the clients, and the aggregate that it makes steadier."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._updates import Array, as_numpy, like
from fedcohort.errors import AggregationError
from fedcohort.population import IMPORTANCE_TOLERANCE


class ControlVariates(ABC):
    """What is remembered of the clients, h, and the aggregate that it makes steadier.

    Nothing changes but by ``record``, ``reweigh`` and ``rearrange``: in a round h is what it was
    before the draw.

    Parameters
    ----------
    importance
        p, shape (n_clients,): at least 0, and 1 together.
    zeros
        Shape (dimension,), of the kind, type and device that updates have.
    shrink
        The part of what is remembered that is used.
    """

    def __init__(self, importance: ArrayLike, zeros: Array, *, shrink: float) -> None:
        self._importance = _shares(importance)
        self._zeros, self._shrink = zeros, shrink
        shape = tuple(getattr(zeros, "shape", ()))
        if len(shape) != 1 or "float" not in str(zeros.dtype):
            raise AggregationError(
                f"Difference: a memory needs a flat model of floats, all 0; got shape {shape}. "
                f"Pass numpy.zeros(model.size)."
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

    @property
    def dimension(self) -> int:
        """How many numbers an update has."""
        return int(self._zeros.shape[0])

    @property
    def zeros(self) -> Array:
        """A flat model of zeros, of the kind, type and device that updates have."""
        return self._zeros

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return sum(int(array.nbytes) for array in self._arrays().values())

    def reweigh(self, importance: ArrayLike) -> None:
        """Take another p; a client with p = 0 is away, and stays remembered."""
        shares = _shares(importance)
        if len(shares) != len(self._importance):
            raise AggregationError(
                f"Difference: another importance needs an entry for each of the "
                f"{len(self._importance)} clients; got {len(shares)}. Give 0 to those that are "
                f"away, and rearrange the memory where clients are new."
            )
        # Summed again, the mean would differ in its last digits.
        if not np.array_equal(shares, self._importance):
            self._importance = shares
            self._reweigh()

    def rearrange(self, order: NDArray[np.int64]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client.

        Clients that are not in ``order`` are forgotten, and the others share their p; new ones
        have p = 0 until ``reweigh``.
        """
        is_known = order >= 0
        before, self._importance = self._importance, np.zeros(len(order))
        self._importance[is_known] = before[order[is_known]]
        if np.count_nonzero(is_known) < len(before):
            # p stays a share of 1: a state is refused otherwise.
            total = self._importance.sum()
            self._importance = (
                self._importance / total if total else np.full(len(order), 1 / len(order))
            )
        self._rearrange(order, is_known)
        if np.count_nonzero(is_known) < len(before):
            self._reweigh()

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return everything that is to be kept, as numpy arrays."""
        return {
            "importance": self._importance.copy(),
            **{name: as_numpy(array).copy() for name, array in self._arrays().items()},
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        needed = {name: tuple(array.shape) for name, array in self._arrays().items()}
        needed["importance"] = self._importance.shape
        found = {name: np.shape(array) for name, array in state.items()}
        if any(found.get(name) != shape for name, shape in needed.items()):
            raise AggregationError(
                f"Difference: the memory's state must have arrays of shapes {needed}; got {found}. "
                f"Restore it with the clients, the model and the settings that it was made with."
            )
        self._importance = _shares(state["importance"])
        self._take(state)

    def _check(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Validate updates: of this memory's clients and model."""
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
        known = len(clients) == 0 or 0 <= min(clients) <= max(clients) < n
        if len(np.unique(clients)) < len(clients) or not known:
            raise AggregationError(
                f"Difference: clients must be distinct and from 0 to {n - 1}; got "
                f"{np.asarray(clients).tolist()}. Make a memory for each population."
            )

    @abstractmethod
    def _record(self, clients: NDArray[np.int64], updates: Array) -> None:
        """Remember updates that fit, in the memory's own type."""

    @abstractmethod
    def _reweigh(self) -> None:
        """Go on with another importance."""

    @abstractmethod
    def _rearrange(self, order: NDArray[np.int64], is_known: NDArray[np.bool_]) -> None:
        """Move to other positions."""

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


def _shares(importance: ArrayLike) -> NDArray[np.float64]:
    """Copy importances; refuse what is not one share of 1 per client."""
    try:
        shares = np.array(importance, dtype=np.float64)
    except (ValueError, TypeError):
        shares = np.empty(0)
    total = float(shares.sum()) if shares.ndim == 1 and shares.size else math.nan
    # Written so that NaN does not pass.
    if not (abs(total - 1) <= IMPORTANCE_TOLERANCE and shares.min(initial=0.0) >= 0):
        raise AggregationError(
            f"Difference: importance must be one share per client, at least 0 and 1 together; got "
            f"shape {shares.shape} with the sum {total:g}. Pass population.importance."
        )
    return shares
