"""Which samples every client sees in every step: from the client's own streams.

A lane is one client's training in one round of one run. Its randomness has the address (seed,
round, purpose, client): neither the lane's place in the batch nor the rest of the cohort matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.simulation.local_training import LocalTraining
from fedcohort.streams import Stream, stream


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One client's training: whose samples, from which model, with whose randomness."""

    #: Row of the model that the client starts from.
    model: int
    seed: int
    client: int
    #: Positions of the client's samples in the data set.
    samples: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Every step of every lane.

    Attributes
    ----------
    positions
        Within the lane's own samples, shape (steps, lanes, batch_size); 0 where there is none.
    sample_weights
        1 / batch for the samples of a step's batch, 0 elsewhere; same shape, float32.
    active
        1 where the lane takes the step, 0 where it has finished; shape (steps, lanes), float32.
    keys
        Random words for dropout masks, shape (steps, lanes, n_keys), int32.
    """

    positions: NDArray[np.int64]
    sample_weights: NDArray[np.float32]
    active: NDArray[np.float32]
    keys: NDArray[np.int32]


def make_schedule(
    lanes: Sequence[Lane], training: LocalTraining, *, round_: int, n_keys: int
) -> Schedule:
    """Lay out the round: as many steps as the busiest lane takes."""
    batches = [_lane_batches(lane, training, round_) for lane in lanes]
    steps = max(len(rows) for rows in batches)
    shape = (steps, len(lanes), training.batch_size)
    positions = np.zeros(shape, dtype=np.int64)
    weights = np.zeros(shape, dtype=np.float32)
    active = np.zeros(shape[:2], dtype=np.float32)
    keys = np.zeros((*shape[:2], n_keys), dtype=np.int32)
    for k, (lane, rows) in enumerate(zip(lanes, batches, strict=True)):
        active[: len(rows), k] = 1
        # Batches of one lane are equally long, but for the last of an epoch.
        lengths = np.array([len(row) for row in rows])
        for length in np.unique(lengths):
            chosen = np.flatnonzero(lengths == length)
            positions[chosen, k, :length] = np.array([rows[step] for step in chosen.tolist()])
            weights[chosen, k, :length] = 1 / length
        if n_keys:
            rng = stream(lane.seed, round_=round_, use=Stream.DROPOUT, client=lane.client)
            keys[: len(rows), k] = rng.integers(
                -(2**31), 2**31, size=(len(rows), n_keys), dtype=np.int32
            )
    return Schedule(positions, weights, active, keys)


def _lane_batches(
    lane: Lane, training: LocalTraining, round_: int
) -> Sequence[NDArray[np.integer]]:
    """Return the positions of every batch."""
    rng = stream(lane.seed, round_=round_, use=Stream.BATCHES, client=lane.client)
    n = len(lane.samples)
    if training.steps is not None:
        return list(_distinct_batches(rng, n, min(training.batch_size, n), training.steps))
    assert training.epochs is not None  # for mypy: LocalTraining has one of the two
    rows: list[NDArray[np.integer]] = []
    for _ in range(training.epochs):
        order = rng.permutation(n)
        rows.extend(np.split(order, range(training.batch_size, n, training.batch_size)))
    return rows


def _distinct_batches(
    rng: np.random.Generator, n: int, batch: int, steps: int
) -> NDArray[np.integer]:
    """Draw ``steps`` sets of ``batch`` distinct positions, all subsets equally likely.

    Random keys, the smallest ones taken: exact but for two equal keys, which have 32 bits.
    """
    if batch == n:
        return np.broadcast_to(np.arange(n), (steps, n))
    keys = rng.integers(2**32, size=(steps, n), dtype=np.uint32)
    return np.argpartition(keys, batch, axis=1)[:, :batch]
