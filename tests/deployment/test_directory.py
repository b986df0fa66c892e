"""The client directory: connections, names, sizes, and whom to ask again."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

from fedcohort import Multinomial, Regression, Selector
from fedcohort.deployment import Claim, Directory, Limits, Plugin, Rounds, waits
from fedcohort.deployment.directory import claimed_properties, claimed_size
from fedcohort.errors import DeploymentError
from fedcohort.memory.regression import RegressionEstimator

MINE = Plugin(framework="mine", owner="MyServer")


class Clock:
    """The module ``time``: it passes when a test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(waits, "time", own)
    return own


def test_a_given_size_comes_before_a_claim() -> None:
    directory = Directory(MINE, {"Lyon": 30})
    directory.see(["a", "b"])
    for connection, name in (("a", "Lyon"), ("b", "Nice")):
        directory.claim(connection, Claim(name, 7))
    directory.seat()

    assert directory.sizes == {"Lyon": 30, "Nice": 7}


def test_who_leaves_keeps_its_size_and_who_returns_is_not_asked() -> None:
    directory = Directory(MINE)
    directory.see(["Lyon"])
    directory.claim("Lyon", Claim("Lyon", 30))
    directory.seat()

    directory.see([])
    has_left = directory.seat()
    away = directory.present, dict(directory.sizes)
    directory.see(["Lyon"])

    assert (has_left, away) == (True, ([], {"Lyon": 30}))
    assert directory.due() == []


def test_pauses_double_and_end_when_a_client_comes_back(clock: Clock) -> None:
    directory, asked = Directory(MINE, pause=10.0), list[float]()
    directory.see(["Lyon"])
    for clock.now in range(100):
        if directory.due():
            asked.append(clock.now)
            directory.refuse("Lyon")
    directory.see([])
    directory.see(["Lyon"])

    assert asked == [0, 10, 30, 70]
    assert directory.due() == ["Lyon"]


def test_an_open_question_does_not_lengthen_the_pause(clock: Clock) -> None:
    directory = Directory(MINE, pause=10.0)
    directory.see([7, "Lyon"])
    directory.wait("Lyon", 600.0)
    clock.now = 599.0
    before = directory.due()
    clock.now = 600.0

    assert (before, directory.due()) == ([7], [7, "Lyon"])


def test_a_changed_claim_changes_the_size(caplog: pytest.LogCaptureFixture) -> None:
    directory = Directory(MINE, limits=Limits(max_size=40))
    directory.see(["Lyon"])
    changes = []
    for size in (30, 30, 50):
        directory.claim("Lyon", Claim("Lyon", size))
        changes.append(directory.seat())

    assert changes == [True, False, True]
    assert directory.sizes == {"Lyon": 40}
    assert caplog.messages == ["client 'Lyon' claims 50 samples; it counts as 40"]


def test_a_state_survives_json_and_its_clients_are_not_asked_again() -> None:
    directory = Directory(MINE)
    directory.see([7, "Lyon"])
    directory.claim(7, Claim("Nice", 50, {"gpu": True}))
    directory.claim("Lyon", Claim("Lyon", 30))
    directory.seat()

    again = Directory(MINE)
    again.restoring(json.loads(json.dumps(directory.state())))()
    again.see([7, "Lyon"])

    assert again.due() == []
    assert again.seat()
    assert again.sizes == {"Nice": 50, "Lyon": 30}
    assert again.properties_of("Nice") == {"gpu": True}


def test_a_broken_eligible_function_leaves_its_client_out_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = Directory(MINE, {"Lyon": 30, "Nice": 50}, eligible=lambda *own: own[2]["gpu"])
    directory.see(["Lyon", "Nice"])
    directory.claim("Nice", Claim("Nice", 50, {"gpu": True}))
    directory.seat()

    with caplog.at_level(logging.WARNING, "fedcohort"):
        found = [directory.participants() for _ in range(2)]

    assert found == [["Nice"], ["Nice"]]
    assert caplog.messages == ["eligible: 1 of 2 clients failed (Lyon): KeyError, 'gpu'"]


def test_a_broken_eligible_function_is_logged_once_also_for_a_client_that_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = Directory(MINE, {"Lyon": 30, "Nice": 50}, eligible=lambda *own: own[2]["gpu"])
    directory.see(["Lyon", "Nice"])
    directory.claim("Nice", Claim("Nice", 50, {"gpu": True}))
    directory.seat()
    directory.see(["Nice"])
    directory.seat()

    with caplog.at_level(logging.WARNING, "fedcohort"):
        for _ in range(3):
            assert directory.participants() == ["Nice"]
            assert directory.eligible(directory.sizes) == ["Nice"]

    assert caplog.messages == ["eligible: 1 of 2 clients failed (Lyon): KeyError, 'gpu'"]


def test_sizes_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(DeploymentError, match=r"^MyServer: sizes must map clients to samples; got"):
        Directory(MINE, [3, 2])  # type: ignore[arg-type]


def with_properties(directory: Directory, **properties: Any) -> Directory:
    for name, own in properties.items():
        directory.claim(name, Claim(name, 10, own))
    directory.see(properties)
    directory.seat()
    return directory


def test_new_features_are_told_once_and_again_after_a_restart() -> None:
    lyon, nice = {"x": [1, 2.5], "sea": "no"}, {"x": [3, 4], "sea": "yes"}
    directory = with_properties(Directory(MINE), lyon=lyon)
    first, again = directory.new_features(), directory.new_features()
    with_properties(directory, lyon=lyon, nice=nice)
    second = directory.new_features()
    other = Directory(MINE)
    other.restoring(json.loads(json.dumps(directory.state())))()

    assert first == {"lyon": {"x.0": 1.0, "x.1": 2.5, "sea": "no"}}
    assert again == {}
    assert second == {"nice": {"x.0": 3.0, "x.1": 4.0, "sea": "yes"}}
    assert other.new_features() == {**first, **second}


@pytest.mark.parametrize("later", [{}, {"x": float("inf")}, {"x": "south"}])
def test_features_that_are_withdrawn_or_become_unusable_leave_the_selector(later: Any) -> None:
    directory = with_properties(Directory(MINE), lyon={"x": 1}, nice={"x": 2}, metz={"x": 3})
    selector = Selector(Multinomial(2), {}, seed=0, estimator=Regression("given"))
    rounds = Rounds(MINE, selector, directory, Limits())
    rounds.update_clients()
    with_properties(directory, lyon=later, nice={"x": 2}, metz={"x": 3})
    rounds.update_clients()
    again = directory.new_features()
    ids = selector.draw().ids
    selector.aggregate({each: np.ones(3) for each in ids})

    assert again == {}
    assert isinstance(selector.estimator, RegressionEstimator)
    assert selector.estimator.state()["known"].tolist() == [False, True, True]  # Lyon is first


def test_most_of_the_first_clients_decide_which_features_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = with_properties(
        Directory(MINE), liar={"x": "1"}, lyon={"x": 1}, nice={"x": 2}, metz={}
    )
    first = directory.new_features()
    state = json.loads(json.dumps(directory.state()))
    other = Directory(MINE)
    other.restoring(state)()
    with_properties(other, a={"x": "1"}, b={"x": "2"}, c={"x": "3"}, d={"y": 1, "x": 2})

    assert first == {"lyon": {"x": 1.0}, "nice": {"x": 2.0}}
    assert "1 of 4 clients failed (liar): its features are not those of the first" in caplog.text
    assert set(other.new_features()) == {"lyon", "nice"}


@pytest.mark.parametrize(
    "properties",
    [
        {"x": float("inf")},
        {"x": 10**400},
        {"x": "long" * 17},
        {"x": list(range(65))},
        {"x": list(range(60)), "y": [0] * 5},
    ],
)
def test_features_have_bounds(properties: dict[str, Any], caplog: Any) -> None:
    directory = with_properties(Directory(MINE), lyon={"x": 1}, nice=properties)

    assert set(directory.new_features()) == {"lyon"}
    assert "(nice): " in caplog.text


def test_64_features_are_taken() -> None:
    directory = with_properties(Directory(MINE), lyon={"x": list(range(64))})

    assert len(directory.new_features()["lyon"]) == 64


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"x": b"1"}, "its properties must be text and numbers; got bytes"),
        ({"x": [None]}, "its properties must be text and numbers; got NoneType"),
        ({"x": {"y": 1}}, "its properties must be text and numbers; got dict"),
        ({"x": [[1]]}, "its properties must be text and numbers; got list"),
        ({"x": "1" * 10_000}, "its properties must be at most 10000 characters"),
        ({"x": 10**5000}, "its properties must be at most 10000 characters"),
    ],
)
def test_properties_have_bounds(properties: dict[str, Any], reason: str) -> None:
    assert claimed_properties(properties) == reason


def test_arrays_in_properties_become_lists() -> None:
    found = claimed_properties(
        {"x": np.array([0.5, 2], dtype=np.float32), "y": np.int64(3), "z": True}
    )

    assert found == {"x": [0.5, 2.0], "y": 3, "z": True}
    assert json.loads(json.dumps(found)) == found


def test_a_size_of_thousands_of_digits_is_an_invalid_claim() -> None:
    assert claimed_size(10**5000) == (
        "its size must be a whole number from 0 to 10^12; got a number of thousands of digits"
    )
