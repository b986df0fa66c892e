"""Devices: drawn from a seed, read from a file, checked at the door."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, kstest, norm

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.errors import DataError, SimulationError, StreamError
from fedcohort.simulation import Devices, Intervals, read_devices

#: The chance that a correct program fails a statistical test here, if its seed were random.
FALSE_ALARM = 1e-6


def test_a_seed_gives_the_same_devices_and_another_others() -> None:
    first, again, other = (Devices.generated(20, seed, awake=0.5) for seed in (3, 3, 4))

    for one, two in zip(first.parts(), again.parts(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert (first.speed != other.speed).all()
    assert (first.up != other.up).all()


def test_a_generator_or_none_stands_for_a_seed() -> None:
    first, again = (Devices.generated(20, np.random.default_rng(3)) for _ in range(2))

    assert (first.speed == again.speed).all()
    assert (Devices.generated(20).speed != Devices.generated(20).speed).any()
    with pytest.raises(StreamError, match=r"Devices: seed must be .* a generator or None; got -1"):
        Devices.generated(20, -1)


def test_who_is_there_does_not_change_who_is_fast() -> None:
    always, sometimes = Devices.generated(20, 3), Devices.generated(20, 3, awake=0.5)

    assert (always.speed == sometimes.speed).all()
    assert (always.down == sometimes.down).all()
    assert always.availability is None


def test_speeds_and_lines_are_log_normal() -> None:
    """Kolmogorov's test of 2000 clients each; false alarms: FALSE_ALARM.

    A spread that is off by a third is seen.
    """
    devices = Devices.generated(
        2000, 0, speed=50.0, speed_spread=0.7, down=1e5, up=1e4, line_spread=1.5
    )

    for values, median, spread in (
        (devices.speed, 50.0, 0.7),
        (devices.down, 1e5, 1.5),
        (devices.up, 1e4, 1.5),
    ):
        scores = np.log(values / median) / spread
        assert kstest(scores, norm.cdf).pvalue > FALSE_ALARM / 3
        assert kstest(4 / 3 * scores, norm.cdf).pvalue < FALSE_ALARM / 3
    np.testing.assert_allclose(devices.down / devices.up, 10.0, rtol=1e-12)


def test_every_client_is_there_for_its_share_of_each_day() -> None:
    """Looked at 1000 times a day: a share of 0.3 is 300 looks, one more or less at the edges."""
    devices = Devices.generated(50, 0, awake=0.3, day=100.0)

    looks = np.array([devices.available(moment / 10) for moment in range(1000)])
    tomorrow = np.array([devices.available(100.0 + moment / 10) for moment in range(1000)])

    assert (np.abs(looks.sum(axis=0) - 300) <= 2).all()
    # Rounding may move an edge by one look.
    assert (np.abs(looks.astype(int) - tomorrow).sum(axis=0) <= 2).all()
    assert (np.abs(np.diff(looks.astype(int), axis=0)).sum(axis=0) <= 2).all()


def test_phases_are_spread_over_the_day() -> None:
    """At any moment a binomial number of 1000 clients is there; FALSE_ALARM over ten moments."""
    devices = Devices.generated(1000, 0, awake=0.3, day=100.0)

    for moment in range(10):
        n = devices.available(10.0 * moment).sum()
        low, high = (
            binom.ppf(tail, 1000, 0.3) for tail in (FALSE_ALARM / 20, 1 - FALSE_ALARM / 20)
        )
        assert low <= n <= high


@given(
    st.lists(st.floats(0, 0.999), min_size=1, max_size=4),
    st.floats(0.01, 0.99),
    st.floats(0, 1000),
)
def test_waiting_leads_to_the_next_arrival(phases: list[float], awake: float, now: float) -> None:
    """A wait ends, up to rounding, when somebody comes who was not there, and none came before."""
    day = 64.0
    times = Intervals.diurnal(np.array(phases), awake=awake, day=day)
    whom = np.ones(len(phases), dtype=bool)

    wait = times.seconds_until_any(now, whom)

    assert 0 < wait <= day
    after = times.at(now + wait + 1e-6, n_clients=len(phases))
    if not times.at(now, n_clients=len(phases)).any():
        between = np.linspace(now, now + wait - 1e-6, 50)
        assert after.any()
        assert not any(times.at(moment, n_clients=len(phases)).any() for moment in between)


def test_nobody_ever_comes_when_all_intervals_are_over() -> None:
    times = Intervals([0, 1], [1.0, 5.0], [2.0, 6.0])  # type: ignore[arg-type]
    whom = np.array([True, False])

    assert times.seconds_until_any(0.0, whom) == 1.0
    assert times.seconds_until_any(3.0, whom) == math.inf
    assert times.seconds_until_any(3.0, ~whom) == 2.0


def test_jitter_is_log_normal_and_from_the_seed_the_round_and_the_client() -> None:
    """Kolmogorov's test of 2000 clients; false alarms: FALSE_ALARM."""
    devices = Devices.equal(2000, jitter=0.25)
    first, again = devices.delays(5, 3), devices.delays(5, 3)

    assert (first == again).all()
    assert (first != devices.delays(5, 4)).any()
    assert (first != devices.delays(6, 3)).any()
    assert kstest(np.log(first) / 0.25, norm.cdf).pvalue > FALSE_ALARM
    assert (Devices.equal(3).delays(5, 3) == 1).all()
    # A client's number does not depend on how many clients follow it.
    assert (Devices.equal(10, jitter=0.25).delays(5, 3) == first[:10]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 0.0], [1.0, 1.0], [1.0, 1.0]), r"speed must be above 0 and finite; client 1 has 0"),
        (([1.0], [math.nan], [1.0]), r"down must be above 0 and finite; client 0 has nan"),
        (([1.0], [1.0], [math.inf]), r"up must be above 0 and finite; client 0 has inf"),
        (([1.0], [1.0, 2.0], [1.0]), r"down must be one number per client, as many as speed has"),
        (([1.0], [1.0], [1.0], Intervals([1], [0.0], [1.0])), r"clients must be 0 to 0; got 1"),  # type: ignore[arg-type]
        (([1.0], [1.0], [1.0], None, -0.1), r"jitter must be a number from 0 to 10; got -0\.1"),
        (([1.0], [1.0], [1.0], None, math.nan), r"jitter must be a number from 0 to 10; got nan"),
    ],
)
def test_what_is_no_device_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        Devices(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"awake": 0.0}, {"awake": 1.1}, {"day": 0.0}, {"speed_spread": -1.0}, {"line_spread": 11.0}],
)
def test_what_cannot_be_generated_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(SimulationError, match=r"Devices: .* must be .*; got"):
        Devices.generated(3, 0, **options)


@pytest.mark.parametrize(
    "interval", [(-1.0, 1.0), (1.0, 1.0), (math.nan, 1.0), (0.0, math.nan), (0.0, 11.0)]
)
def test_what_is_no_interval_is_refused(interval: tuple[float, float]) -> None:
    with pytest.raises(SimulationError, match=r"must have 0 <= start < end.*; interval 0 does not"):
        Intervals([0], [interval[0]], [interval[1]], day=10.0)  # type: ignore[arg-type]


def file(folder: Path, text: str) -> Path:
    path = folder / "devices.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_all(tmp_path: Path) -> None:
    text = """client,speed,down,up,start,end
2,30,300,3000,,
0,10,100,1000,0,5
1,20,200,2000,7,9.5

0,10,100,1000,8,10
"""
    devices = read_devices(file(tmp_path, text), 3, jitter=0.5)

    assert devices.speed.tolist() == [10, 20, 30]
    assert devices.down.tolist() == [100, 200, 300]
    assert devices.up.tolist() == [1000, 2000, 3000]
    assert devices.jitter == 0.5
    there = {0: [1, 0, 1], 5: [0, 0, 1], 7: [0, 1, 1], 9: [1, 1, 1], 9.5: [1, 0, 1], 99: [0, 0, 1]}
    for moment, expected in there.items():
        assert devices.available(moment).tolist() == [bool(each) for each in expected]


def test_a_file_without_intervals_has_everybody_there_always(tmp_path: Path) -> None:
    devices = read_devices(file(tmp_path, "up,client,speed,down\n3,0,1,2\n6,1,4,5\n"), 2)

    assert devices.availability is None
    assert devices.up.tolist() == [3, 6]


HEAD = "client,speed,down,up\n"
LONG = "client,speed,down,up,start,end\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"is empty\. Begin the file with client,speed,down,up"),
        ("client,speed,up\n0,1,1\n", r"needs a column down; got client, speed, up"),
        ("client,speed,down,up,start\n", r"needs a column end; got"),
        ("client,sped,down,up\n", r"unknown column 'sped'; known are .* Did you mean 'speed'\?"),
        ("client,up,down,up\n", r"a column appears twice"),
        (HEAD + "0,1,1\n", r"line 2: needs 4 values \(client, speed, down, up\); got 3"),
        (HEAD + "0,-1,1,1\n", r"line 2: speed must be a number above 0 and finite; got '-1'"),
        (HEAD + "0,1,nan,1\n", r"line 2: down must be a number above 0 and finite; got 'nan'"),
        (HEAD + "0,1,1,inf\n", r"line 2: up must be a number above 0 and finite; got 'inf'"),
        (HEAD + "0,1,fast,1\n", r"line 2: down must be a number above 0 and finite; got 'fast'"),
        (HEAD + "0,1,1_0,1\n", r"line 2: down must be a number above 0 and finite; got '1_0'"),
        (
            HEAD + "0,1,1,1\n2,1,1,1\n",
            r"line 3: client must be a whole number from 0 to 1; got '2'",
        ),
        (HEAD + "-1,1,1,1\n", r"line 2: client must be a whole number from 0 to 1; got '-1'"),
        (HEAD + "0,1,1,1\n", r"a line for each of the 2 clients; 1 are missing, .* client 1"),
        (HEAD + "0,1,1,1\n0,1,1,1\n", r"line 3: client 0 appears twice"),
        (HEAD + "0,1,1,1\n0,1,1,2\n", r"line 3: client 0 has another speed, down or up than"),
        (LONG + "0,1,1,1,5,5\n", r"line 2: start must be at least 0 and end after it"),
        (LONG + "0,1,1,1,5,\n", r"line 2: start must be .* or both empty; got '5' and ''"),
        (LONG + "0,1,1,1,-5,5\n", r"line 2: start must be at least 0 and end after it"),
        (LONG + "0,1,1,1,nan,5\n", r"line 2: start must be at least 0 and end after it"),
    ],
)
def test_a_bad_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"devices\.csv.*{message}") as caught:
        read_devices(file(tmp_path, text), 2)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: cannot be read \(no such file"):
        read_devices(tmp_path / "none.csv", 2)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"bytes\.csv: is not a CSV file"):
        read_devices(tmp_path / "bytes.csv", 2)


@pytest.mark.parametrize("n_clients", [0, -1, 2.5])
def test_devices_of_nobody_are_refused(n_clients: Any) -> None:
    with pytest.raises(SimulationError, match=r"n_clients must be a whole number of at least 1"):
        Devices.generated(n_clients)
