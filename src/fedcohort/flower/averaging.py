"""Aggregation: write the replies that the inner strategy averages, and check its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from logging import getLogger

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from fedcohort._deployment import is_finite, is_finite_number
from fedcohort.cohort import Cohort
from fedcohort.flower.evaluation import mean_metrics
from fedcohort.flower.inner_strategy import (
    is_finite_state,
    is_flowers_own,
    put_back,
    shown_the_model,
    state_of,
    with_metrics,
)
from fedcohort.flower.replies import (
    Reply,
    SentModel,
    TrainingRound,
    metrics_of,
    with_content,
)
from fedcohort.selector import Selector

log = getLogger("flwr.fedcohort")

#: A client, its weight, and its model as the inner strategy gets it.
Share = tuple[str, float, ArrayRecord]
#: Averages metrics: (contents of replies, name of the weight) -> means.
AverageMetrics = Callable[[list[RecordDict], str], MetricRecord]


def averaged(
    strategy: Strategy, inner: FedAvg, now: TrainingRound, selector: Selector
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Let the strategy, which is ``inner`` or wraps it, aggregate; None: the model stays."""
    if strategy is inner and selector.cohort is not None and not len(selector.cohort):
        return _by_memory_alone(inner, now, selector), None
    key = inner.weighted_by_key
    if strategy is inner:
        shares = _shares(now, selector)
        messages = _messages(now, shares, key)
    else:
        shares, messages = _for_wrapper(now, selector, key)
    if not messages:
        return None, None
    by_whom = inner.train_metrics_aggr_fn
    with with_metrics(inner, lambda: _means(by_whom, now, shares, key)):
        return _step(strategy, inner, now, messages)


def _means(
    by_whom: AverageMetrics, now: TrainingRound, shares: Sequence[Share], weight_key: str
) -> MetricRecord:
    """Return the means of the metrics, of each over the replies that have it."""
    messages = []
    for key, weight, arrays in shares:
        metrics = MetricRecord({**now.answered[key].metrics, weight_key: weight})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        messages.append(with_content(now.answered[key].message, content))

    def average(group: list[Message]) -> MetricRecord:
        return by_whom([message.content for message in group], weight_key)

    means = mean_metrics(messages, weight_key, average, each_alone=is_flowers_own(by_whom))
    return means or MetricRecord()


def _shares(now: TrainingRound, selector: Selector) -> list[Share]:
    """Return whom to average; a client whose weighted model its types cannot hold has failed."""
    while True:
        settled = selector.settle(now.answered)
        if selector.variates is None and settled.sums_to_one:
            return _as_they_came(now, settled)
        shares, far = list[Share](), list[str]()
        for key, weight, update in selector.for_average(now.updates):
            reply = now.answered[str(key)]
            # As it came, where nothing changes: theta + (theta_i - theta) is rounded.
            arrays = reply.arrays if update is reply.update else now.sent.moved(update)
            if arrays is None:
                far.append(str(key))
            else:
                shares.append((str(key), weight, arrays))
        for each in far:
            now.reject(each, "its update is too large for its weight")
        if not far:
            return shares


def _as_they_came(now: TrainingRound, settled: Cohort) -> list[Share]:
    """Return the settled cohort's models; compute no update."""
    return [
        (str(key), weight, now.answered[str(key)].arrays)
        for key, weight in zip(settled.ids, settled.weights.tolist(), strict=True)
        if weight
    ]


def _for_wrapper(
    now: TrainingRound, selector: Selector, weight_key: str
) -> tuple[list[Share], list[Message]]:
    """Return the replies as they came, and the lost weight as a client that did not move.

    A wrapper clips what it gets: it must get the updates as they are.
    """
    settled = selector.settle(now.answered)
    shares = _as_they_came(now, settled)
    messages = _messages(now, shares, weight_key)
    if messages and settled.residual > 0 and not settled.sums_to_one:
        messages.append(_resting(messages, now.sent, weight_key))
    return shares, messages


def _by_memory_alone(inner: FedAvg, now: TrainingRound, selector: Selector) -> ArrayRecord | None:
    """If the cohort is empty, step by H, the mean of the remembered updates."""
    for _, weight, vector in selector.for_average({}):
        arrays = now.sent.moved(now.sent.unflat(vector)) if vector.any() else None
        if arrays is None:
            continue
        metrics = MetricRecord({inner.weighted_by_key: weight})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        message = Message(content, dst_node_id=0, message_type=MessageType.TRAIN)
        with with_metrics(inner, MetricRecord):
            shown_the_model(inner, now.number, (now.sent.record, now.config), now.grid)
            return _step(inner, inner, now, [message])[0]
    return None


def _messages(now: TrainingRound, shares: Sequence[Share], weight_key: str) -> list[Message]:
    """Write replies with these weights and models.

    Records get the same names in every reply, and only the metrics that all share go along.
    """
    names = _shared_metrics([now.answered[key] for key, _, _ in shares], weight_key)
    messages = []
    for key, weight, arrays in shares:
        message = now.answered[key].message
        found = now.answered[key].metrics
        metrics = MetricRecord({**{name: found[name] for name in names}, weight_key: weight})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        messages.append(with_content(message, content))
    return messages


def _shared_metrics(replies: Iterable[Reply], weight_key: str) -> list[str]:
    """Return the metrics that every reply has as one finite number."""
    records = [reply.metrics for reply in replies]
    names = set.intersection(*(set(record) for record in records)) if records else set()
    return sorted(
        name
        for name in names - {weight_key}
        if all(is_finite_number(record[name]) for record in records)
    )


def _resting(messages: Sequence[Message], sent: SentModel, weight_key: str) -> Message:
    """Return a reply of a client that did not move, with the weight that the others leave.

    Its metrics are the means of the others, so that the averages stay the same.
    """
    records = [metrics_of(message) for message in messages]
    weights = [float(record[weight_key]) for record in records]  # type: ignore[arg-type]
    means = {
        name: float(np.average([record[name] for record in records], weights=weights))
        for name in records[0]
    }
    metrics = MetricRecord({**means, weight_key: 1.0 - math.fsum(weights)})
    content = RecordDict({"arrays": _nudged(sent), "metrics": metrics})
    return with_content(messages[0], content)


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
    strategy: Strategy, inner: FedAvg, now: TrainingRound, messages: list[Message]
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Let the strategy aggregate these messages; drop a result that is not finite."""
    before = state_of(inner)
    with np.errstate(over="ignore", invalid="ignore"):
        arrays, metrics = strategy.aggregate_train(now.number, messages)
    if arrays is None:
        return None, metrics
    model = _model_of(arrays, now.sent)
    if model is None or not is_finite_state(inner):
        log.error("round %d: the aggregate is not finite; the model stays", now.number - 1)
        put_back(inner, before)
        return None, None
    return model, metrics


def _model_of(arrays: ArrayRecord, sent: SentModel) -> ArrayRecord | None:
    """Return the aggregate in the model's types; None where an entry is not finite.

    An average turns counters into floats, and floats into doubles.
    """
    typed = {}
    for name, array in arrays.items():
        own, new = sent.arrays[name].dtype, array.numpy()
        if not is_finite(new):
            return None
        if new.dtype != own:
            with np.errstate(over="ignore"):
                new = np.asarray(np.rint(new) if own.kind in "iub" else new, dtype=own)
            if not is_finite(new):
                return None
            array = Array(new)
        typed[name] = array
    return ArrayRecord(typed)
