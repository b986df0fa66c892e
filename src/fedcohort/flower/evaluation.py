"""Evaluation: who evaluates, which replies count, and the means of their metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from fedcohort.deployment.directory import bounded_sizes, claimed_size
from fedcohort.deployment.limits import Limits
from fedcohort.deployment.round import ClientAnswer, Round, weights_of
from fedcohort.designs import SizeClustered
from fedcohort.errors import SelectorError
from fedcohort.flower.directory import NodeDirectory
from fedcohort.flower.grid import GridView, error_of
from fedcohort.flower.inner_strategy import is_flowers_own, messages_to, waiting_for_no_more_than
from fedcohort.flower.replies import expected, metrics_of, rewritten
from fedcohort.flower.settings import FLOWER
from fedcohort.selector import Selector
from fedcohort.streams import Stream, stream

#: The suffix of a metric's name for its standard error.
STANDARD_ERROR = "-standard-error"


@final
class Evaluation:
    """Lets its own cohort, or the clients of the inner strategy, evaluate the model.

    Parameters
    ----------
    strategy, inner
        The strategy that writes and averages, and the FedAvg within it.
    draws
        Draw this many clients by sample size in every round. None leaves that to the strategy.
    seed
        The seed of the training's cohorts; evaluation draws from a stream of its own.
    limits
        How many samples a client can claim to have evaluated.
    """

    def __init__(
        self,
        strategy: Strategy,
        inner: FedAvg,
        draws: int | None,
        *,
        seed: int,
        limits: Limits,
    ) -> None:
        self._strategy, self._inner, self._limits = strategy, inner, limits
        self._selector: Selector | None = None
        if draws is not None:
            FLOWER.count("evaluate", draws)
            own_seed = int(stream(seed, use=Stream.EVALUATION).integers(2**63))
            self._selector = Selector(
                SizeClustered(draws), {}, seed=own_seed, on_failure="renormalise"
            )
        self._metadata: list[Any] = []  # of the messages that were written
        self._key_of: dict[int, str] = {}

    def describe(self) -> str:
        """Describe who evaluates."""
        if self._selector is not None:
            return f"{self._selector.recipe!r} draws the clients"
        if not self.is_on:
            return "none by clients"
        inner = self._inner
        return (
            f"{type(self._strategy).__name__} chooses the clients, fraction_evaluate "
            f"{inner.fraction_evaluate:g}, min_evaluate_nodes {inner.min_evaluate_nodes}"
        )

    @property
    def is_on(self) -> bool:
        """Whether there will be messages."""
        return self._selector is not None or self._inner.fraction_evaluate > 0

    def messages(
        self,
        number: int,
        sent: tuple[ArrayRecord, ConfigRecord],
        grid: Grid,
        directory: NodeDirectory,
    ) -> list[Message]:
        """Let the strategy write to those that evaluate, connected and eligible clients."""
        directory.refresh(grid)
        clients = directory.participants()
        nodes = {directory.connection_of(key): key for key in clients}
        if self._selector is None:
            with waiting_for_no_more_than(self._inner, len(nodes)):
                view = GridView(grid, list(nodes))
                messages = list(self._strategy.configure_evaluate(number, *sent, view))
        else:
            drawn = self._drawn(self._selector, directory.sizes, clients)
            chosen = [node for node, key in nodes.items() if key in drawn]
            messages = messages_to(chosen, self._strategy, number, sent, grid, is_training=False)
            FLOWER.logger.info("configure_evaluate: asks %d of %d clients", len(chosen), len(nodes))
        self._metadata = [message.metadata for message in messages]
        asked = {each.dst_node_id for each in self._metadata}
        self._key_of = {node: key for node, key in nodes.items() if node in asked}
        return messages

    def metrics(self, number: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the means of the metrics; with a cohort of its own also their standard errors."""
        key, usable = self._inner.weighted_by_key, self._usable(number, replies)
        errors: dict[str, float] = {}
        weights: Mapping[str, float]
        if self._selector is not None and self._selector.cohort is not None:
            settled = self._selector.settle(usable)
            weights = weights_of(settled)
            counts = dict(zip(weights, settled.counts, strict=True))
            errors = standard_errors(usable, counts, key)
            self._selector.skip()
        else:
            weights = self._bounded(usable, key)
        usable = {
            each: rewritten(usable[each], {**metrics_of(usable[each]), key: weight})
            for each, weight in weights.items()
        }

        def average(group: list[Message]) -> MetricRecord | None:
            return self._strategy.aggregate_evaluate(number, group)

        each_alone = is_flowers_own(self._inner.evaluate_metrics_aggr_fn)
        means = mean_metrics(usable.values(), key, average, each_alone=each_alone)
        return means and MetricRecord({**means, **errors})

    def _usable(self, number: int, replies: Iterable[Message]) -> dict[str, Message]:
        """Return the replies that can be averaged by client; log why others cannot."""
        now = Round(FLOWER, number, doing="evaluation", silence="no answer")
        now.ask(self._key_of.values())
        for name, message in expected(replies, self._metadata, self._key_of, now):
            problem = _problem(message, self._inner.weighted_by_key)
            now.accept(name, ClientAnswer(message) if problem is None else problem)
        now.close(now.asked)
        return {name: answer.reply for name, answer in now.answered.items()}

    def _bounded(self, usable: Mapping[str, Message], weight_key: str) -> dict[str, int]:
        """Return the samples that clients say they evaluated, bounded as their sizes are."""
        claimed = {name: int(metrics_of(own)[weight_key]) for name, own in usable.items()}  # type: ignore[arg-type]
        return bounded_sizes(claimed, [True] * len(claimed), self._limits, FLOWER.logger)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint needs; an evaluation that was interrupted counts as one."""
        if self._selector is None:
            return {}
        if self._selector.cohort is not None:
            self._selector.skip()
        return self._selector.state()

    def restoring(self, state: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """Read what :meth:`state` returned, and return the function that takes it over."""
        if self._selector is None or not state:
            return lambda: None
        try:
            return self._selector.restoring(state)
        except SelectorError as error:
            raise FLOWER.refusal(
                f"the state was written with another evaluate than "
                f"{self._selector.recipe.cohort_size}. Use the same one, or None."
            ) from error

    @staticmethod
    def _drawn(selector: Selector, sizes: Mapping[str, int], clients: Sequence[str]) -> set[str]:
        """Draw the clients that evaluate."""
        if selector.cohort is not None:
            selector.skip()
        if selector.clients != sizes:
            selector.clients = sizes
        return {str(each) for each in selector.draw(clients).ids}


def _problem(reply: Message, weight_key: str) -> str | None:
    """Return what is wrong with an evaluation reply."""
    if reply.has_error():
        return error_of(reply)
    if len(reply.content.metric_records) != 1:
        return "needs one record of metrics"
    weight = metrics_of(reply).get(weight_key)
    whole = int(weight) if isinstance(weight, float) and weight.is_integer() else weight
    size = claimed_size(whole, f"its {weight_key!r}")
    return size if isinstance(size, str) else None


def mean_metrics(
    messages: Iterable[Message],
    weight_key: str,
    average: Callable[[list[Message]], MetricRecord | None],
    *,
    each_alone: bool,
) -> MetricRecord | None:
    """Average every metric over the replies that have it as finite numbers.

    ``average`` gets replies with the same metrics: all of them once, where all report the same.
    Otherwise it is called for every set of metrics that the same replies have, if it averages
    ``each_alone``. A function of the user's can need several metrics of one reply: it gets the
    replies that have all metrics that are usual.
    """
    replies = [each for each in messages if float(metrics_of(each)[weight_key]) > 0]  # type: ignore[arg-type]
    means = MetricRecord()
    alike = _alike if each_alone else _complete
    for names, places in alike([metrics_of(each) for each in replies], weight_key).items():
        group = [(each, metrics_of(each)) for each in (replies[place] for place in places)]
        kept = [*names, weight_key]
        only = [rewritten(each, {name: own[name] for name in kept}) for each, own in group]
        means.update(average(only) or {})
    return means if replies else None


def _alike(records: list[MetricRecord], weight_key: str) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Return sets of metrics, and the replies that have them."""
    names = dict.fromkeys(name for record in records for name in record if name != weight_key)
    by_places: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        shapes = [_shape(record.get(name)) for record in records]
        for usual, _ in Counter(each for each in shapes if each is not None).most_common(1):
            places = tuple(k for k, shape in enumerate(shapes) if shape == usual)
            by_places.setdefault(places, []).append(name)
    return {tuple(names): places for places, names in by_places.items()}


def _complete(
    records: list[MetricRecord], weight_key: str
) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Return the set of metrics that most replies have, and the replies that have all of it."""
    shapes = [
        {name: _shape(value) for name, value in record.items() if name != weight_key}
        for record in records
    ]
    usable = [{item for item in each.items() if item[1] is not None} for each in shapes]
    sets = Counter(frozenset(each) for each in usable)
    usual = max(sets, key=lambda each: (sets[each], len(each)), default=frozenset())
    places = tuple(k for k, each in enumerate(usable) if usual <= each)
    return {tuple(sorted(name for name, _ in usual)): places} if places else {}


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a metric; None where it is missing or not finite."""
    if value is None:
        return None
    values = np.asarray(value, dtype=float)
    return values.shape if np.isfinite(values).all() else None


def standard_errors(
    replies: Mapping[str, Message], counts: Mapping[str, int], weight_key: str
) -> dict[str, float]:
    r"""Return the standard errors of the means over a cohort's draws, by metric.

    With K draws of metric values x, each client's as often as it was drawn,

    .. math:: s^2 = \frac{1}{K (K - 1)} \sum_k (x_k - \bar x)^2

    estimates the variance of their mean without bias if the draws are independent and identically
    distributed. If rows differ, as in Algorithm 1, it is too large on average, never too small.
    """
    errors: dict[str, float] = {}
    records = {key: metrics_of(reply) for key, reply in replies.items()}
    for name in dict.fromkeys(name for record in records.values() for name in record):
        having = [key for key, record in records.items() if _shape(record.get(name)) == ()]
        values = np.array([records[key][name] for key in having], dtype=float)
        draws = np.array([counts[key] for key in having], dtype=float)
        if name == weight_key or draws.sum() < 2:
            continue
        mean = np.average(values, weights=draws)
        square = float(draws @ (values - mean) ** 2) / (draws.sum() * (draws.sum() - 1))
        errors[name + STANDARD_ERROR] = math.sqrt(square)
    return errors
