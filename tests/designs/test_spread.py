"""Weighted squared distances, in blocks."""

import numpy as np
import pytest

from fedcohort.designs.base import second_moment, spread
from populations import rng


@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_blocks_give_the_plain_formula(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcohort.designs.base.BLOCK_ENTRIES", block)
    weights, points = rng().dirichlet(np.ones(9)), rng(1).standard_normal((9, 3))
    mean = weights @ points

    plain = sum(w * np.sum((x - mean) ** 2) for w, x in zip(weights, points, strict=True))
    plain_moment = sum(w * np.sum(x**2) for w, x in zip(weights, points, strict=True))

    assert spread(weights, points) == pytest.approx(plain, rel=1e-13)
    assert second_moment(weights, points) == pytest.approx(plain_moment, rel=1e-13)


def test_a_common_shift_costs_no_precision() -> None:
    weights, points = np.full(50, 0.02), rng().standard_normal((50, 4)).round(3)

    shifted = spread(weights, points + 2.0**20)

    # A difference of squares would lose all but four digits here.
    assert shifted == pytest.approx(spread(weights, points), rel=1e-9)


def test_float32_is_summed_in_float64() -> None:
    points = rng().standard_normal((1000, 5)).astype(np.float32)
    weights = np.full(1000, 1e-3)

    for moment in (spread, second_moment):
        assert moment(weights, points) == pytest.approx(
            moment(weights, points.astype(np.float64)), rel=1e-12
        )
