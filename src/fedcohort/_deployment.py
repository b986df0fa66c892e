"""Shared by the plug-ins: limits, claimed sizes, the check of a client's arrays, and patience."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from logging import Logger, getLogger
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief, checked_number, checked_whole
from fedcohort.errors import DeploymentError

log = getLogger("fedcohort")

#: Entries that are converted to float64 at a time, 8 MB: a whole model would need too much memory.
PIECE = 2**20
#: The largest number that float32 can hold.
LARGEST = float(np.finfo(np.float32).max)
#: The largest size: a million such clients and a thousand draws still fit 63 bits.
LARGEST_SIZE = 10**12
#: The metric of a train reply that is remembered as ``past_loss``.
LOSS_METRIC = "rms_loss"
#: Why a client failed that gave no answer in time.
SILENCE = "no answer: the deadline has passed"
#: By default, if at least ``MANY`` clients have samples, a claimed size counts up to this share
#: of all samples.
MANY, LARGEST_SHARE = 10, 0.5
#: With fewer clients a share beyond this is worth a warning.
ALARMING_SHARE = 0.9
#: Arrays by name; one that is computed when it is read saves memory.
Arrays = Mapping[str, NDArray[Any]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what the server accepts from clients, and on rounds that fail.

    Attributes
    ----------
    max_size, max_share
        Bounds on the samples that a client can claim, and on its share of all samples. Without
        ``max_share``, a client's own claim counts up to half of all samples if ten clients or
        more have samples.
    max_norm
        The largest norm of an update.
    max_draws
        Refuse a design that can draw one client more often in a round: with differential privacy
        a client that is drawn k times moves the aggregate by k shares.
    min_replies
        With fewer usable replies a round is void: the model stays.
    give_up_after
        End training after this many rounds in a row without a usable reply.
    """

    max_size: int | None = None
    max_share: float | None = None
    max_norm: float | None = None
    max_draws: int | None = None
    min_replies: int = 1
    give_up_after: int = 10

    def __post_init__(self) -> None:
        for name in ("max_size", "max_draws", "min_replies", "give_up_after"):
            value, can_be_none = getattr(self, name), name.startswith("max")
            if value is not None or not can_be_none:
                checked_whole("Limits", name, value, least=1, error=DeploymentError)
        if self.max_share is not None:
            _positive("max_share", self.max_share, most=1.0)
        if self.max_norm is not None:
            _positive("max_norm", self.max_norm)

    def check_cohort(self, owner: str, draws: int, error: type[DeploymentError]) -> None:
        """Refuse ``min_replies`` that no cohort of this many draws can reach."""
        if self.min_replies > draws:
            raise error(
                f"{owner}: min_replies must be at most the {draws} draws of a round; got "
                f"{self.min_replies}. Lower it, or draw more clients."
            )


def _positive(name: str, value: object, **limits: float) -> float:
    number = checked_number("Limits", name, value, least=0.0, error=DeploymentError, **limits)
    if number == 0:
        raise DeploymentError(
            f"Limits: {name} must be more than 0; got {brief(value)}. Use None for no limit."
        )
    return number


def claimed_size(size: object) -> int | str:
    """Return the samples that a client claims to have, or what is wrong with the claim."""
    if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
        return f"its size must be a whole number from 0 to 10^12; got {size!r:.50}"
    return size


def checked_sizes(owner: str, sizes: object, error: type[DeploymentError]) -> dict[str, int]:
    """Validate sizes by client, as the server knows them."""
    if not isinstance(sizes, Mapping):
        raise error(
            f"{owner}: sizes must map clients to samples; got {brief(sizes)}. Pass a dictionary, "
            f"or None to ask the clients."
        )
    for key, size in sizes.items():
        name = f"the size of client {str(key)!r:.50}"
        if checked_whole(owner, name, size, error=error) > LARGEST_SIZE:
            raise error(f"{owner}: {name} must be at most 10^12; got {size}.")
    return {str(key): int(size) for key, size in sizes.items()}


@final
@dataclass(frozen=True, slots=True)
class ClaimedSizes:
    """Sizes as they are claimed, before any bound."""

    keys: Sequence[str]
    sizes: Sequence[int]
    #: Whether the client itself claims the size; otherwise the server knows it.
    is_own_word: Sequence[bool]

    def bounded(self, limits: Limits, logger: Logger = log) -> NDArray[np.int64]:
        """Return the sizes that count, and log whom a bound concerns.

        Explicit bounds hold for everybody; where ``max_share`` is None, clients' own word is
        bounded by half of all samples if ten clients or more have samples.
        """
        claimed = np.array(self.sizes, dtype=object)  # a sum of claims must not wrap around
        sizes = claimed if limits.max_size is None else np.minimum(claimed, limits.max_size)
        share = limits.max_share
        sizes = self._believed(sizes, logger) if share is None else cut_to_share(sizes, share)
        for place in np.flatnonzero(sizes < claimed).tolist():
            logger.warning(
                "client %r claims %d samples; it counts as %d",
                self.keys[place],
                claimed[place],
                sizes[place],
            )
        return sizes.astype(np.int64)

    def _believed(self, sizes: NDArray[Any], logger: Logger) -> NDArray[Any]:
        """Bound the clients' own claims if there are many clients; otherwise only warn."""
        own_word = np.array(self.is_own_word, dtype=bool)
        n_positive, total = np.count_nonzero(sizes), int(sizes.sum())
        if n_positive >= MANY:
            return np.where(own_word, cut_to_share(sizes, LARGEST_SHARE, own_word), sizes)
        for place in np.flatnonzero(own_word & (sizes > ALARMING_SHARE * total)).tolist():
            if n_positive > 1:
                logger.warning(
                    "client %r claims %d of all %d samples: it will be drawn nearly always. Bound "
                    "max_share if that cannot be",
                    self.keys[place],
                    sizes[place],
                    total,
                )
        return sizes


def cut_to_share(
    sizes: NDArray[Any], share: float, is_bounded: NDArray[np.bool_] | bool = True
) -> NDArray[Any]:
    """Cut sizes at the largest number that is at most ``share`` of what they then sum to.

    If there are too few clients for so small a share, all get the same size. Sizes that are not
    bounded count in the sum as they are.
    """
    low, high = 0, int(sizes.max(initial=0))
    if high <= share * int(sizes.sum()):
        return sizes
    while low < high:
        middle = (low + high + 1) // 2
        total = int(np.where(is_bounded, np.minimum(sizes, middle), sizes).sum())
        low, high = (middle, high) if middle <= share * total else (low, middle - 1)
    return np.asarray(np.minimum(sizes, max(low, 1)))


class ModelArrays:
    """The model that was sent, as numpy arrays by name.

    Integer arrays beside floating-point ones are counters; an update's norm leaves them out.

    Attributes
    ----------
    arrays
        The arrays by name.
    dimension
        How many numbers an update has, without counters.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays: dict[str, NDArray[Any]] = dict(arrays)
        self._floats = [name for name, own in self.arrays.items() if own.dtype.kind == "f"]
        self._counted = self._floats or list(self.arrays)
        self.dimension = sum(self.arrays[name].size for name in self._counted)

    def at_zero(self) -> ModelArrays:
        """Return a model of zeros, to check updates instead of models."""
        return ModelArrays({name: np.zeros_like(own) for name, own in self.arrays.items()})

    def norm(self, after: Arrays) -> float:
        """Return the norm of an update, without counters; infinite where a type cannot hold it."""
        return math.hypot(*(self.norm_of_update(name, after[name]) for name in self._floats))

    def norm_of_update(self, name: str, after: NDArray[Any]) -> float:
        """Return the norm of one array's update; infinite where its type cannot hold it."""
        own = self.arrays[name]
        start, end, square = own.reshape(-1), after.reshape(-1), 0.0
        with np.errstate(all="ignore"):
            for first in range(0, start.size, PIECE):
                place = slice(first, first + PIECE)
                step = np.subtract(end[place].astype(np.float64), start[place])
                square += float(np.dot(step, step))
        largest = float(np.finfo(np.result_type(own.dtype, np.float32)).max)
        return math.sqrt(square) if math.sqrt(square) <= largest else math.inf

    def step(self, name: str, after: NDArray[Any]) -> NDArray[Any]:
        """Return one array's update, at least in float32; a counter's in integers."""
        own = self.arrays[name]
        if own.dtype.kind != "f":
            return np.asarray(after.astype(np.int64) - own.astype(np.int64))
        with np.errstate(all="ignore"):
            return np.asarray(np.subtract(after, own, dtype=np.result_type(own, np.float32)))

    def plus(self, update: Arrays) -> dict[str, NDArray[Any]] | None:
        """Return the model plus an update; None where its types cannot hold the sum."""
        arrays = {}
        for name, own in self.arrays.items():
            with np.errstate(all="ignore"):
                values = own + update[name]
                values = np.asarray(np.rint(values) if own.dtype.kind in "iub" else values)
                values = values.astype(own.dtype, copy=False)
            if not is_finite(values):
                return None
            arrays[name] = values
        return arrays

    def unflat(self, vector: NDArray[np.floating]) -> dict[str, NDArray[Any]]:
        """Return a flat update as arrays; counters stay."""
        arrays = {name: np.zeros_like(own) for name, own in self.arrays.items()}
        start = 0
        for name in self._counted:
            own = self.arrays[name]
            arrays[name] = vector[start : start + own.size].reshape(own.shape)
            start += own.size
        return arrays


@final
class ClientUpdate(Mapping[str, NDArray[Any]]):
    """A client's model minus the one that it was sent; an array is computed when it is read."""

    def __init__(self, sent: ModelArrays, arrays: Arrays) -> None:
        self._sent, self._arrays = sent, arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._sent.step(name, self._arrays[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent.arrays)

    def __len__(self) -> int:
        return len(self._sent.arrays)


@final
@dataclass(frozen=True, slots=True)
class ArrayCheck:
    """Checks whether a client's arrays can be used."""

    #: The largest norm of an update; None for any.
    max_norm: float | None = None
    #: Whether the memory keeps updates, in float32, and sums of their entries.
    is_remembered: bool = False

    def __call__(self, arrays: Arrays, sent: ModelArrays) -> dict[str, NDArray[Any]] | str:
        """Return the arrays that must be replaced by others of the model's types, or a reason."""
        cast = cast_to_model(arrays, sent)
        if isinstance(cast, str):
            return cast
        norm = sent.norm(ChainMap(cast, arrays))  # type: ignore[arg-type]  # it only reads
        if not math.isfinite(norm):
            return "is not finite, or too large for its type"
        if self.max_norm is not None and norm > self.max_norm:
            return f"its update is too large: its norm is {norm:g}, more than {self.max_norm:g}"
        # No sum of entries is larger than sqrt(dimension) times the norm.
        if self.is_remembered and norm * math.sqrt(sent.dimension) > LARGEST:
            return "is too large for float32"
        return cast


def cast_to_model(arrays: Arrays, sent: ModelArrays) -> dict[str, NDArray[Any]] | str:
    """Return those arrays that had another float type, in the model's, or why they do not fit."""
    if list(arrays) != list(sent.arrays):
        return "has other arrays than the model"
    cast: dict[str, NDArray[Any]] = {}
    for name, before in sent.arrays.items():
        try:
            after = arrays[name]
        except Exception as error:  # bytes that are not an array
            return f"{name} cannot be read: {type(error).__name__}"
        is_same_kind = after.dtype == before.dtype or after.dtype.kind == before.dtype.kind == "f"
        if after.shape != before.shape or not is_same_kind:
            return (
                f"has other arrays than the model: {name} must be {before.dtype} of shape "
                f"{before.shape}; got {after.dtype} of shape {after.shape}"
            )
        if after.dtype != before.dtype:
            with np.errstate(over="ignore"):
                values = after.astype(before.dtype)
            if is_finite(after) and not is_finite(values):
                return f"is too large for its type: {name} overflows {before.dtype}"
            cast[name] = values
    return cast


@final
class Patience:
    """Says which rounds are void, and gives up after too many in a row without a usable reply."""

    def __init__(self, owner: str, limits: Limits, error: type[DeploymentError]) -> None:
        self._owner, self._limits, self._error = owner, limits, error
        self._fruitless, self._kinds, self._example = 0, Counter[str](), dict[str, str]()

    def is_void(self, round_: int, n_answered: int, logger: Logger = log) -> bool:
        """Say whether a round has too few usable replies, and log it."""
        needed = self._limits.min_replies
        if n_answered < needed:
            logger.warning(
                "round %d is void, the model stays: %d usable replies, %d are needed",
                *(round_, n_answered, needed),
            )
        return n_answered < needed

    def end_round(self, answered: Sized, reasons: Iterable[str]) -> None:
        """Count a round without a usable reply, for these reasons; a usable reply ends the row.

        A round without reasons counts neither way: a design may draw an empty cohort.
        """
        found = Counter[str]()
        for reason in () if answered else reasons:
            kind = reason.partition(":")[0]
            found[kind] += 1
            self._example.setdefault(kind, reason)
        if answered:
            self._fruitless, self._kinds, self._example = 0, found, {}
        self._fruitless, self._kinds = self._fruitless + bool(found), self._kinds + found
        if self._fruitless >= self._limits.give_up_after:
            counted = [
                f"{n} times {self._example[kind]!r:.150}" for kind, n in self._kinds.most_common()
            ]
            raise self._error(
                f"{self._owner}: {self._fruitless} rounds in a row had no usable reply: "
                f"{', '.join(counted)}. Fix the clients, or raise Limits(give_up_after=...)."
            )


def log_reasons(
    failed: Mapping[str, str],
    doing: str,
    n_asked: int,
    who: str = "clients",
    *,
    logger: Logger = log,
) -> None:
    """Log why clients failed, every reason once."""
    clients: dict[str, list[str]] = {}
    for key, reason in failed.items():
        clients.setdefault(reason, []).append(key)
    for reason, keys in clients.items():
        logger.warning(
            "%s: %d of %d %s failed (%.200s): %.200s",
            *(doing, len(keys), n_asked, who, ", ".join(keys), reason),
        )


def is_finite(values: NDArray[Any]) -> bool:
    """Whether every entry is finite."""
    return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())


def is_finite_number(value: object) -> bool:
    """Whether a metric is one number, and finite."""
    return isinstance(value, (int, float)) and math.isfinite(value)
