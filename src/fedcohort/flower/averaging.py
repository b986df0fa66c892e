"""Aggregation: write the replies that the inner strategy averages, and check its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from fedcohort._updates import in_type
from fedcohort.cohort import Cohort
from fedcohort.deployment.round import shared_metrics, weights_of
from fedcohort.flower.evaluation import mean_metrics
from fedcohort.flower.inner_strategy import (
    is_finite_state,
    is_flowers_own,
    put_back,
    shown_the_model,
    state_of,
    with_metrics,
    without_sampling_lines,
)
from fedcohort.flower.replies import (
    SentModel,
    TrainingMessages,
    client_model,
    metrics_of,
    record_of,
    rewritten,
)
from fedcohort.flower.secure import CLIPPED, unflat
from fedcohort.flower.settings import FLOWER
from fedcohort.selector import Selector

#: A client, its weight, and its model as the inner strategy gets it.
Share = tuple[str, float, ArrayRecord]
#: Averages metrics: (contents of replies, name of the weight) -> means.
AverageMetrics = Callable[[list[RecordDict], str], MetricRecord]


def averaged(
    strategy: Strategy, inner: FedAvg, now: TrainingMessages, selector: Selector, full: set[str]
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Let the strategy, which is ``inner`` or wraps it, aggregate; None: the model stays.

    ``full`` gets the names of counters that stay because their types cannot hold more.
    """
    if strategy is inner and selector.cohort is not None and not len(selector.cohort):
        return _by_memory_alone(inner, now, selector, full), None
    is_wrapped = strategy is not inner

    def is_plain(settled: Cohort) -> bool:
        # A wrapper clips what it gets: it always gets models as they came. Weight that is left
        # over rests on the model.
        return is_wrapped or (selector.estimator is None and settled.residual >= -1e-12)

    shares = [
        (name, weight, client_model(now.answers.answered[name]) if model is None else model)
        for name, weight, model in now.answers.shares(is_plain, record_of)
    ]
    if not shares:
        return None, None
    messages = _messages(now, shares)
    settled = selector.settle(now.answers.answered)
    if is_plain(settled) and settled.residual > 0 and not settled.sums_to_one:
        unmoved = _nudged(now.sent) if is_wrapped else now.sent.record
        messages += _unmoved_reply(messages, unmoved, now.weight_key)
    # A wrapper adds its noise to counters too.
    counters = {} if is_wrapped else _counters(now, settled)
    average_metrics = inner.train_metrics_aggr_fn
    with with_metrics(inner, lambda: _means(average_metrics, now, shares)):
        return _step(strategy, inner, now, messages, counters, full)


def _counters(now: TrainingMessages, settled: Cohort) -> dict[str, NDArray[Any] | None]:
    """Return the model's counters after the round: moved by the weighted sum, rounded once.

    None where the type cannot hold the sum.
    """
    answered = now.answers.answered
    weights = weights_of(settled).items()
    counters = {}
    for name in now.sent.counters:
        step = sum(w * answered[key].step(name).astype(np.float64) for key, w in weights)
        counters[name] = now.sent.moved_counter(name, np.asarray(step))
    return counters


def _means(
    average_metrics: AverageMetrics, now: TrainingMessages, shares: Sequence[Share]
) -> MetricRecord:
    """Return each metric's mean over the replies that report it."""
    weight_key, answered = now.weight_key, now.answers.answered
    messages = [
        rewritten(answered[key].reply, {**answered[key].metrics, weight_key: weight}, arrays)
        for key, weight, arrays in shares
    ]

    def average(group: list[Message]) -> MetricRecord:
        return average_metrics([message.content for message in group], weight_key)

    means = mean_metrics(messages, weight_key, average, each_alone=is_flowers_own(average_metrics))
    return means or MetricRecord()


def _by_memory_alone(
    inner: FedAvg, now: TrainingMessages, selector: Selector, full: set[str]
) -> ArrayRecord | None:
    """If the cohort is empty, step by H, the mean of the remembered updates."""
    for _, weight, update in selector.for_average({}):
        moved = now.sent.plus(update)
        if moved is None or not any(np.any(part) for part in update.values()):
            continue
        arrays = record_of(moved)
        metrics = MetricRecord({now.weight_key: weight})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        message = Message(content, dst_node_id=0, message_type=MessageType.TRAIN)
        with with_metrics(inner, MetricRecord):
            shown_the_model(inner, now.answers.number, (now.sent.record, now.config), now.grid)
            counters = {name: now.sent.arrays[name] for name in now.sent.counters}  # they stay
            return _step(inner, inner, now, [message], counters, full)[0]
    return None


def stepped(
    strategy: Strategy,
    inner: FedAvg,
    now: TrainingMessages,
    mean: NDArray[np.float64],
    settled: Cohort,
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Let the strategy, which is ``inner`` or wraps it, take one reply.

    That is the model, moved by the sum of the settled weights times the mean.
    """
    step = unflat(float(settled.weights.sum()) * mean, now.sent)
    means, moved = now.answers.mean_metrics(settled) or {}, now.sent.plus(step)
    if moved is None:
        FLOWER.logger.error(
            "round %d: the aggregate is too large; the model stays", now.answers.number
        )
        return None, None
    reports = [own.metrics for own in now.answers.answered.values()]
    if n_clipped := sum(int(own.get(CLIPPED, 0)) for own in reports):
        FLOWER.logger.warning(
            "round %d: %d of %d entries were clipped, which biases the sum: raise clip, or lower "
            "the clients' step size",
            *(now.answers.number, n_clipped, len(reports) * now.sent.dimension),
        )
    metrics = MetricRecord({**means, CLIPPED: n_clipped, now.weight_key: 1.0})
    content = RecordDict({"arrays": record_of(moved), "metrics": metrics})
    message = Message(content, dst_node_id=0, message_type=MessageType.TRAIN)
    with without_sampling_lines("number of clients returning parameters"):
        return _step(strategy, inner, now, [message], {}, set())


def _messages(now: TrainingMessages, shares: Sequence[Share]) -> list[Message]:
    """Write replies with these weights and models.

    Only metrics that every reply has are kept.
    """
    answers = [now.answers.answered[key] for key, _, _ in shares]
    names = shared_metrics([answer.metrics for answer in answers])
    return [
        rewritten(own.reply, {**{n: own.metrics[n] for n in names}, now.weight_key: weight}, arrays)
        for own, (_, weight, arrays) in zip(answers, shares, strict=True)
    ]


def _unmoved_reply(
    messages: Sequence[Message], arrays: ArrayRecord, weight_key: str
) -> list[Message]:
    """Return the reply of a client that did not move, with the weight that the others leave.

    Its metrics are the means of the others, so that the averages stay the same.
    """
    records = [metrics_of(message) for message in messages]
    weights = [float(record[weight_key]) for record in records]  # type: ignore[arg-type]
    means = {
        name: float(np.average([record[name] for record in records], weights=weights))
        for name in records[0]
    }
    return [rewritten(messages[0], {**means, weight_key: 1.0 - math.fsum(weights)}, arrays)]


def _nudged(sent: SentModel) -> ArrayRecord:
    """Move one entry by the least amount: Flower's clipping divides by the norm of an update."""
    arrays = dict(sent.record.items())
    for name, own in sent.arrays.items():
        if own.size and own.dtype.kind == "f":
            values = own.copy()
            first = values.reshape(-1)[0]
            least = max(np.spacing(np.abs(first)), values.dtype.type(1e-12))
            values.reshape(-1)[0] = first + least
            arrays[name] = Array(values)
            break
    return ArrayRecord(arrays)


def _step(
    strategy: Strategy,
    inner: FedAvg,
    now: TrainingMessages,
    messages: list[Message],
    counters: Mapping[str, NDArray[Any] | None],
    full: set[str],
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Let the strategy aggregate these messages; drop a result that is not finite."""
    before, number = state_of(inner), now.answers.number
    with np.errstate(over="ignore", invalid="ignore"):
        arrays, metrics = strategy.aggregate_train(number, messages)
    if arrays is None:
        return None, metrics
    model = _model_of(arrays, now.sent, counters, full)
    if model is None or not is_finite_state(inner):
        FLOWER.logger.error("round %d: the aggregate is not finite; the model stays", number)
        put_back(inner, before)
        return None, None
    return model, metrics


def _model_of(
    arrays: ArrayRecord,
    sent: SentModel,
    counters: Mapping[str, NDArray[Any] | None],
    full: set[str],
) -> ArrayRecord | None:
    """Return the aggregate in the model's order and types; None where a type cannot hold it.

    An average turns floats into doubles. Counters follow the aggregate whatever the strategy does:
    FedAdam would divide their steps by what they were before. One whose type cannot hold the sum
    stays, and the log says so once.
    """
    typed = {}
    for name, own in sent.arrays.items():
        array = arrays[name]
        new = array.numpy()
        values = counters[name] if name in counters else in_type(new, own)
        if values is None and name not in sent.counters:
            return None
        if values is None and name not in full:
            full.add(name)
            FLOWER.logger.warning("%s stays: its type, %s, cannot hold the sum", name, own.dtype)
        kept = own if values is None else values
        typed[name] = array if kept is new else Array(kept)
    return ArrayRecord(typed)
