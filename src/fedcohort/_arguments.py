"""Checks of arguments that several nouns share; each raises or returns."""

from collections.abc import Hashable, Iterable
from difflib import get_close_matches
from operator import index

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DesignError

#: Units are 64-bit signed integers: a whole line of ``m * M`` units must stay below this.
UNIT_LIMIT = 2**63
#: A cohort has an entry for every draw.
LARGEST_COHORT = 10**7


def checked_cohort_size(owner: str, cohort_size: int) -> int:
    """Validate a positive integer."""
    try:
        size = index(cohort_size)
    except TypeError:
        size = 0
    if isinstance(cohort_size, (bool, np.bool_)) or size < 1:
        raise DesignError(
            f"{owner}: cohort_size must be a whole number of at least 1; got {cohort_size!r}. "
            f"Pass the number of draws in a round."
        )
    if size > LARGEST_COHORT:
        raise DesignError(
            f"{owner}: cohort_size must be at most {LARGEST_COHORT}; got {size}. "
            f"Lower it: more draws than that fit no memory."
        )
    return size


def checked_rng(owner: str, rng: np.random.Generator) -> np.random.Generator:
    """Validate a numpy generator."""
    if not isinstance(rng, np.random.Generator):
        raise DesignError(
            f"{owner}: rng must be a numpy.random.Generator; got {type(rng).__name__}. "
            f"Pass numpy.random.default_rng(seed)."
        )
    return rng


def checked_rounds(owner: str, rounds: int) -> int:
    """Validate a non-negative integer."""
    try:
        number = index(rounds)
    except TypeError:
        number = -1
    if number < 0:
        raise DesignError(
            f"{owner}: rounds must be a whole number of at least 0; got {rounds!r}. "
            f"Pass how many cohorts to draw."
        )
    return number


def checked_choice(owner: str, keyword: str, value: str, choices: Iterable[str]) -> None:
    """Validate one of ``choices``."""
    known = list(choices)
    if value not in known:
        raise DesignError(
            f"{owner}: {keyword} must be one of {', '.join(known)}; got {value!r}."
            f"{did_you_mean(value, known)}"
        )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known word, or nothing."""
    nearest = get_close_matches(str(word), list(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def group_numbers(owner: str, groups: Iterable[Hashable], n_clients: int) -> NDArray[np.int64]:
    """Give one label per client numbers from 0, as they come."""
    known: dict[Hashable, int] = {}
    try:
        numbers = [known.setdefault(label, len(known)) for label in groups]
    except TypeError:
        numbers = []
    if len(numbers) != n_clients:
        raise DesignError(
            f"{owner}: groups must be one label per client, {n_clients}; got {len(numbers)} that "
            f"can be used. Label every client with a number or a name."
        )
    return np.array(numbers)
