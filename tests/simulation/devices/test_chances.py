"""Chances tied to classes, sizes or luck: exact formulas, and the laws of what is drawn."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, norm

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.errors import SimulationError
from fedcohort.simulation import Dataset, FederatedData
from fedcohort.simulation.devices.chances import (
    class_chances,
    class_shares,
    class_turn_chances,
    given_chances,
    log_normal_chances,
    lowest_class_chances,
    size_chances,
    skewed_class_chances,
)
from fedcohort.streams import Stream, stream
from simulation.federations import DIGITS, UNEQUAL

#: The chance that a correct program fails a statistical test here, if its seed were random.
FALSE_ALARM = 1e-6

#: Five classes; client 0 holds classes 1 and 3, client 1 class 4, client 2 nothing, client 3 all.
Y = np.array([1, 1, 1, 3, 4, 4, 0, 1, 2, 3, 4])
DATA = FederatedData(
    Dataset(np.zeros((11, 1)), Y, np.zeros((0, 1)), Y[:0], n_classes=5),
    ([0, 1, 2, 3], [4, 5], [], [6, 7, 8, 9, 10]),  # type: ignore[arg-type]
    ([], [], [], []),  # type: ignore[arg-type]
)


def test_shares_of_classes() -> None:
    expected = [[0, 0.75, 0, 0.25, 0], [0, 0, 0, 0, 1], [0] * 5, [0.2] * 5]

    assert class_shares(DATA).tolist() == expected


def test_chances_by_classes_are_the_shares_times_uniform_numbers() -> None:
    most = [1, 1, 0.5, 0, 1]
    phi = stream(7, use=Stream.CHANCES).random(5) * most

    found = class_chances(DATA, seed=7, most=most)

    np.testing.assert_allclose(
        found, [(3 * phi[1] + phi[3]) / 4, phi[4], 0, phi.mean()], rtol=16 * 2.0**-53
    )
    assert (class_chances(DATA, seed=7) == class_chances(DATA, seed=7, most=[1.0] * 5)).all()


def test_skewed_chances_are_scaled_and_bounded() -> None:
    kappa = stream(7, use=Stream.CHANCES).dirichlet([0.1] * 5)

    found = skewed_class_chances(DATA, seed=7, mean=0.3, least=0.05)

    raw = 5 * 0.3 * np.array([0.75 * kappa[1] + 0.25 * kappa[3], kappa[4], 0, 0.2])
    np.testing.assert_allclose(found, np.clip(raw, 0.05, 1), rtol=16 * 2.0**-53)
    # A client that holds all classes alike has the mean chance, whatever was drawn.
    assert found[3] == pytest.approx(0.3, rel=16 * 2.0**-53)


@pytest.mark.parametrize("power", [0.5, 2.0, -1.0])
def test_chances_by_size(power: float) -> None:
    """Clients have 40, 10, 3, 0 and 100 samples."""
    sizes = np.array([40.0, 10.0, 3.0, 100.0])
    values = sizes**power

    found = size_chances(UNEQUAL, power=power)

    # Exponentials of logarithms of a few units.
    np.testing.assert_allclose(found[[0, 1, 2, 4]], values / values.max(), rtol=64 * 2.0**-53)
    assert found[3] == 0
    assert found.max() == 1


def test_chances_by_the_lowest_class_and_in_turns() -> None:
    assert lowest_class_chances(DATA, spread=0.5).tolist() == [0.625, 1.0, 0.5, 0.5]
    turns = class_turn_chances(DATA, spread=0.75, turn=2)

    assert turns.shape == (10, 4)
    assert turns[:, 0].tolist() == [0.25, 0.25, 1, 1, 0.25, 0.25, 1, 1, 0.25, 0.25]
    assert turns[:, 1].tolist() == 8 * [0.25] + 2 * [1]
    assert turns[:, 2].tolist() == 10 * [0.25]
    assert turns[:, 3].tolist() == 10 * [1]


def test_random_chances_are_log_normal() -> None:
    """Kolmogorov's test of 2000 clients; false alarms: FALSE_ALARM. Sees a spread off by a third.

    The largest of 2000 normal numbers lies near 3.4 spreads, so the sample's mean is taken out.
    """
    parts = tuple(np.array([k % 11]) for k in range(2000))
    data = FederatedData(DATA.dataset, parts, tuple(part[:0] for part in parts))

    found = np.log(log_normal_chances(data, seed=1, spread=0.7))

    assert found.max() == 0
    scores = (found - np.log(log_normal_chances(data, seed=1, spread=0.7))[0]) / 0.7
    scores += stream(1, use=Stream.CHANCES).standard_normal(2000)[0]
    assert kstest(scores, norm.cdf).pvalue > FALSE_ALARM
    assert kstest(4 / 3 * scores, norm.cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize(
    "draw",
    [class_chances, skewed_class_chances, log_normal_chances],
    ids=lambda each: each.__name__,
)
def test_a_seed_gives_the_same_chances_and_another_others(draw: Any) -> None:
    first, again, other = (draw(DIGITS, seed=seed) for seed in (3, 3, 4))

    assert (first == again).all()
    assert (first != other).any()
    assert ((first >= 0) & (first <= 1)).all()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: given_chances(DATA, chance=[0.5]), r"one for each of the 4 clients; got 1"),
        (lambda: given_chances(DATA, chance=1.5), r"chance must be a number from 0 to 1; got 1"),
        (lambda: class_chances(DATA, seed=0, most=[1, 1]), r"each of the 5 classes; got 2"),
        (lambda: skewed_class_chances(DATA, seed=0, alpha=0), r"alpha must be a number above 0"),
        (lambda: size_chances(DATA, power=11), r"power must be a number from -10 to 10; got 11"),
        (lambda: log_normal_chances(DATA, seed=-1), r"seed must be a whole number of at least 0"),
        (lambda: lowest_class_chances(4), r"data must be a FederatedData; got 4"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_refused(draw: Any, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        draw()
