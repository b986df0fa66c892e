"""What rounds cost, counted by hand.

Three clients with 40, 10 and 3 samples train a model of 64 * 8 + 8 + 8 * 10 + 10 = 610 parameters,
2440 bytes, for 3 steps of 6 samples (the third client has only 3):

    client   samples   speed   train   down   get model    up   send update   duration
         0        18       9       2   2440           1   610             4          7
         1        18      18       1   1220           2  2440             1          4
         2         9       3       3   4880         1/2  1220             2        5.5
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial, Poisson, Recipe, Uniform
from fedcohort.errors import SimulationError
from fedcohort.simulation import Cost, Devices, Intervals, Run
from scripted_recipes import Asking, FirstTwo, Patient, Scripted
from simulation.federations import TRAINING, UNEQUAL, made

DATA = replace(UNEQUAL, train=UNEQUAL.train[:3], test=UNEQUAL.test[:3])
DEVICES = Devices([9, 18, 3], [2440, 1220, 4880], [610, 2440, 1220])  # type: ignore[arg-type]
MODEL = 2440


def costs(*recipes: Recipe, rounds: int = 3, **changes: Any) -> list[list[Cost]]:
    run = {"devices": DEVICES, **changes}
    training = run.pop("training", TRAINING)
    runs = [Run(recipe, DATA, **run) for recipe in recipes]
    histories = made(*runs, training=training).run(rounds)
    return [[each.cost for each in history.rounds if each.cost] for history in histories]


def assert_costs(
    found: list[Cost], expected: list[tuple[int, int, Fraction, int, Fraction]]
) -> None:
    """Bytes and clients are integers; seconds are sums of fewer than ten rounded terms."""
    for cost, (down, up, work, contacted, seconds) in zip(found, expected, strict=True):
        assert (cost.bytes_down, cost.bytes_up, cost.contacted) == (down, up, contacted)
        assert cost.client_seconds == pytest.approx(float(work), rel=10 * 2.0**-53)
        assert cost.simulated_seconds == pytest.approx(float(seconds), rel=10 * 2.0**-53)


def test_three_plain_rounds() -> None:
    """The drawn get the model, train and answer; the server waits for the slowest."""
    (found,) = costs(Scripted(2, draws=((0, 1), (2,), (0, 2))))

    assert_costs(
        found,
        [
            (2 * MODEL, 2 * MODEL, Fraction(2 + 1), 2, Fraction(7)),
            (MODEL, MODEL, Fraction(3), 1, Fraction("5.5")),
            (2 * MODEL, 2 * MODEL, Fraction(2 + 3), 2, Fraction(7)),
        ],
    )


def test_three_rounds_with_signals() -> None:
    """Every drawn client sends its past loss, 8 bytes, with its update.

    Round 0: all get the model, train, and send a norm; the slowest number comes from client 2
    after 1/2 + 3 + 8/1220. Then 0 and 1 send their updates, in 4 and 1 seconds.

    Round 1: 1 and 2 get the model, go over their 10 and 3 samples at a third of the time of
    training, 10/54 and 1/3, and send a loss: client 1 after 2 + 10/54 + 8/2440. Then 0 and 2 are
    drawn: 2 has the model, trains and answers in 5; 0 takes 7.

    Round 2: 0 and 2 get a number and send one: client 0 in 8/2440 + 8/610. Then 0 takes 7.
    """
    recipe = Asking(
        2,
        draws=((0, 1), (0, 2), (0,)),
        asks=(("update_norm", (0, 1, 2)), ("loss", (1, 2)), ("duration", (0, 2))),
    )

    (found,) = costs(recipe)

    past = 8
    asking = [
        Fraction(1, 2) + 3 + Fraction(8, 1220),
        2 + Fraction(10, 54) + Fraction(8, 2440),
        Fraction(8, 2440) + Fraction(8, 610),
    ]
    looking = Fraction(10, 54) + Fraction(1, 3)
    assert_costs(
        found,
        [
            (3 * MODEL, 3 * 8 + 2 * (MODEL + past), Fraction(2 + 1 + 3), 3, asking[0] + 4),
            (3 * MODEL, 2 * 8 + 2 * (MODEL + past), looking + 2 + 3, 3, asking[1] + 7),
            (2 * 8 + MODEL, 2 * 8 + MODEL + past, Fraction(2), 2, asking[2] + 7),
        ],
    )


def test_over_selection_costs_the_work_of_those_who_come_too_late() -> None:
    """All get the model and train; 1 and 2 answer first, after 4 and 5.5 seconds."""
    (found,) = costs(FirstTwo(2, asks=(("duration", (0, 1, 2)),)), rounds=1)

    late = (3 * MODEL, 2 * MODEL, Fraction(2 + 1 + 3), 3, Fraction("5.5"))
    assert_costs(found, [late])


def test_a_recipe_says_how_long_its_server_waits() -> None:
    (found,) = costs(Patient(1, draws=((1,),)), rounds=1)

    assert found[0].simulated_seconds == 40.0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_wait_that_is_no_time_is_refused(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "waits", lambda *_: seconds)

    with pytest.raises(SimulationError, match="waits must return seconds, at least 0 and finite"):
        costs(Patient(1), rounds=1)


def test_epochs_go_over_all_samples() -> None:
    """Two epochs of 10 samples at 18 a second."""
    training = replace(TRAINING, steps=None, epochs=2)

    (found,) = costs(Scripted(1, draws=((1,),)), rounds=1, training=training)

    assert found[0].client_seconds == pytest.approx(20 / 18, rel=2.0**-50)


def test_without_devices_all_clients_are_equal_at_round_numbers() -> None:
    """18 samples at 1000 a second, 2440 bytes at a million, down and up."""
    (found,) = costs(Scripted(1, draws=((1,),)), rounds=1, devices=None)

    seconds = Fraction(18, 1000) + 2 * Fraction(2440, 10**6)
    assert_costs(found, [(MODEL, MODEL, Fraction(18, 1000), 1, seconds)])


def test_a_client_that_is_drawn_twice_is_paid_for_once() -> None:
    runs = costs(Multinomial(50), rounds=1)

    assert runs[0][0].bytes_down == runs[0][0].bytes_up == 3 * MODEL


def test_an_empty_cohort_costs_nothing() -> None:
    """Seed 1 of three coins with one head on average: some of 30 rounds have none."""
    (found,) = costs(Poisson(1), rounds=30, seed=1)

    assert Cost(0, 0, 0.0, 0, 0.0) in found
    assert all(cost.bytes_down == MODEL * cost.contacted for cost in found)


def test_a_round_without_anybody_takes_until_somebody_comes() -> None:
    """Client 1 is there from 100 to 103 seconds, and at 150; after that nobody ever is."""
    nights = Intervals([1, 1], [100.0, 150.0], [103.0, 151.0])  # type: ignore[arg-type]
    devices = replace(DEVICES, availability=nights)

    (found,) = costs(Uniform(2), rounds=6, devices=devices)

    assert [cost.simulated_seconds for cost in found] == [100, 4, 46, 4, 60, 60]
    assert [cost.contacted for cost in found] == [0, 1, 0, 1, 0, 0]
