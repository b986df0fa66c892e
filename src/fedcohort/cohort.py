"""The clients drawn for one round, and the one formula: how their updates move the model."""

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import (
    as_array,
    brief,
    checked_cohort_size,
    checked_kind,
    checked_number,
    is_list,
)
from fedcohort._display import counted, html_table, short_list
from fedcohort._updates import LARGEST_ENTRY, Array, Layout, Rows, Update, like
from fedcohort.errors import AggregationError, DesignError

#: Positions of no client.
NOBODY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    r"""The clients of one round: each trains once and carries its weight once.

    The server moves the model by :math:`\sum_i w_i \Delta_i`. The residual, one minus the sum of
    the weights, is the share of the current model that no client replaces.

    Attributes
    ----------
    clients
        The drawn clients' positions in the population: sorted and distinct.
    counts
        How often each of them was drawn, at least 1.
    weights
        The aggregation weight of each of them.
    residual
        One minus the sum of the weights. 0 for every design whose weights are ``counts / m``.
    ids
        The drawn clients' ids, in the same order; their positions unless a selector drew them.
    round_
        The round that they were drawn for, from 0.
    """

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: NDArray[np.float64]
    residual: float
    ids: Sequence[Any] = ()
    round_: int = 0

    def __post_init__(self) -> None:
        columns = {
            "clients": _column("clients", self.clients, "iu"),
            "counts": _column("counts", self.counts, "iu"),
            "weights": _column("weights", self.weights, "iuf"),
        }
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DesignError(
                f"Cohort: needs a count and a weight for each client; got {lengths}. Name each "
                f"client once."
            )
        for name, column in columns.items():
            object.__setattr__(self, name, column)
        object.__setattr__(self, "ids", _checked_ids(self.ids, self.clients))

    @classmethod
    def of_shares(cls, clients: ArrayLike, counts: ArrayLike, cohort_size: int) -> Self:
        """Weigh every draw ``1 / cohort_size``; the residual is 0, not a rounding error."""
        size = checked_cohort_size("Cohort", cohort_size)
        drawn = _column("counts", counts, "iu")
        return cls(clients, drawn, drawn / size, residual=0.0)  # type: ignore[arg-type]

    @classmethod
    def of_weights(cls, clients: ArrayLike, counts: ArrayLike, weights: ArrayLike) -> Self:
        """Take the weights as they are; the model keeps the rest."""
        own = _column("weights", weights, "iuf")
        return cls(clients, counts, own, residual=1.0 - math.fsum(own))  # type: ignore[arg-type]

    @classmethod
    def empty(cls) -> Self:
        """Return an empty cohort: the whole weight stays on the model."""
        return cls.of_checked(NOBODY, NOBODY, np.empty(0))

    @classmethod
    def of_checked(
        cls,
        clients: NDArray[np.int64],
        counts: NDArray[np.int64],
        weights: NDArray[np.float64],
        residual: float | None = None,
        ids: Sequence[Any] | None = None,
        round_: int = 0,
    ) -> Self:
        """Make a cohort of valid parts, without checking them; by default the model keeps the rest.

        ``ids`` are the clients' positions by default.
        """
        rest = 1.0 - math.fsum(weights) if residual is None else residual
        made, names = object.__new__(cls), clients.tolist() if ids is None else ids
        values = (clients, counts, weights, rest, names, round_)
        for own, value in zip(fields(cls), values, strict=True):
            object.__setattr__(made, own.name, value)
        return made

    def named(self, ids: Sequence[Any], round_: int) -> Self:
        """Return the same cohort with the clients' ids and its round."""
        parts = (self.clients, self.counts, self.weights, self.residual)
        return self.of_checked(*parts, _checked_ids(ids, self.clients), round_)

    @property
    def sums_to_one(self) -> bool:
        """Whether the weights sum to 1, up to rounding."""
        return abs(self.residual) <= 1e-12

    def __repr__(self) -> str:
        ids, n = short_list(self.ids), len(self)
        return f"Cohort({ids}, n_clients={n}, residual={self.residual:.4g}, round_={self.round_})"

    def _repr_html_(self) -> str:
        n, residual = len(self), f"{self.residual:.4g}"
        title = f"Cohort of round {self.round_}: {counted(n, 'client')}, residual {residual}"
        rows = zip(map(str, self.ids), self.counts.tolist(), self.weights.tolist(), strict=True)
        return html_table(title, ("id", "count", "weight"), rows, n_rows=n, most=20)

    def __len__(self) -> int:
        return len(self.clients)


def _checked_ids(ids: Sequence[Any], clients: NDArray[np.int64]) -> Sequence[Any]:
    """Validate the clients' ids; their positions if there is not one for each."""
    given: object = ids
    if not is_list(given) or not isinstance(given, Sized):
        raise DesignError(
            f"Cohort: ids must be a list with the id of each client; got {brief(ids)}. Leave them "
            f"out, and they are the clients' positions."
        )
    return ids if len(ids) == len(clients) else clients.tolist()


def _column(name: str, given: ArrayLike, kinds: str) -> NDArray[Any]:
    """Validate a flat array of numbers; integers have the kinds ``iu``, floats ``f``."""
    column = as_array(given)
    if column.ndim != 1 or (column.dtype.kind not in kinds and column.size):
        kind = "numbers" if "f" in kinds else "whole numbers"
        raise DesignError(
            f"Cohort: {name} must be a flat list of {kind}, one per client; got {brief(given)}. "
            f"Pass an array."
        )
    return column.astype(np.float64 if "f" in kinds else np.int64, copy=False)


class EstimatorMemory(Protocol):
    """The memory of the difference estimator; see :class:`fedcohort.Difference`."""

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        """Return the estimate, shape (dimension,); ``updates`` has one flat row per client."""


def aggregate(
    model: Update | None,
    updates: Any,
    cohort: Cohort,
    *,
    server_lr: float = 1.0,
    memory: EstimatorMemory | None = None,
) -> Update:
    r"""Move the model by the cohort's weighted updates.

    .. math:: \theta' = \theta + \eta_s \sum_i w_i \Delta_i

    An empty cohort leaves the model as it is; so does the residual's share of it. Integer arrays
    of a model that also has float arrays move by the weighted sum itself, rounded once, whatever
    ``server_lr`` is. With a ``memory`` the sum is the difference estimator's
    (:class:`fedcohort.Difference`): an empty cohort then moves the model by H.

    Parameters
    ----------
    model
        The global model: an array of any shape, a list of arrays, or a mapping of arrays (a state
        dict), numpy or torch. None returns the step alone, in the structure of the updates.
    updates
        Client model minus global model, one per client in the order of ``cohort.clients``: rows
        of one array, or a list of updates, each in the model's structure.
    cohort
        Who was drawn, with what weight.
    server_lr
        The server's learning rate, at least 0.
    memory
        What is remembered of the clients; the caller records the round's updates afterwards.

    Returns
    -------
    The moved model in the model's own structure and types, or the step.

    Raises
    ------
    AggregationError
        If updates, cohort and model do not match, a number is not finite, or a type
        cannot hold the result.

    Examples
    --------
    >>> cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 3]), cohort_size=4)
    >>> aggregate([1.0, 1.0], [[4.0, 0.0], [0.0, 4.0]], cohort).tolist()
    [2.0, 4.0]
    """
    way_out, error = "Pass what draw() gave.", AggregationError
    checked_kind("aggregate", "cohort", cohort, Cohort, way_out=way_out, error=error)
    if memory is not None and not callable(getattr(memory, "aggregate", None)):
        raise AggregationError(
            f"aggregate: memory must be the estimator's memory, or None; got {brief(memory)}. Pass "
            f"what Difference().memory(importance, zeros) gave."
        )
    rate = checked_number("aggregate", "server_lr", server_lr, least=0, error=error)
    rows = _checked_rows(model, updates, cohort)
    step, counters = rate * _step(rows, cohort, memory), rows.counted(cohort.weights)
    if model is None:
        return rows.layout.unflat(step, counters)
    return rows.added_to(model, step, counters)


def _checked_rows(model: Update | None, updates: Any, cohort: Cohort) -> Rows:
    """Read the updates, one row per client of the cohort; all must be finite."""
    if isinstance(updates, Rows):  # a selector has read and checked them
        return updates
    if len(cohort) == 0 and model is not None:
        layout, vector, _ = Layout.read("aggregate", model)
        return Rows(layout, vector[None][:0], [])
    rows = Rows.of("aggregate", updates, len(cohort))
    usable = rows.usable()
    if not usable.all():
        raise AggregationError(
            f"aggregate: updates must be finite, below {LARGEST_ENTRY:g}; that of client "
            f"{cohort.ids[int(np.argmin(usable))]!r} is not. Drop the client from the cohort: its "
            f"weight then stays on the model."
        )
    return rows


def _step(rows: Rows, cohort: Cohort, memory: EstimatorMemory | None) -> Array:
    """Return the weighted sum of the updates, or the estimate with a memory; flat."""
    flat = rows.flat
    if isinstance(flat, np.ndarray):
        flat = np.ascontiguousarray(flat, dtype=np.float64)
    if memory is None:
        return like(cohort.weights, flat) @ flat
    return memory.aggregate(cohort.clients, cohort.weights, flat)
