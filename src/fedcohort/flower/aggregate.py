"""One step of the model, by the inner strategy; what is not finite never becomes the model."""

from __future__ import annotations

from logging import getLogger

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcohort.flower.inner_state import is_finite_state, put_back, state_of
from fedcohort.flower.training_round import TrainingRound
from fedcohort.flower.weighing import leaves_the_range, model_of, sum_of, weighed_replies

log = getLogger("flwr.fedcohort")


def within_range(now: TrainingRound, weights: dict[str, float]) -> dict[str, float]:
    """Leave out whose model the weights would stretch beyond what its types can hold."""
    while (total := sum_of(weights)) > 1.0:
        far = [key for key in weights if leaves_the_range(now.answered[key], now.sent, total)]
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
        return None, None
    messages = weighed_replies(
        now.answered,
        weights,
        now.sent,
        weight_key=inner.weighted_by_key,
        is_wrapped=strategy is not inner,
    )
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
