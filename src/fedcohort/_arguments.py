"""Shared checks of arguments: each returns the valid value, or raises."""

import math
from collections.abc import Hashable, Iterable
from difflib import get_close_matches
from numbers import Real
from operator import index
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DesignError, FedcohortError, SelectorError

#: Units are 64-bit signed integers: a whole line of ``m * M`` units must stay below this.
UNIT_LIMIT = 2**63
#: A generator, an integer that seeds one, or None for a random one.
Rng = np.random.Generator | int | None
#: The device to compute on; "auto" takes a GPU if there is one.
COMPUTE_DEVICES = ("auto", "cpu", "cuda")
#: A client's id.
Id = str | int
#: A cohort stores an entry for every draw; more would not fit into memory.
LARGEST_COHORT = 10**7
#: Cohorts that are drawn at once.
LARGEST_ROUNDS = 10**9


def checked_cohort_size(owner: str, cohort_size: object) -> int:
    """Validate a positive integer."""
    way_out = "Pass the number of draws in a round."
    return checked_whole(
        owner, "cohort_size", cohort_size, least=1, most=LARGEST_COHORT, way_out=way_out
    )


def as_whole(value: object) -> int | None:
    """Return an integer of any type as Python's own; None for anything else, True and False too."""
    try:
        return None if isinstance(value, (bool, np.bool_)) else index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def checked_whole(
    owner: str,
    name: str,
    value: object,
    *,
    least: int | None = 0,
    most: int | None = None,
    way_out: str = "Pass an integer.",
    error: type[FedcohortError] = DesignError,
) -> int:
    """Validate a 64-bit integer, from ``least`` to ``most`` where these are given."""
    whole = as_whole(value)
    if whole is None or (least is not None and whole < least):
        limit = "" if least is None else f" of at least {least}"
        raise error(f"{owner}: {name} must be a whole number{limit}; got {brief(value)}. {way_out}")
    if abs(whole) >= UNIT_LIMIT or (most is not None and whole > most):
        limit = "a 64-bit integer, below 2^63" if most is None else f"at most {most}"
        raise error(f"{owner}: {name} must be {limit}; got {brief(value)}. Lower it.")
    return whole


def checked_number(
    owner: str,
    name: str,
    value: object,
    *,
    least: float,
    most: float = math.inf,
    error: type[FedcohortError] = DesignError,
) -> float:
    """Validate a finite number from ``least`` to ``most``; True and False are rejected."""
    is_number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    number = _float(value) if is_number else math.nan
    if not (least <= number <= most and math.isfinite(number)):  # NaN does not pass
        limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise error(
            f"{owner}: {name} must be a number {limits}; got {brief(value)}. "
            f"Pass one in these limits."
        )
    return number


def _float(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        return math.inf


def checked_flag(
    owner: str, name: str, value: object, *, error: type[FedcohortError] = DesignError
) -> bool:
    """Validate True or False; the string "False" is neither."""
    if not isinstance(value, (bool, np.bool_)):
        raise error(f"{owner}: {name} must be True or False; got {brief(value)}. Pass a bool.")
    return bool(value)


def as_array(values: object) -> NDArray[Any]:
    """Return an array; rows of different lengths give an empty matrix of objects."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.empty((0, 0), dtype=object)


def brief(value: object) -> str:
    """Write a value in one short line, for messages."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # integers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def checked_rng(owner: str, rng: Rng) -> np.random.Generator:
    """Return the generator that ``rng`` stands for: itself, one seeded by an integer, a new one."""
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None:
        return np.random.default_rng()
    seed = as_whole(rng)
    if seed is None or seed < 0:
        raise DesignError(
            f"{owner}: rng must be an integer of at least 0, a numpy.random.Generator or None; "
            f"got {brief(rng)}. Pass a seed, or numpy.random.default_rng(seed)."
        )
    return np.random.default_rng(seed)


def checked_rounds(owner: str, rounds: object) -> int:
    """Validate a non-negative integer."""
    way_out = "Pass how many cohorts to draw."
    return checked_whole(owner, "rounds", rounds, most=LARGEST_ROUNDS, way_out=way_out)


def checked_choice(
    owner: str,
    keyword: str,
    value: object,
    choices: Iterable[str],
    *,
    error: type[FedcohortError] = DesignError,
) -> None:
    """Validate one of ``choices``."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise error(
            f"{owner}: {keyword} must be one of {', '.join(known)}; got {brief(value)}."
            f"{did_you_mean(value, known)}"
        )


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the nearest known word, or nothing."""
    nearest = get_close_matches(word, list(known), n=1) if isinstance(word, str) else []
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def as_name(value: object) -> Id | None:
    """Return a string or an integer of any type as Python's own; None for anything else."""
    return str(value) if isinstance(value, str) else as_whole(value)


def checked_id(value: object) -> Id:
    """Validate a client's id: a string or an integer."""
    found = as_name(value)
    if found is None:
        raise SelectorError(
            f"Selector: ids must be strings or integers; got {brief(value)}. Name clients by these."
        )
    return found


def checked_ids(values: Iterable[object]) -> list[Id]:
    """Validate clients' ids."""
    ids: list[Any] = list(values)
    # Fast for a million ids; numpy's numbers and subclasses of str are checked one by one.
    return ids if set(map(type, ids)) <= {str, int} else [checked_id(each) for each in ids]


def checked_list(ids: object) -> list[Any]:
    """Validate a list of ids, or anything that can be turned into one."""
    if not is_list(ids):
        raise SelectorError(
            f"Selector: needs a list of ids; got {brief(ids)}. Put a single id into a list."
        )
    return list(ids)


def is_list(values: object) -> TypeGuard[Iterable[object]]:
    """Whether a value is a list or the like; a string is not."""
    is_point = isinstance(values, np.ndarray) and values.ndim == 0
    return isinstance(values, Iterable) and not isinstance(values, (str, bytes)) and not is_point


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
