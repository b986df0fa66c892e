"""Random numbers with addresses, and subsets of equal probability."""

import secrets
from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import as_whole, brief, checked_rng, checked_whole, suggest_names
from fedcohort.errors import FedcohortError, StreamError

#: A seed, a generator that is asked for one, or None for a random one.
Seed = int | np.random.Generator | None
#: As many bits as numpy's own seeds have; files keep them.
LARGEST_SEED = 2**128


@unique
class Stream(IntEnum):
    """The purpose of a stream. Its number is part of every address: add new ones, change none."""

    TIES = 0
    COHORT = 1
    SKETCH = 2
    PARTITION = 3
    MODEL = 4
    BATCHES = 5
    DROPOUT = 6
    NUMBERING = 7
    REDRAW = 8
    SYNTHETIC = 9
    CANDIDATES = 10
    DEVICES = 11
    FAILURES = 12
    EVALUATION = 13
    FEATURES = 14
    FLOOR = 15
    PRESENCE = 16
    CHANCES = 17


def checked_seed(owner: str, seed: Seed, error: type[FedcohortError] = StreamError) -> int:
    """Return the integer that ``seed`` stands for.

    Examples
    --------
    >>> checked_seed("Run", 7)
    7
    """
    if seed is None:
        return secrets.randbits(63)
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**63))
    whole = as_whole(seed)
    if whole is not None and 0 <= whole < LARGEST_SEED:
        return whole
    raise error(
        f"{owner}: seed must be a whole number of at least 0, a generator or None; got "
        f"{brief(seed)}. Pass a seed below 2^128, such as 0."
    )


def stream(
    seed: int, *, round_: int = 0, use: Stream, client: int | None = None
) -> np.random.Generator:
    """Return the generator at the address (seed, use, round, client).

    Streams at different addresses are independent. A new consumer does not shift the others.

    Examples
    --------
    >>> first = stream(7, round_=400, use=Stream.COHORT).integers(1000, size=3)
    >>> again = stream(7, round_=400, use=Stream.COHORT).integers(1000, size=3)
    >>> (first == again).all()
    np.True_
    """
    whole = [as_whole(each) for each in (seed, round_, 0 if client is None else client)]
    numbers = [each for each in whole if each is not None and each >= 0]
    if len(numbers) < len(whole) or not isinstance(use, Stream):
        given = ", ".join(map(brief, (seed, round_, client, use)))
        raise StreamError(
            f"stream: seed, round_ and client must be 0 or more; got {given}. "
            f"Pass for example stream(0, round_=3, use=Stream.COHORT)."
        )
    entropy, when, who = numbers
    address = (int(use), when, 0 if client is None else who + 1)
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=address))


#: Up to this many members comparing all pairs of them is faster than a call for every subset.
FEW = 64


def draw_subsets(rng: np.random.Generator, n: int, size: int, times: int) -> NDArray[np.int64]:
    """Draw ``size`` distinct numbers below n, ``times`` times; shape (times, size), not sorted.

    All subsets are equally likely, exactly. Drawing k times and then l times gives the same as
    drawing k + l times.

    Examples
    --------
    >>> draw_subsets(np.random.default_rng(0), n=3, size=3, times=1).tolist()
    [[0, 1, 2]]
    """
    rng = checked_rng("draw_subsets", rng)
    n, times = _whole("n", n), _whole("times", times)
    size = _whole("size", size, most=n)
    return (_few if size <= FEW else _many)(rng, n, size, times)


def _whole(name: str, value: object, most: int | None = None) -> int:
    return checked_whole("draw_subsets", name, value, most=most, error=StreamError)


def _few(rng: np.random.Generator, n: int, size: int, times: int) -> NDArray[np.int64]:
    """All subsets at once: Floyd's algorithm, O(size^2) each.

    Step k draws t from 0 ... n - size + k and takes it, or n - size + k if t is taken already.
    """
    last = np.arange(n - size, n)
    drawn = rng.integers(last + 1, size=(times, size)).T.copy()
    for k in range(1, size):
        taken = (drawn[:k] == drawn[k]).any(axis=0)
        drawn[k, taken] = last[k]
    return drawn.T


def _many(rng: np.random.Generator, n: int, size: int, times: int) -> NDArray[np.int64]:
    """One subset after the other, O(size) each."""
    drawn = np.empty((times, size), dtype=np.int64)
    for row in drawn:
        row[:] = rng.choice(n, size, replace=False, shuffle=False)
    return drawn


suggest_names(__name__, ("checked_seed", "draw_subsets", "stream"))
