"""A client's arrays are matched to the model's by name, and read once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedcohort.deployment import ArrayCheck, Limits, ModelArrays

MODEL = {"weights": np.zeros((2, 3), np.float32), "bias": np.zeros(3, np.float32)}


def sent() -> ModelArrays:
    return ModelArrays(MODEL)


def backwards(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: arrays[name] for name in reversed(arrays)}


def test_arrays_in_another_order_fit_the_model() -> None:
    assert ArrayCheck()(backwards(MODEL), sent()) == (0.0, {})


def test_arrays_in_another_order_are_cast_by_name() -> None:
    doubles = {"bias": np.full(3, 2.0), "weights": np.full((2, 3), 1.0)}

    checked = ArrayCheck()(doubles, sent())

    assert not isinstance(checked, str)
    cast = checked.held
    assert {name: array.dtype for name, array in cast.items()} == dict.fromkeys(MODEL, np.float32)
    assert (cast["weights"] == 1.0).all()
    assert (cast["bias"] == 2.0).all()


def test_a_norm_is_measured_by_name() -> None:
    """Swapped, the two arrays have no shape in common: a norm of 5 is 3 and 4 at their places."""
    moved = {name: array.copy() for name, array in MODEL.items()}
    moved["weights"][1, 2], moved["bias"][0] = 3.0, 4.0

    assert ArrayCheck()(backwards(moved), sent()) == (5.0, {})


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"weights": MODEL["weights"]}, "has other arrays than the model"),
        ({**MODEL, "more": np.zeros(1)}, "has other arrays than the model"),
        (
            {"weight": MODEL["weights"], "bias": MODEL["bias"]},
            "has other arrays than the model",
        ),
        (
            {"weights": MODEL["bias"], "bias": MODEL["weights"]},
            "has other arrays than the model: weights must be float32 of shape (2, 3); got "
            "float32 of shape (3,)",
        ),
    ],
    ids=["fewer", "more", "renamed", "swapped"],
)
def test_other_names_or_shapes_are_a_failure_with_its_reason(
    arrays: dict[str, Any], reason: str
) -> None:
    assert ArrayCheck()(arrays, sent()) == reason


@pytest.mark.parametrize("start", [0, 2**62 + 1, -(2**62) - 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_counter_may_move_by_max_count_and_no_further(start: int, sign: int) -> None:
    before = ModelArrays({"weights": np.zeros(2, np.float32), "counter": np.array([start, start])})

    def checked(move: int) -> Any:
        after = {**before.arrays, "counter": before.arrays["counter"] + np.array([0, sign * move])}
        return ArrayCheck(Limits(max_count=50))(after, before)

    assert not isinstance(checked(50), str)
    assert checked(51) == "its counter moves too far: by 51, more than 50"


def test_a_counter_that_jumps_over_its_whole_type_is_refused() -> None:
    """The difference of its ends does not fit 64 bits."""
    ends = np.iinfo(np.int64)
    before = ModelArrays({"weights": np.zeros(2, np.float32), "counter": np.array(ends.min)})

    found = ArrayCheck()({**before.arrays, "counter": np.array(ends.max)}, before)

    assert found == "its counter moves too far: by 1.84467e+19, more than 1e+12"


def test_sums_of_counters_are_exact() -> None:
    before = ModelArrays(
        {"weights": np.zeros(2, np.float32), "counter": np.array(2**60 + 1, np.uint64)}
    )

    moved = before.plus({"weights": np.ones(2), "counter": np.array(3)})

    assert moved is not None
    assert int(moved["counter"]) == 2**60 + 4
    assert moved["counter"].dtype == np.uint64
    assert before.plus({"weights": np.ones(2), "counter": np.array(-(2**61))}) is None
