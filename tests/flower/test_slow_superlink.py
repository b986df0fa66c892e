"""A SuperLink that needs long for every call."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from fedcohort import SizeClustered
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
