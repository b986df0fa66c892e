"""The one formula: how a cohort's updates move the model."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief, checked_number
from fedcohort._updates import Array, Layout, Rows, Update, double, finite_rows, floats, like
from fedcohort.cohort import Cohort
from fedcohort.errors import AggregationError

OWNER = "aggregate"


class EstimatorMemory(Protocol):
    """What the difference estimator remembers; see :class:`fedcohort.Difference`."""

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

    An empty cohort leaves the model as it is; so does the residual's share of it. With a
    ``memory`` the sum is the difference estimator's (:class:`fedcohort.Difference`): an empty
    cohort then moves the model by what is expected of all clients.

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
        Where updates, cohort and model do not fit each other, or a number is not finite.

    Examples
    --------
    >>> cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 3]), cohort_size=4)
    >>> aggregate([1.0, 1.0], [[4.0, 0.0], [0.0, 4.0]], cohort).tolist()
    [2.0, 4.0]
    """
    if not isinstance(cohort, Cohort):
        raise AggregationError(
            f"{OWNER}: cohort must be a Cohort; got {brief(cohort)}. Pass what draw or settle gave."
        )
    if memory is not None and not callable(getattr(memory, "aggregate", None)):
        raise AggregationError(
            f"{OWNER}: memory must be an UpdateMemory, another memory of a Difference, or None; "
            f"got {brief(memory)}. Pass one with the clients' importance."
        )
    rate = checked_number(OWNER, "server_lr", server_lr, least=0, error=AggregationError)
    rows = _rows(model, updates, cohort)
    finite = finite_rows(rows.flat)
    if not finite.all():
        raise AggregationError(
            f"{OWNER}: updates must be finite; client {cohort.ids[int(np.argmin(finite))]!r} sent "
            f"other values. Leave its weight on the model: drop the client from the cohort."
        )
    flat = rows.flat
    if isinstance(flat, np.ndarray):
        flat = np.ascontiguousarray(flat, dtype=np.float64)
    if memory is None:
        step = like(cohort.weights, flat) @ flat
    else:
        step = memory.aggregate(cohort.clients, cohort.weights, flat)
    step, counters = rate * step, rows.counted(rate * cohort.weights)
    if model is None:
        return rows.layout.unflat(step, counters)
    return _moved(OWNER, model, rows.layout, step, counters)


def _rows(model: Update | None, updates: Any, cohort: Cohort) -> Rows:
    """Flatten the updates; for an empty cohort, return no rows of the model's width."""
    if len(cohort) == 0 and model is not None:
        layout = Layout.of(OWNER, model)
        return Rows(layout, layout.flat(model)[None][:0], [])
    return Rows.of(OWNER, updates, len(cohort))


def _moved(
    owner: str, model: Update, layout: Layout, vector: Array, counters: Sequence[Array]
) -> Update:
    """Return the model plus an update in flat form, in the model's own structure.

    ``layout`` is the update's.
    """
    own = Layout.of(owner, model)
    if not layout.fits(own):
        raise AggregationError(
            f"{owner}: updates must have the arrays of the model, {own.size} numbers of shapes "
            f"{own.shapes}; got {layout.size} of shapes {layout.shapes}. Send the client's model "
            f"minus the model that it was sent."
        )
    by_name = own.keys is not None and layout.keys is not None and own.in_list == layout.in_list
    places = layout if by_name else own
    left = iter(counters)
    steps = {
        key: next(left, None) if place is None else vector[place]
        for key, place in zip(places.keys or (None,), places.places, strict=True)
    }
    leaves = list(own.leaves(model))

    def make(number: int, place: slice | None) -> Array:
        leaf = leaves[number][0]
        step = steps.get(None if own.keys is None else own.keys[number])
        if step is None:
            return leaf
        base = double(leaf).reshape(-1) if place is None else floats(leaf)
        # Numpy's wider type counts; tensors meet in the model's.
        same = isinstance(base, np.ndarray) and isinstance(step, np.ndarray)
        return base + (step if same else like(step, base)).reshape(-1)

    return own.structured(make)
