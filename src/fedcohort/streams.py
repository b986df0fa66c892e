"""Random streams with addresses: round 400 can be replayed without rounds 0-399."""

from enum import IntEnum, unique

import numpy as np


@unique
class Stream(IntEnum):
    """What a stream is for. Numbers are part of every address: add new ones, never change one."""

    TIES = 0
    COHORT = 1


def stream(
    seed: int, *, round_: int = 0, use: Stream, client: int | None = None
) -> np.random.Generator:
    """Return the generator at the address (seed, use, round, client).

    Streams at different addresses are independent; a new consumer shifts nobody's numbers.

    Examples
    --------
    >>> first = stream(7, round_=400, use=Stream.COHORT).integers(1000, size=3)
    >>> again = stream(7, round_=400, use=Stream.COHORT).integers(1000, size=3)
    >>> (first == again).all()
    np.True_
    """
    address = (int(use), round_, 0 if client is None else client + 1)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=address))
