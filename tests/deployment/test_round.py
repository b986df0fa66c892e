"""A round of a plug-in: who answered, why others failed, and how it ends."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from fedcohort import Multinomial, Selector, SizeClustered
from fedcohort.deployment import (
    ArrayCheck,
    ClientAnswer,
    Directory,
    LazyArrays,
    Limits,
    ModelArrays,
    Patience,
    Plugin,
    Round,
    Rounds,
    TrainingRound,
)
from fedcohort.deployment.round import is_number
from fedcohort.designs import RECIPES
from fedcohort.errors import DeploymentError

MINE = Plugin(framework="mine", owner="MyServer")
SIZES = {"Brest": 20, "Lyon": 30, "Nice": 50}
MODEL = {"w": np.zeros(3, np.float32), "n": np.array(5)}


def moved(step: float) -> dict[str, Any]:
    return {"n": MODEL["n"] + 2, "w": MODEL["w"] + np.float32(step)}


def rounds_of(recipe: Any, limits: Limits | None = None) -> tuple[Rounds, Selector]:
    selector, directory = Selector(recipe, {}, seed=0), Directory(MINE, SIZES)
    directory.see(SIZES)
    directory.seat()
    return Rounds(MINE, selector, directory, limits or Limits()), selector


def opened(rounds: Rounds, ask: Any = None) -> TrainingRound:
    cohort = rounds.draw(None, ask)
    now = rounds.open(ModelArrays(MODEL))
    now.ask([str(each) for each in cohort.ids])
    return now


def test_a_clients_first_answer_counts() -> None:
    now = Round(MINE, 0)
    now.ask(["Lyon"])

    assert now.expects("Lyon")
    assert not now.expects("Nice")
    assert now.accept("Lyon", ClientAnswer("a reply"))
    assert not now.expects("Lyon")


def test_who_did_not_answer_has_failed_and_each_reason_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = Round(MINE, 4)
    now.ask(SIZES)
    now.accept("Lyon", ClientAnswer("a reply"))

    with caplog.at_level(logging.WARNING, "fedcohort"):
        lost = now.close(SIZES)

    assert lost == ["Brest", "Nice"]
    assert caplog.messages == [
        "training in round 4: 2 of 3 clients failed (Brest, Nice): no answer: the deadline has "
        "passed"
    ]


def test_each_array_is_decoded_once_and_an_error_is_a_failure() -> None:
    rounds, _ = rounds_of(SizeClustered(3))
    now, decoded = opened(rounds), list[str]()

    def decode(value: Any) -> Any:
        decoded.append(str(value.shape))
        return value

    now.accept_arrays("Lyon", LazyArrays(moved(1.0), decode), "a reply")
    now.accept_arrays("Nice", LazyArrays({**moved(1.0), "w": b"?"}, decode), "a reply")

    assert decoded == ["(3,)", "()", *decoded[2:]]
    assert len(decoded) <= 3
    assert now.failed["Nice"].startswith("cannot be read: AttributeError")


def test_arrays_of_other_names_are_refused_unread() -> None:
    rounds, _ = rounds_of(SizeClustered(3))
    now = opened(rounds)

    def decode(value: Any) -> Any:
        raise MemoryError

    assert not now.accept_arrays("Lyon", LazyArrays({"v": b"a bomb"}, decode), "a reply")
    assert now.failed == {"Lyon": "has other arrays than the model"}


def test_the_step_is_the_selectors_and_counters_stay_whole() -> None:
    rounds, selector = rounds_of(SizeClustered(3))
    now = opened(rounds)
    steps = {name: float(k) for k, name in enumerate(now.asked)}
    for name, own in steps.items():
        now.accept_arrays(name, moved(own), "a reply")
    settled = selector.settle(list(steps))
    expected = sum(
        weight * steps[str(name)] for name, weight in zip(settled.ids, settled.weights, strict=True)
    )

    step = rounds.step(now)

    assert step is not None
    assert step["w"] == pytest.approx(np.full(3, expected))
    assert step["n"] == 2


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ["size", "similarity"])
def test_answers_that_were_read_one_by_one_are_those_read_together(name: str, whole: bool) -> None:
    """In any order of arrival."""
    rounds, selector = rounds_of(RECIPES[name](3))
    now = opened(rounds)
    for k, client in enumerate(reversed(now.asked)):
        metrics = {"rms_loss": float(k)}
        now.accept_arrays(client, moved(k + 1.0), "a reply", metrics=metrics, seconds=2.0 * k)
    together = selector.receive(
        now.updates,
        losses={client: answer.metrics["rms_loss"] for client, answer in now.answered.items()},
        durations={client: answer.seconds or 0.0 for client, answer in now.answered.items()},
        whole=whole,
    )

    found = now.answers(whole=whole)

    assert found.given.tolist() == together.given.tolist()
    assert found.clients.tolist() == together.clients.tolist()
    assert (found.kept is None) == (together.kept is None) == (name == "size")
    assert found.kept is None or (found.kept == together.kept).all()
    assert not whole or (found.rows.flat == together.rows.flat).all()  # type: ignore[union-attr]
    assert selector.settle(found).weights.tolist() == selector.settle(together).weights.tolist()


def test_an_update_can_come_as_a_difference() -> None:
    rounds, _ = rounds_of(SizeClustered(1))
    now = opened(rounds)
    (name,) = now.asked
    update = {"w": np.full(3, 2.0, np.float32), "n": np.array(1)}

    now.accept_arrays(name, update, "a reply", is_update=True)
    step = rounds.step(now)

    assert step is not None
    assert (step["w"].tolist(), int(step["n"])) == ([2.0, 2.0, 2.0], 1)


def test_a_void_round_moves_nothing_and_is_remembered_by_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds, selector = rounds_of(SizeClustered(3), Limits(min_replies=3))
    now = opened(rounds)
    now.accept_arrays("Nice", moved(1.0), "a reply")
    now.close(now.asked)

    step = rounds.step(now)
    rounds.end(now, has_moved=step is not None)

    assert step is None
    assert selector.round_ == 1
    assert "round 0 is void, the model stays; usable replies: 1, needed: 3" in caplog.text


def test_rounds_without_an_answer_end_with_a_sentence_and_an_empty_cohort_does_not_count() -> None:
    rounds, _ = rounds_of(RECIPES["poisson"](1), Limits(give_up_after=2))
    asked = list[bool]()

    def play() -> None:
        while True:
            now = opened(rounds)
            asked.append(bool(now.asked))
            now.close(now.asked)
            rounds.end(now, has_moved=rounds.step(now) is not None)

    with pytest.raises(DeploymentError, match="MyServer: 2 rounds in a row had no usable reply"):
        play()

    assert (asked.count(True), False in asked) == (2, True)


def test_a_long_cause_keeps_its_beginning_and_its_end() -> None:
    patience = Patience(MINE, Limits(give_up_after=1))

    with pytest.raises(DeploymentError) as caught:
        patience.end_round([], ["error 2: " + "x" * 400 + " CAUSE"])

    message = str(caught.value)
    assert message.startswith("MyServer: 1 round in a row had no usable reply: once 'error 2: xxx")
    assert "xxx ... xxx" in message
    assert "x CAUSE'. Fix the clients, or raise" in message
    assert len(message) < 300


def test_a_signal_that_no_client_gives_is_the_reason_of_an_empty_round() -> None:
    rounds, _ = rounds_of(RECIPES["power-of-choice"](1), Limits(give_up_after=1))
    now = opened(rounds, lambda signal, names: dict.fromkeys(names, "no number"))

    assert not now.asked
    with pytest.raises(DeploymentError, match="once 'no client gave its loss'"):
        rounds.end(now, has_moved=False)


def test_an_abandoned_round_is_closed_before_the_next(caplog: pytest.LogCaptureFixture) -> None:
    rounds, selector = rounds_of(Multinomial(2))
    opened(rounds)

    rounds.skip_abandoned()
    rounds.skip_abandoned()

    assert selector.round_ == 1
    assert caplog.text.count("round 0 was abandoned by the caller") == 1


def test_an_update_that_the_selector_cannot_sum_is_a_failure() -> None:
    """1e37 and more: sums of such entries do not fit float32."""
    rounds, _ = rounds_of(SizeClustered(1))
    now = opened(rounds)
    (name,) = now.asked

    assert not now.accept_arrays(name, {**moved(0.0), "w": np.full(3, 3e37, np.float32)}, "")
    assert now.failed == {name: "is not finite, or too large for its type"}


def test_a_round_without_a_selector_only_checks() -> None:
    now = TrainingRound(MINE, 0, ModelArrays(MODEL), ArrayCheck())
    now.ask(["Lyon"])

    assert now.accept_arrays("Lyon", moved(1.0), "a reply")
    assert now.updates["Lyon"]["w"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("has_selector", [False, True])
def test_a_model_is_scaled_when_it_comes_and_its_counter_needs_no_dimension(
    has_selector: bool,
) -> None:
    selector = Selector(Multinomial(1), {"Nice": 1}, seed=0, max_norm=1.0)
    selector.draw()
    now = TrainingRound(
        MINE,
        0,
        ModelArrays(MODEL),
        ArrayCheck(),
        selector if has_selector else None,
        max_norm=1.0,
        whole=False,
    )
    now.ask(["Nice"])
    update = np.array([0.0, 4.0, 0.0], np.float32)
    came = {"n": np.array(9), "w": update}
    read: list[str] = []

    def decode(name: str) -> Any:
        read.append(name)
        return came[name]

    assert now.accept_arrays("Nice", LazyArrays({name: name for name in came}, decode), "a reply")
    scaled = now.answered["Nice"].scaled
    assert scaled is not None
    assert scaled["w"].tolist() == [0.0, 1.0, 0.0]
    assert (scaled["n"].shape, int(scaled["n"])) == ((), 6)
    assert sorted(read) == ["n", "w"]


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        (10**300, True),
        (10**400, False),
        (-(10**400), False),
        (float("nan"), False),
        (float("inf"), False),
        ("1", False),
    ],
)
def test_a_metric_is_a_number_that_a_float_can_hold(value: object, is_valid: bool) -> None:
    assert is_number(value) == is_valid
