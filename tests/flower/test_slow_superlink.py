"""A SuperLink that needs long for every call."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg
from httpx import HTTPStatusError, Request, Response

from fedcohort import PowerOfChoice, SizeClustered
from fedcohort.flower import CohortStrategy, Waits
from flower.federation import client_app, model
from flower.in_process import Clock, InProcessGrid


class SlowGrid(InProcessGrid):
    """Every look for replies takes ``seconds``; nobody trains."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__(client_app(), {100 + k: k for k in range(5)})
        self.clock, self.seconds = clock, seconds

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.clock.now += self.seconds
        return super().pull_messages(message_ids)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = list(messages)
        ids = list(super().push_messages(asked))
        for message in asked:
            if message.metadata.message_type == "train":
                self._waiting.pop(message.metadata.message_id)
        return ids


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.7])
def test_a_round_ends_in_time_although_looks_for_replies_are_slow(
    clock: Clock, seconds: float
) -> None:
    began: list[float] = []
    ended: list[float] = []

    def limit(round_: int) -> float:
        began.append(clock.now)
        return 20.0

    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0, waits=Waits(round=limit)
    )

    strategy.start(
        SlowGrid(clock, seconds),
        model(),
        num_rounds=3,
        evaluate_fn=lambda number, arrays: ended.append(clock.now),
    )

    times = [end - start for start, end in zip(began, ended[1:], strict=True)]
    assert all(20.0 - 2 * seconds - 1e-9 <= each <= 20.0 + 1e-9 for each in times), times


class RefusingGrid(InProcessGrid):
    """Sending takes seconds, and the SuperLink refuses all if the time of a message has passed.

    ``seconds`` holds how long each sending takes, the last one again and again. No client
    answers messages of the types ``silent``. ``ahead`` are the seconds by which the SuperLink's
    clock is ahead; ``refuses`` answers every message with this status.
    """

    def __init__(self, clock: Clock, *seconds: float, silent: str = "train") -> None:
        super().__init__(client_app(), {100 + k: k for k in range(5)})
        self.clock, self.seconds, self.silent = clock, list(seconds), silent
        self.ahead, self.refuses, self.n_refused = 0.0, 0, 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = list(messages)
        if asked[0].metadata.message_type == "query.num_examples":
            return super().push_messages(asked)
        self.clock.now += self.seconds[0]
        self.seconds = self.seconds[1:] or self.seconds
        ends = [each.metadata.created_at + each.metadata.ttl for each in asked]
        if self.refuses or min(ends) <= self.clock.time() + self.ahead:
            self.n_refused += 1
            request = Request("POST", "http://127.0.0.1/v1/runtime/push-messages")
            response = Response(self.refuses or 500, json={"detail": "Internal server error."})
            raise HTTPStatusError("refused", request=request, response=response)
        ids = list(super().push_messages(asked))
        for message in asked:
            if message.metadata.message_type in self.silent:
                self._waiting.pop(message.metadata.message_id)
        return ids


def redrawing(**more: Any) -> CohortStrategy:
    """Make a strategy that asks others for replies within 20 s, 19.5 s of them at once."""
    more = {"waits": Waits(round=20.0, reply=19.5)} | more
    return CohortStrategy(
        FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0, on_failure="redraw", **more
    )


def test_messages_that_expire_on_their_way_are_lost_and_training_continues(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first messages take no time; the redraw, with 0.5 s left, takes 1.6 s."""
    strategy, grid = redrawing(), RefusingGrid(clock, 0.0, 1.6, 0.0, 1.6)

    with caplog.at_level(logging.WARNING):
        strategy.start(grid, model(), num_rounds=2)

    assert strategy.rounds_done == grid.n_refused == 2
    assert "messages expired before the SuperLink got them" in caplog.text


def test_a_refusal_by_a_clock_that_is_a_little_ahead_is_a_lost_message_too(clock: Clock) -> None:
    strategy, grid = redrawing(), RefusingGrid(clock, 0.0)
    grid.ahead = 0.9

    strategy.start(grid, model(), num_rounds=1)

    assert strategy.rounds_done == 1
    assert grid.n_refused > 0


def test_nobody_is_asked_with_less_time_than_sending_takes(clock: Clock) -> None:
    """Every sending takes 1.6 s: with 0.5 s left nobody can answer."""
    strategy, grid = redrawing(), RefusingGrid(clock, 1.6)

    strategy.start(grid, model(), num_rounds=3)

    lives = [each.metadata.ttl for each in grid.sent if each.metadata.message_type == "train"]
    assert grid.n_refused == 0
    assert set(lives) == {19.5}
    assert clock.now <= 60.0 + 1e-9


@pytest.mark.parametrize(("status", "reply"), [(500, 10.0), (404, 1.0), (429, 0.5)])
def test_other_refusals_end_the_run(clock: Clock, status: int, reply: float) -> None:
    """500 while messages have time, and other answers even if they have expired."""
    strategy = redrawing(waits=Waits(round=20.0, reply=reply))
    grid = RefusingGrid(clock, 1.6)
    grid.refuses = status

    with pytest.raises(HTTPStatusError):
        strategy.start(grid, model(), num_rounds=1)


def test_a_signal_is_not_asked_for_when_no_time_is_left(clock: Clock) -> None:
    """A message with no seconds to live would get Flower's default of twelve hours."""
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), PowerOfChoice(2), seed=0, waits=Waits(round=0.001)
    )
    grid = RefusingGrid(clock, 0.0)

    strategy.start(grid, model(), num_rounds=1)

    assert {each for each, _ in grid.asked} == {"query.num_examples"}


def test_the_loop_of_flower_gets_no_messages_when_no_time_is_left(clock: Clock) -> None:
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0, waits=Waits(round=0.001)
    )

    messages = list(strategy.configure_train(1, model(), ConfigRecord(), RefusingGrid(clock, 0.0)))

    assert messages == []
    assert strategy.aggregate_train(1, []) == (None, None)


def test_an_evaluation_whose_messages_expire_has_no_metrics(clock: Clock) -> None:
    strategy = CohortStrategy(
        FedAvg(), SizeClustered(3), seed=0, evaluate=2, waits=Waits(round=20.0, reply=1.0)
    )
    grid = RefusingGrid(clock, 0.0, 1.6, 0.0, 1.6, silent="evaluate")

    result = strategy.start(grid, model(), num_rounds=2)

    assert grid.n_refused == 2
    assert dict(result.evaluate_metrics_clientapp) == {}
