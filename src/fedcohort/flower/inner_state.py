"""What strategies that aggregate carry from round to round: moments, momentum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

#: Attributes of FedAdam, FedYogi and FedAdagrad, and of FedAvgM.
MOMENTS = ("m_t", "v_t")
MOMENTUM = ("momentum_vector", "current_arrays")
#: Between an attribute's name and an array's.
DOT = "."


def state_of(inner: FedAvg) -> dict[str, Any]:
    """Return the strategy's state by attribute; it replaces these values, never changes them."""
    names = [*(MOMENTS if hasattr(inner, "m_t") else ())]
    names += MOMENTUM if hasattr(inner, "momentum_vector") else ()
    return {name: getattr(inner, name) for name in names}


def put_back(inner: FedAvg, state: Mapping[str, Any]) -> None:
    """Give the strategy a state that :func:`state_of` or :func:`unpacked` returned."""
    for name, value in state.items():
        setattr(inner, name, value)


def is_finite_state(inner: FedAvg) -> bool:
    """Whether the strategy can go on with its state."""
    return all(np.isfinite(array).all() for _, array in _arrays(state_of(inner)))


def packed(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the state as named arrays, for a file."""
    return dict(_arrays(state))


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the state that :func:`packed` made arrays of."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        attribute, _, part = name.partition(DOT)
        found.setdefault(attribute, {})[part] = array
    return {attribute: _value(attribute, parts) for attribute, parts in found.items()}


def _value(attribute: str, parts: dict[str, NDArray[Any]]) -> Any:
    if attribute == "current_arrays":
        return ArrayRecord({name: Array(array) for name, array in parts.items()})
    return list(parts.values()) if attribute == "momentum_vector" else parts


def _arrays(state: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    for attribute, value in state.items():
        if value is None:
            continue
        parts = value.items() if hasattr(value, "items") else enumerate(value)
        for name, array in parts:
            whole = array.numpy() if isinstance(array, Array) else np.asarray(array)
            yield f"{attribute}{DOT}{name}", whole
