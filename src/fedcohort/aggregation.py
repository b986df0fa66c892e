"""The one formula: how a cohort's updates move the model."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.cohort import Cohort
from fedcohort.difference import ControlVariates
from fedcohort.errors import AggregationError


def aggregate(
    model: ArrayLike,
    updates: ArrayLike,
    cohort: Cohort,
    *,
    server_lr: float = 1.0,
    memory: ControlVariates | None = None,
) -> NDArray[np.floating]:
    r"""Move the model by the cohort's weighted updates.

    .. math:: \theta' = \theta + \eta_s \sum_i w_i \Delta_i

    An empty cohort leaves the model as it is; so does the residual's share of it. With a
    ``memory`` the sum is the difference estimator's (:class:`fedcohort.Difference`): an empty
    cohort then moves the model by what is expected of all clients.

    Parameters
    ----------
    model
        The global model, any shape.
    updates
        Client model minus global model, one per client in the order of ``cohort.clients``;
        shape (len(cohort), \*model.shape).
    cohort
        Who was drawn, with what weight.
    server_lr
        The server's learning rate.
    memory
        What is remembered of the clients; the caller records the round's updates afterwards.

    Examples
    --------
    >>> cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 3]), cohort_size=4)
    >>> aggregate([1.0, 1.0], [[4.0, 0.0], [0.0, 4.0]], cohort).tolist()
    [2.0, 4.0]
    """
    theta = np.asarray(model)
    try:
        deltas: NDArray[np.floating] = np.asarray(updates, dtype=np.float64)
    except (ValueError, TypeError):  # rows of different lengths, or no numbers
        deltas = np.empty(0)
    if len(cohort) == 0:
        deltas = np.empty((0, *theta.shape))
    if deltas.shape != (len(cohort), *theta.shape):
        raise AggregationError(
            f"aggregate: updates must have shape {(len(cohort), *theta.shape)}, one per client of "
            f"the cohort; got {deltas.shape}. Order them as cohort.clients; a client that was "
            f"drawn twice sends one update."
        )
    if not np.isfinite(deltas).all():
        client = cohort.clients[np.argmin(np.isfinite(deltas.reshape(len(cohort), -1)).all(axis=1))]
        raise AggregationError(
            f"aggregate: updates must be finite; client {client} sent other values. "
            f"Leave its weight on the model: drop the client from the cohort."
        )
    # One layout: with others the matrix product adds up in another order.
    flat = np.ascontiguousarray(deltas.reshape(len(cohort), theta.size))
    if memory is None:
        moved = cohort.weights @ flat
    else:
        moved = memory.aggregate(cohort.clients, cohort.weights, flat)
    aggregated: NDArray[np.floating] = theta + server_lr * moved.reshape(theta.shape)
    return aggregated
