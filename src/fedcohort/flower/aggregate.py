"""One step of the model, by the inner strategy; what is not finite never becomes the model."""

from __future__ import annotations

from logging import getLogger

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcohort.flower.inner_state import is_finite_state, put_back, state_of
from fedcohort.flower.inner_strategy import shown_the_model, without_metrics
from fedcohort.flower.training_round import TrainingRound
from fedcohort.flower.weighing import (
    leaves_the_range,
    memory_alone,
    model_of,
    sum_of,
    weighed_replies,
)

log = getLogger("flwr.fedcohort")


def within_range(now: TrainingRound, weights: dict[str, float]) -> dict[str, float]:
    """Leave out whose model the weights would stretch beyond what its types can hold."""
    while weights and ((total := sum_of(weights)) > 1.0 or now.recalled is not None):
        far = [
            key
            for key in weights
            if leaves_the_range(now.answered[key], now.sent, total, now.around(key))
        ]
        if not far:
            break
        for key in far:
            now.reject(key, "its update is too large for its weight")
        weights = {key: weight for key, weight in weights.items() if key not in far}
    return weights


def aggregated(
    strategy: Strategy, inner: FedAvg, now: TrainingRound, weights: dict[str, float]
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Let the strategy, which is ``inner`` or wraps it, aggregate; None: the model stays."""
    if not weights:
        return _by_memory_alone(inner, now), None
    messages = weighed_replies(
        now, weights, weight_key=inner.weighted_by_key, is_wrapped=strategy is not inner
    )
    return _step(strategy, inner, now, messages)


def _by_memory_alone(inner: FedAvg, now: TrainingRound) -> ArrayRecord | None:
    """Move by H where nobody was drawn, which v then is; where nobody answered the model stays.

    Else every round of an outage would go on in the direction of the last updates.
    """
    if now.recalled is None or now.counts or not now.recalled.mean.any():
        return None
    with without_metrics(inner):
        shown_the_model(inner, now.number, (now.sent.record, now.config), now.grid)
        message = memory_alone(now.sent, now.recalled.mean, inner.weighted_by_key)
        return _step(inner, inner, now, [message])[0]


def _step(
    strategy: Strategy, inner: FedAvg, now: TrainingRound, messages: list[Message]
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Let the strategy aggregate these messages; what is not finite is dropped."""
    before = state_of(inner)
    with np.errstate(over="ignore", invalid="ignore"):
        arrays, metrics = strategy.aggregate_train(now.number, messages)
    if arrays is None:
        return None, metrics
    model = model_of(arrays, now.sent)
    if model is None or not is_finite_state(inner):
        log.error("round %d: the aggregate is not finite; the model stays", now.number)
        put_back(inner, before)
        return None, None
    return model, metrics
