"""Which samples every client sees in every step: from the client's own streams.

A lane is one client's training in one round of one run. Its randomness has the address (seed,
round, purpose, client): neither the lane's place in the batch nor the rest of the cohort matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort._subsets import draw_subsets
from fedcohort.simulation.local_training import LocalTraining
from fedcohort.streams import Stream, stream

#: The positions of every batch, padded with 0, and the batches' lengths.
Batches = tuple[NDArray[np.int64], NDArray[np.int64]]


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
    # Runs with one seed share every client's randomness: a client is laid out once.
    known: dict[tuple[int, int, int], Batches] = {}
    batches = []
    for lane in lanes:
        whose = (lane.seed, lane.client, len(lane.samples))
        if whose not in known:
            known[whose] = _lane_batches(lane, training, round_)
        batches.append(known[whose])
    steps = max(len(lengths) for _, lengths in batches)
    shape = (steps, len(lanes), training.batch_size)
    positions = np.zeros(shape, dtype=np.int64)
    weights = np.zeros(shape, dtype=np.float32)
    active = np.zeros(shape[:2], dtype=np.float32)
    keys = np.zeros((*shape[:2], n_keys), dtype=np.int32)
    places = np.arange(training.batch_size)
    for k, (lane, (rows, lengths)) in enumerate(zip(lanes, batches, strict=True)):
        taken = len(lengths)
        active[:taken, k] = 1
        positions[:taken, k, : rows.shape[1]] = rows
        weights[:taken, k] = (places < lengths[:, None]) / lengths[:, None]
        if n_keys:
            rng = stream(lane.seed, round_=round_, use=Stream.DROPOUT, client=lane.client)
            # Key by key: what comes first does not depend on how many follow.
            words = rng.integers(-(2**31), 2**31, size=(n_keys, taken), dtype=np.int32)
            keys[:taken, k] = words.T
    return Schedule(positions, weights, active, keys)


def _lane_batches(lane: Lane, training: LocalTraining, round_: int) -> Batches:
    """Return the positions of every batch, padded with 0, and the batches' lengths."""
    rng = stream(lane.seed, round_=round_, use=Stream.BATCHES, client=lane.client)
    n, most = len(lane.samples), training.batch_size
    if training.steps is not None:
        batch = min(most, n)
        rows = draw_subsets(rng, n, batch, training.steps)
        return rows, np.full(training.steps, batch)
    assert training.epochs is not None  # for mypy: LocalTraining has one of the two
    per_epoch = -(-n // most)
    padded = np.zeros((training.epochs, per_epoch * most), dtype=np.int64)
    for row in padded:
        row[:n] = rng.permutation(n)
    lengths = np.minimum(n - most * np.arange(per_epoch), most)
    return padded.reshape(-1, most), np.tile(lengths, training.epochs)
