"""Arrays: the model that was sent, and a client's arrays, read once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._updates import (
    as_numpy,
    counted,
    counters_of,
    in_type,
    is_finite,
    is_tensor,
    like,
)
from fedcohort.deployment.limits import Limits

#: Entries that are converted to float64 at a time, 8 MB: a whole model would need too much memory.
PIECE = 2**20
#: The largest number that float32 can hold.
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
#: Arrays by name; a mapping can decode each when it is read.
Arrays = Mapping[str, NDArray[Any]]


def as_arrays(params: Mapping[Any, Any]) -> dict[str, NDArray[Any]]:
    """Return parameters, numpy or torch, as numpy arrays."""
    return {str(name): as_numpy(value) for name, value in params.items()}


def like_parameters(params: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name, each in the kind (numpy or torch) and type of its parameter."""
    kinds = {name: own if is_tensor(own) else np.asarray(own) for name, own in params.items()}
    return {name: like(as_numpy(value), kinds[name]) for name, value in values.items()}


@final
class LazyArrays(Mapping[str, NDArray[Any]]):
    """Arrays by name that are decoded when they are read.

    Parameters
    ----------
    source
        What the framework holds, by name.
    decode
        Returns one of its values as a numpy array; by default one of numpy or torch.
    """

    def __init__(
        self, source: Mapping[str, Any], decode: Callable[[Any], NDArray[Any]] = as_numpy
    ) -> None:
        self.source, self._decode = source, decode

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._decode(self.source[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.source)

    def __len__(self) -> int:
        return len(self.source)


class ModelArrays:
    """The model that was sent, as numpy arrays by name.

    Integer arrays beside floating-point ones are counters; an update's norm leaves them out.

    Attributes
    ----------
    arrays
        The arrays by name.
    dimension
        How many numbers an update has, without counters.
    counters
        The names of the counters.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays: dict[str, NDArray[Any]] = dict(arrays)
        self.counters = counters_of(self.arrays)
        self.dimension = sum(own.size for k, own in self.arrays.items() if k not in self.counters)

    def at_zero(self) -> ModelArrays:
        """Return a model of zeros, to check updates instead of models."""
        return ModelArrays({name: np.zeros_like(own) for name, own in self.arrays.items()})

    def norm_of_update(self, name: str, after: NDArray[Any]) -> float:
        """Return the norm of one array's update; infinite where its type cannot hold it.

        0 for a counter.
        """
        own = self.arrays[name]
        if name in self.counters:
            return 0.0
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
        with np.errstate(all="ignore"):
            if own.dtype.kind != "f":
                return np.asarray(after.astype(np.int64) - own.astype(np.int64))
            return np.asarray(np.subtract(after, own, dtype=np.result_type(own, np.float32)))

    def plus(self, update: Arrays) -> dict[str, NDArray[Any]] | None:
        """Return the model plus an update; None where its types cannot hold the sum."""
        arrays = {}
        for name, own in self.arrays.items():
            if name in self.counters:
                values = self.moved_counter(name, update[name])
            else:
                with np.errstate(all="ignore"):
                    values = in_type(own + update[name], own)
            if values is None:
                return None
            arrays[name] = values
        return arrays

    def moved_counter(self, name: str, step: NDArray[Any]) -> NDArray[Any] | None:
        """Return a counter plus its rounded step, exactly; None where its type cannot hold it."""
        own = self.arrays[name]
        moved: NDArray[Any] | None = in_type(counted(own, step).reshape(own.shape), own)
        return moved


@final
class ClientUpdate(Mapping[str, NDArray[Any]]):
    """A client's model minus the one that it was sent; an array is computed when it is read.

    Attributes
    ----------
    sent
        The model that the client was sent.
    arrays
        The client's model, as it came.
    held
        Those of its arrays that replace the ones that came: in the model's type, or counters,
        which are small and read more often.
    """

    def __init__(self, sent: ModelArrays, arrays: Arrays, held: Arrays | None = None) -> None:
        self.sent, self.arrays, self.held = sent, arrays, held or {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        after = self.held[name] if name in self.held else self.arrays[name]
        return self.sent.step(name, after)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sent.arrays)

    def __len__(self) -> int:
        return len(self.sent.arrays)

    def scaled_model(self, factor: float) -> dict[str, NDArray[Any]]:
        """Return the model that was sent plus the update times a factor of at most 1."""
        # Not checked: it lies between the model that was sent and the client's.
        sent = self.sent.arrays.items()
        return {name: like(own + factor * self[name], own) for name, own in sent}


class CheckedArrays(NamedTuple):
    """Arrays that can be used: the norm of their update, and those to hold for it."""

    norm: float
    held: dict[str, NDArray[Any]]


@final
@dataclass(frozen=True, slots=True)
class ArrayCheck:
    """Checks whether a client's arrays can be used, reading each once.

    Attributes
    ----------
    limits
        Bounds the changes of integers.
    is_remembered
        Whether the memory keeps updates, in float32, and sums of their entries.
    """

    limits: Limits = field(default_factory=Limits)
    is_remembered: bool = False

    def __call__(self, arrays: Arrays, sent: ModelArrays) -> CheckedArrays | str:
        """Return the norm of the update and what it holds, or why the arrays cannot be used.

        Arrays are matched to the model's by name; their order does not matter.
        """
        if arrays.keys() != sent.arrays.keys():
            return "has other arrays than the model"
        held, norms = dict[str, NDArray[Any]](), list[float]()
        for name, before in sent.arrays.items():
            after = arrays[name]
            typed = _in_type_of(name, before, after)
            if isinstance(typed, str):
                return typed
            if typed is not after or name in sent.counters:
                held[name] = typed
            norms.append(sent.norm_of_update(name, typed))
        norm = math.hypot(*norms)
        return self._problem(norm, held, sent) or CheckedArrays(norm, held)

    def _problem(self, norm: float, held: Arrays, sent: ModelArrays) -> str | None:
        """Return what is wrong with an update of this norm and its counters."""
        if not math.isfinite(norm):
            return "is not finite, or too large for its type"
        for name in sent.counters:
            # As Python integers, which are exact.
            moves = np.asarray(held[name].astype(object) - sent.arrays[name].astype(object))
            most = max(map(abs, moves.ravel().tolist()), default=0)
            if most > self.limits.max_count:
                return f"its {name} moves too far: by {most:g}, more than {self.limits.max_count:g}"
        # No sum of entries is larger than sqrt(dimension) times the norm.
        if self.is_remembered and norm * math.sqrt(sent.dimension) > LARGEST_FLOAT32:
            return "is too large for float32"
        return None


def _in_type_of(name: str, before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any] | str:
    """Return a client's array in the type of the model's, or why it does not fit."""
    is_same_kind = after.dtype == before.dtype or after.dtype.kind == before.dtype.kind == "f"
    if after.shape != before.shape or not is_same_kind:
        return (
            f"has other arrays than the model: {name} must be {before.dtype} of shape "
            f"{before.shape}; got {after.dtype} of shape {after.shape}"
        )
    with np.errstate(over="ignore"):
        values = after.astype(before.dtype, copy=False)
    if values is not after and is_finite(after) and not is_finite(values):
        return f"is too large for its type: {name} overflows {before.dtype}"
    return values
