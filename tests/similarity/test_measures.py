"""Fast distances, against pairwise loops."""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcohort.similarity import MEASURES, arccos, l1, l2
from fedcohort.similarity.measures import MeasureName
from populations import rng


def slow_l2(x: np.ndarray, y: np.ndarray) -> float:
    return math.dist(x, y)


def slow_l1(x: np.ndarray, y: np.ndarray) -> float:
    return math.fsum(abs(x - y))


def slow_angle(x: np.ndarray, y: np.ndarray) -> float:
    if not x.any() and not y.any():
        return 0.0
    if not x.any() or not y.any():
        return math.pi / 2
    cosine = math.fsum(x * y) / math.sqrt(math.fsum(x * x) * math.fsum(y * y))
    return math.acos(max(-1.0, min(1.0, cosine)))


SLOW: dict[MeasureName, Callable[[np.ndarray, np.ndarray], float]] = {
    "arccos": slow_angle,
    "l2": slow_l2,
    "l1": slow_l1,
}


@pytest.mark.parametrize("measure", MEASURES)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 5))
def test_every_pair_equals_the_plain_formula(
    measure: MeasureName, seed: int, n: int, dimension: int
) -> None:
    updates = rng(seed).integers(-3, 4, size=(n, dimension)).astype(float)

    distances = MEASURES[measure](updates)

    pairs = [SLOW[measure](x, y) for x, y in combinations(updates, 2)]
    # Near angle 0 an error of 2^-52 in the cosine is one of 2^-25.5 in the angle; so is one of
    # the squared distance.
    np.testing.assert_allclose(distances, pairs, rtol=0, atol=8 * 2.0**-25.5)


@pytest.mark.parametrize("measure", MEASURES)
def test_blocks_of_columns_give_the_same_distances(
    measure: MeasureName, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = rng().standard_normal((20, 50)).astype(np.float32)
    whole = MEASURES[measure](updates)

    monkeypatch.setattr("fedcohort.similarity.measures.BLOCK_ENTRIES", 140)

    np.testing.assert_allclose(MEASURES[measure](updates), whole, rtol=1e-12)


def test_proportional_float32_updates_have_angle_zero_not_nan() -> None:
    """Without clipping one pair in four of these gives NaN."""
    for seed in range(200):
        update = rng(seed).standard_normal(100).astype(np.float32)

        angles = arccos(np.stack([update, np.float32(1.7) * update, -update]))

        assert angles[0] < 1e-6
        np.testing.assert_allclose(angles[1:], math.pi, atol=1e-6)


def test_the_angle_of_tiny_and_huge_updates_is_that_of_their_direction() -> None:
    directions = rng().standard_normal((5, 3))
    sizes = np.array([1e-200, 1e-20, 1.0, 1e20, 1e140])[:, None]

    np.testing.assert_allclose(arccos(sizes * directions), arccos(directions), atol=1e-7)


def test_float32_angles_are_computed_in_float64() -> None:
    updates = rng().standard_normal((10, 4000)).astype(np.float32)

    np.testing.assert_array_equal(arccos(updates), arccos(updates.astype(np.float64)))


def test_a_common_shift_does_not_blur_euclidean_distances() -> None:
    updates = rng().integers(-9, 10, size=(6, 4)).astype(float)

    np.testing.assert_allclose(l2(updates + 2.0**30), l2(updates), rtol=1e-7)


def test_identical_updates_are_at_distance_zero() -> None:
    updates = np.tile(rng().standard_normal(30), (4, 1))

    assert (l1(updates) == 0).all()
    assert (l2(updates) < 1e-12).all()
    assert (arccos(updates) < 1e-7).all()


@pytest.mark.parametrize("measure", MEASURES)
def test_one_update_or_none_has_no_pairs(measure: MeasureName) -> None:
    assert MEASURES[measure](np.ones((1, 3))).shape == (0,)
    assert MEASURES[measure](np.ones((0, 3))).shape == (0,)
