"""Presence round by round: its exact chances, its coins, and runs with it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial, Uniform
from fedcohort.errors import SimulationError
from fedcohort.simulation import Availability, Coins, Cyclic, Devices, Intervals, Markov, Run
from fedcohort.simulation.devices.chances import class_turn_chances
from fedcohort.streams import Stream, stream
from simulation.federations import DIGITS, assert_same, made, resumed

#: The chance that a correct program fails a statistical test here, if its seed were random.
FALSE_ALARM = 1e-6
MANY = 100_000


def there(times: Availability, rounds: int, *, n_clients: int, seed: int = 0) -> np.ndarray:
    """Return who is there, shape (rounds, n_clients)."""
    return np.array(
        [times.at(0.0, n_clients=n_clients, round_=t, seed=seed) for t in range(rounds)]
    )


def chances(times: Availability, round_: int) -> np.ndarray:
    found = times.chances(round_)
    assert found is not None
    return found


def assert_binomial(found: int, n: int, chance: float, tests: int) -> None:
    """One of ``tests`` two-sided tests that raise FALSE_ALARM together."""
    tail = FALSE_ALARM / 2 / tests
    assert binom.ppf(tail, n, chance) <= found <= binom.isf(tail, n, chance)


KINDS: list[Availability] = [
    Coins(np.linspace(0, 1, 12), pattern="sine"),
    Markov(np.linspace(0, 1, 12), come=0.3),
    Markov(np.linspace(0, 1, 12), come=0.9),
    Cyclic(np.linspace(0, 1, 12), cycle=7),
]


@pytest.mark.parametrize("times", KINDS, ids=repr)
def test_presence_depends_on_the_seed_and_the_round_alone(times: Availability) -> None:
    first, again = (there(times, 30, n_clients=12) for _ in range(2))
    alone = times.at(99.0, n_clients=12, round_=29)

    assert (first == again).all()
    assert (first[29] == alone).all()
    assert (first != there(times, 30, n_clients=12, seed=1)).any()


@pytest.mark.parametrize("times", KINDS, ids=repr)
def test_a_clients_presence_does_not_depend_on_those_that_follow(times: Any) -> None:
    fewer = replace(times, chance=times.chance[:5])

    assert (there(fewer, 20, n_clients=5) == there(times, 20, n_clients=12)[:, :5]).all()


@pytest.mark.parametrize("times", KINDS, ids=repr)
def test_chances_of_0_and_1_are_never_and_always(times: Any) -> None:
    always = replace(times, pattern="stationary") if isinstance(times, Coins) else times
    found = there(always, 50, n_clients=12)

    assert not found[:, 0].any()
    assert found[:, -1].all()
    assert always._ever(12).tolist() == [False] + 11 * [True]


def test_the_times_are_those_of_fedawe() -> None:
    """Stationary 1; 1 in rounds 0 to 9 of 20 and 0.4 after; 0.3 sin(2 pi t / 20) + 0.7."""
    q = np.array([0.9, 0.2, 0.1])
    rounds = range(45)
    sine = [0.3 * math.sin(2 * math.pi * t / 20) + 0.7 for t in rounds]
    staircase = [1.0 if t % 20 < 10 else 0.4 for t in rounds]

    for times, expected in (
        (Coins(q), [q for t in rounds]),
        (Coins(q, pattern="staircase"), [q * f for f in staircase]),
        (Coins(q, pattern="sine"), [q * f for f in sine]),
        (
            Coins(q, pattern="sine", absent_below=0.1),
            [np.where(q * f < 0.1, 0, q * f) for f in sine],
        ),
    ):
        found = np.array([times.chances(t) for t in rounds])
        # The sine's argument and the product are rounded a few times each.
        np.testing.assert_allclose(found, expected, rtol=0, atol=16 * 2.0**-53)


def test_rows_of_chances_come_one_after_the_other_and_again() -> None:
    rows = [[1, 0, 0], [0, 1, 1]]

    record = Coins(rows)  # type: ignore[arg-type]

    assert there(record, 4, n_clients=3).tolist() == [[bool(q) for q in row] for row in 2 * rows]
    assert record.mean_chance().tolist() == [0.5, 0.5, 0.5]


def test_the_mean_chance_is_that_over_all_rounds_of_a_period() -> None:
    stairs = Coins([0.8, 0.5], pattern="staircase", period=4)  # type: ignore[arg-type]
    turns = Coins([[0.8], [0.2], [0.2]], pattern="staircase", period=2)  # type: ignore[arg-type]

    np.testing.assert_allclose(stairs.mean_chance(), [0.8 * 0.7, 0.5 * 0.7], rtol=4 * 2.0**-53)
    # Six rounds: 0.8, 0.2 and 0.2 come with both f.
    np.testing.assert_allclose(turns.mean_chance(), [0.4 * 0.7], rtol=8 * 2.0**-53)


@pytest.mark.parametrize("round_", [0, 13, 400])
def test_coins_come_with_their_chances(round_: int) -> None:
    """100,000 clients with each chance: a binomial number of them is there."""
    times = Coins(np.repeat([0.02, 0.3, 0.9], MANY), pattern="sine")
    found = times.at(0.0, n_clients=3 * MANY, round_=round_, seed=5).reshape(3, MANY).sum(axis=1)

    for number, chance in zip(found, chances(times, round_)[::MANY], strict=True):
        assert_binomial(int(number), MANY, float(chance), tests=9)


def test_coins_of_two_rounds_are_independent() -> None:
    times = Coins(np.full(MANY, 0.3))
    one, two = there(times, 2, n_clients=MANY)

    assert_binomial(int((one & two).sum()), MANY, 0.09, tests=1)


@pytest.mark.parametrize("come", [0.05, 0.5, 1.0])
def test_moves_keep_the_chances_exactly(come: float) -> None:
    """Those that come and those that leave balance: (1 - q) a = q b."""
    q = np.array([0.0, 0.01, 0.3, 0.5, 0.9, 1.0])
    arrive, leave = Markov(q, come=come).moves()

    np.testing.assert_allclose((1 - q) * arrive, q * leave, rtol=8 * 2.0**-53)
    assert (arrive <= come).all()
    assert (leave <= 1).all()
    # The largest chances with this: one of both limits is reached.
    assert ((arrive == come) | (leave == 1)).all()


@pytest.mark.parametrize("come", [0.1, 0.9])
def test_a_markov_chain_looks_back_to_what_it_would_be_if_played_forward(come: float) -> None:
    q = np.linspace(0, 1, 40)
    times = Markov(q, come=come)
    arrive, leave = times.moves()

    now = stream(3, round_=0, use=Stream.PRESENCE).random(40) < q
    for t in range(60):
        if t:
            number = stream(3, round_=t, use=Stream.PRESENCE).random(40)
            now = np.where(now, number < 1 - leave, number < arrive)
        assert (times.at(0.0, n_clients=40, round_=t, seed=3) == now).all()


@pytest.mark.parametrize(("chance", "come"), [(0.3, 0.1), (0.05, 0.5), (0.9, 0.8)])
def test_a_markov_chain_is_stationary_and_moves_with_its_chances(
    chance: float, come: float
) -> None:
    times = Markov(np.full(MANY, chance), come=come)
    arrive, leave = (float(each[0]) for each in times.moves())
    before, after = there(times, 9, n_clients=MANY, seed=2)[-2:]
    n_there = int(before.sum())

    assert_binomial(n_there, MANY, chance, tests=9)
    assert_binomial(int((before & ~after).sum()), n_there, leave, tests=9)
    assert_binomial(int((~before & after).sum()), MANY - n_there, arrive, tests=9)


def test_cycles_have_exactly_their_rounds_in_a_row() -> None:
    q = np.array([0.0, 0.01, 0.25, 0.5, 1.0])
    found = there(Cyclic(q, cycle=8), 16, n_clients=5)

    assert found[:8].sum(axis=0).tolist() == [0, 1, 2, 4, 8]
    assert (found[:8] == found[8:]).all()
    # One arrival and one departure in each cycle of those that are not always there.
    changes = (found[1:9] != found[:8]).sum(axis=0)
    assert changes.tolist() == [0, 2, 2, 2, 0]


def test_cycles_begin_anywhere() -> None:
    times = Cyclic(np.full(MANY, 0.3), cycle=10)

    for t, found in enumerate(there(times, 10, n_clients=MANY)):
        assert t >= 0
        assert_binomial(int(found.sum()), MANY, 0.3, tests=10)
    assert chances(times, 0)[0] == 0.3
    mean = times.mean_chance()
    assert mean is not None
    assert np.array_equal(mean, chances(times, 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Coins([0.5, 1.5]), r"chance must be a number from 0 to 1; client 1 has 1\.5"),  # type: ignore[arg-type]
        (lambda: Coins([[0.5], [math.nan]]), r"from 0 to 1; client 0 has nan"),  # type: ignore[arg-type]
        (lambda: Coins([]), r"chance must be one number per client, or rows of them"),  # type: ignore[arg-type]
        (lambda: Coins(["often"]), r"Coins: chance must be one number per client"),  # type: ignore[arg-type]
        (lambda: Markov([[0.5]]), r"Markov: chance must be one number per client; got float64"),  # type: ignore[arg-type]
        (lambda: Cyclic([-0.1]), r"Cyclic: chance must be a number from 0 to 1; client 0 has -0"),  # type: ignore[arg-type]
        (lambda: Coins([0.5], pattern="cosine"), r"pattern must be one of stationary, .* 'cosine'"),  # type: ignore[arg-type]
        (lambda: Coins([0.5], high=0.3), r"Coins: low must be at most high, 0\.3; got 0\.4"),  # type: ignore[arg-type]
        (lambda: Coins([0.5], period=0), r"period must be a whole number of at least 1; got 0"),  # type: ignore[arg-type]
        (lambda: Markov([0.5], come=0.0), r"come must be a number above 0 and at most 1; got 0"),  # type: ignore[arg-type]
        (lambda: Cyclic([0.5], cycle=0), r"cycle must be a whole number of at least 1; got 0"),  # type: ignore[arg-type]
        (
            lambda: Devices.equal(3, availability=Coins([0.5])),  # type: ignore[arg-type]
            r"Coins: chance must be one number for each of the 3 clients; got 1",
        ),
    ],
)
def test_what_is_no_presence_is_refused(make: Any, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        make()


def run_of(times: Availability, recipe: Any = None, **settings: Any) -> Run:
    n = DIGITS.n_clients
    devices = Devices.equal(n, availability=times)
    return Run(Uniform(n) if recipe is None else recipe, DIGITS, devices=devices, **settings)


@pytest.mark.parametrize(
    "times",
    [
        Coins(np.linspace(0.1, 0.9, 30), pattern="sine"),
        Markov(np.linspace(0.1, 0.9, 30)),
        Cyclic(np.linspace(0.1, 0.9, 30), cycle=5),
        Coins(class_turn_chances(DIGITS, turn=2)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("presence", ["ignore", "estimated", "known"])
def test_runs_of_a_seed_meet_the_same_clients_also_after_a_resume(
    times: Availability, presence: Any, tmp_path: Path
) -> None:
    recipes = Uniform(30, unbiased=True), Multinomial(5)

    def fresh() -> Any:
        return made(*(run_of(times, each, presence=presence) for each in recipes))

    whole = fresh()
    everyone, drawn = whole.run(6)

    for each, other in zip(everyone.rounds, drawn.rounds, strict=True):
        here = times.at(0.0, n_clients=30, round_=each.round_, seed=0)
        assert each.clients == np.flatnonzero(here).tolist()
        assert here[other.clients].all()
    assert_same(whole, resumed(fresh, tmp_path / "state", stop=3, rounds=6))


def test_a_round_without_anybody_passes_in_a_minute() -> None:
    nobody_first = np.zeros((2, 30))
    nobody_first[1, 3] = 1
    (history,) = made(run_of(Coins(nobody_first))).run(2)

    first, second = history.rounds
    assert first.clients == []
    assert first.cost is not None
    assert first.cost.simulated_seconds == 60
    assert second.clients == [3]


def test_somebody_with_samples_must_have_a_chance() -> None:
    with pytest.raises(SimulationError, match="at least one client with samples be available"):
        made(run_of(Coins(np.zeros(30)))).run(1)
    with pytest.raises(SimulationError, match="at least one client with samples be available"):
        made(run_of(Coins(np.full(30, 0.5), absent_below=0.6)))
    stationary = Coins(np.full(30, 0.5), high=0.0, low=0.0)  # high is not used
    assert stationary._ever(30).all()


def test_intervals_have_no_chances() -> None:
    hours = Intervals([0], [1.0], [2.0])  # type: ignore[arg-type]

    assert hours.chances(3) is None
    assert hours.mean_chance() is None


def test_known_chances_are_those_of_the_round() -> None:
    """All who are there train: client i weighs p_i / (q_i f(t)), over those with a chance."""
    q = np.linspace(0.05, 0.9, 30)
    times = Coins(q, pattern="sine", period=4, absent_below=0.1)
    uniform = Uniform(30, unbiased=True)

    (history,) = made(run_of(times, uniform, presence="known")).run(5)

    for each in history.rounds:
        q_now = chances(times, each.round_)
        n = int((q_now > 0).sum())  # equal sizes
        assert n < 30
        np.testing.assert_allclose(each.weights, 1 / n / q_now[each.clients], rtol=1e-12)


def test_weights_with_known_chances_are_the_importance_on_average() -> None:
    """A client's weight is 1/30 / q or 0, so the sum of its weights says how often it came.

    That is binomial: exact tails over 800 rounds and 30 clients, false alarms FALSE_ALARM. A bias
    of half of p is seen for q above 0.15.
    """
    q = np.linspace(0.1, 1, 30)
    times, rounds = Coins(q), 800
    selector = run_of(times, Uniform(30, unbiased=True), presence="known").selector()
    total = np.zeros(30)
    for t in range(rounds):
        selector.draw(times.at(0.0, n_clients=30, round_=t, seed=0))
        assert selector.cohort is not None
        total[selector.cohort.clients] += selector.cohort.weights
        selector.skip()

    came = total * q * 30
    for found, chance in zip(came, q, strict=True):
        assert found == pytest.approx(round(found), abs=1e-6)
        assert_binomial(round(found), rounds, chance, tests=30)


@pytest.mark.parametrize(
    "devices",
    [None, Devices.equal(30, availability=Intervals([0], [0.0], [9.0]))],  # type: ignore[arg-type]
)
def test_known_chances_need_devices_that_have_them(devices: Devices | None) -> None:
    with pytest.raises(SimulationError, match="presence='known' needs devices with chances"):
        Run(Uniform(30, unbiased=True), DIGITS, devices=devices, presence="known")
