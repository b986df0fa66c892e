"""Masks from keys."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

import torch
from torch import nn

from fedcohort.simulation.engine.models import KeyedDropout, with_keyed_dropout


def kept(key: int, shape: tuple[int, ...] = (200, 500), p: float = 0.2) -> np.ndarray:
    dropout = KeyedDropout(p)
    dropout.key.fill_(key)
    return np.asarray(dropout(torch.ones(shape)))


def test_entries_are_dropped_with_probability_p_and_the_rest_scaled() -> None:
    """100,000 entries; false alarms 1e-6: 4.9 deviations, .0062."""
    mask = kept(12345)

    assert set(np.unique(mask)) == {0.0, np.float32(1.25)}
    assert abs((mask == 0).mean() - 0.2) < 4.9 * np.sqrt(0.2 * 0.8 / mask.size)


def test_masks_of_neighbouring_keys_and_positions_are_uncorrelated() -> None:
    """Correlations of 100,000 pairs; false alarms 1e-6 over 40: 5.7 / sqrt(100,000) = .018."""
    centred = [(kept(key) == 0).ravel() - 0.2 for key in range(20)]

    across = [np.mean(a * b) / 0.16 for a, b in pairwise(centred)]
    along = [np.mean(a[1:] * a[:-1]) / 0.16 for a in centred]

    assert max(map(abs, across + along)) < 5.7 / np.sqrt(100_000)


def test_a_module_that_is_called_twice_gives_two_masks() -> None:
    dropout = KeyedDropout(0.5)
    first, second = (dropout(torch.ones(1000)) == 0 for _ in range(2))

    # Independent masks agree in half of the entries: 5 deviations of sqrt(1000) / 2.
    assert abs(int((first == second).sum()) - 500) < 5 * 16


def test_a_key_gives_the_same_mask_again_and_another_key_another() -> None:
    assert (kept(7) == kept(7)).all()
    assert (kept(7) != kept(8)).any()


def test_nothing_is_dropped_outside_training_and_everything_with_p_one() -> None:
    dropout = KeyedDropout(0.5).eval()

    assert (dropout(torch.ones(100)) == 1).all()
    assert (KeyedDropout(1.0)(torch.ones(100)) == 0).all()
    assert (KeyedDropout(0.0)(torch.ones(100)) == 1).all()


def test_dropout_is_replaced_in_a_copy_only() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.4), nn.Dropout2d(0.1)))

    copied, keys = with_keyed_dropout(model)

    assert keys == ["1.0.key"]
    assert isinstance(copied.get_submodule("1.0"), KeyedDropout)
    assert type(model.get_submodule("1.0")) is nn.Dropout
    assert with_keyed_dropout(nn.Dropout(0.1))[1] == ["key"]
