"""The strategy that aggregates: its checks, its state, and the nodes that it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from logging import LogRecord, getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from fedcohort.deployment.arrays import ModelArrays
from fedcohort.designs import Design, Recipe
from fedcohort.flower.grid import GridView
from fedcohort.flower.settings import FLOWER
from fedcohort.selector.planner import check_equal_draws
from fedcohort.selector.settings import Presence

#: These strategies ignore the clients' weights.
WEIGHTLESS = (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    MultiKrum,
    QFedAvg,
)
#: Attributes of FedAdam, FedYogi and FedAdagrad, and of FedAvgM.
MOMENTS = ("m_t", "v_t")
MOMENTUM = ("momentum_vector", "current_arrays")
#: Parts of Flower's log lines about the clients that FedAvg would choose.
SAMPLING_LINES = (
    "Fraction: train",
    "Minimum nodes: train",
    ": Sampled ",
    "configure_fit: strategy sampled",
    "aggregate_fit: received",
)
#: Between an attribute's name and an array's.
DOT = "."


def weighing_strategy(strategy: Strategy) -> FedAvg:
    """Return the FedAvg within a strategy and its wrappers; refuse what ignores weights."""
    inner: Any = strategy
    while not isinstance(inner, FedAvg) and isinstance(getattr(inner, "strategy", None), Strategy):
        if getattr(inner, "accountant", None) is not None:
            raise FLOWER.refusal(
                f"the accountant of {type(inner).__name__} needs replies of equal "
                f"weight, always as many; a client that is drawn twice weighs twice. Leave the "
                f"accountant out, and account for max_draws yourself."
            )
        inner = inner.strategy  # a wrapper
    if isinstance(inner, WEIGHTLESS) or not isinstance(inner, FedAvg):
        raise FLOWER.refusal(
            f"{type(inner).__name__} ignores the weights that make an aggregate "
            f"unbiased. Use FedAvg, or one that inherits its weighted average: FedProx, FedAdam, "
            f"FedYogi, FedAdagrad, FedAvgM."
        )
    return inner


def messages_to(
    nodes: Sequence[int],
    strategy: Strategy,
    number: int,
    sent: tuple[ArrayRecord, ConfigRecord],
    grid: Grid,
    *,
    is_training: bool = True,
) -> list[Message]:
    """Let the strategy write to these nodes, and check that it does."""
    if not nodes:
        return []
    write = strategy.configure_train if is_training else strategy.configure_evaluate
    with _writing_to_all(weighing_strategy(strategy), len(nodes)):
        messages = list(write(number, *sent, GridView(grid, nodes)))
    if sorted(message.metadata.dst_node_id for message in messages) != sorted(nodes):
        raise FLOWER.refusal(
            f"{type(strategy).__name__} must write to the {len(nodes)} drawn "
            f"clients, each once; it wrote {len(messages)} messages. Use a strategy that trains "
            f"and evaluates on all nodes of its grid."
        )
    return messages


def shown_the_model(
    inner: FedAvg, number: int, sent: tuple[ArrayRecord, ConfigRecord], grid: Grid
) -> None:
    """Show the round's model to the strategy, which writes no message; FedAdam steps from it."""
    with _writing_to_all(inner, 0):
        list(inner.configure_train(number, *sent, GridView(grid, [])))


def with_metrics(
    inner: FedAvg, average: Callable[[], MetricRecord]
) -> AbstractContextManager[None]:
    """Let the strategy report these metrics of training."""
    return _with(inner, train_metrics_aggr_fn=lambda contents, weight_key: average())


def is_flowers_own(average: object) -> bool:
    """Whether a function that averages metrics is Flower's, which takes each metric alone."""
    return average is aggregate_metricrecords


@contextmanager
def _writing_to_all(inner: FedAvg, n_nodes: int) -> Iterator[None]:
    """Let the strategy choose all of ``n_nodes`` nodes."""
    fractions = {"fraction_train": 1.0, "fraction_evaluate": 1.0}
    least = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
    with _with(inner, **fractions, **dict.fromkeys(least, n_nodes)), without_sampling_lines():
        yield


def waiting_for_no_more_than(inner: FedAvg, n_nodes: int) -> AbstractContextManager[None]:
    """Let the strategy evaluate on as many nodes as there are, where it asks for more."""
    names = ("min_evaluate_nodes", "min_available_nodes")
    return _with(inner, **{name: min(getattr(inner, name), n_nodes) for name in names})


@contextmanager
def _with(inner: FedAvg, **values: Any) -> Iterator[None]:
    before = {name: getattr(inner, name) for name in values}
    for name, value in values.items():
        setattr(inner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(inner, name, value)


@contextmanager
def without_sampling_lines(*more: str) -> Iterator[None]:
    """Drop Flower's log lines about its own sampling, and ``more``: it does not choose."""

    def is_kept(record: LogRecord) -> bool:
        return not any(part in str(record.msg) for part in (*SAMPLING_LINES, *more))

    logger = getLogger("flwr")
    logger.addFilter(is_kept)
    try:
        yield
    finally:
        logger.removeFilter(is_kept)


def state_of(inner: FedAvg) -> dict[str, Any]:
    """Return the strategy's state by attribute; Flower replaces the values, never mutates them."""
    names = [*(MOMENTS if hasattr(inner, "m_t") else ())]
    names += MOMENTUM if hasattr(inner, "momentum_vector") else ()
    return {name: getattr(inner, name) for name in names}


def put_back(inner: FedAvg, state: Mapping[str, Any]) -> None:
    """Give the strategy a state that :func:`state_of` or :func:`unpacked` returned."""
    for name, value in state.items():
        setattr(inner, name, value)


def is_finite_state(inner: FedAvg) -> bool:
    """Whether all numbers of the strategy's state are finite."""
    return all(np.isfinite(array).all() for _, array in _arrays(state_of(inner)))


def check_model(sent: ModelArrays, inner: FedAvg) -> None:
    """Refuse another model than the one that the strategy continues from.

    Bring the strategy's state into the model's order.
    """
    shapes = {name: array.shape for name, array in sent.arrays.items()}
    state = state_of(inner)
    names = list(state.get("current_arrays") or shapes)  # those of FedAvgM's momentum
    for attribute, value in state.items():
        if value is None:
            continue
        named = value.items() if hasattr(value, "items") else zip(names, value, strict=True)
        parts = dict(named)
        own_shapes = {name: tuple(part.shape) for name, part in parts.items()}
        if own_shapes != shapes:
            raise FLOWER.refusal(
                f"{type(inner).__name__} continues from arrays {own_shapes!s:.200}; got a "
                f"model of {shapes!s:.200}. Use a new strategy for another model."
            )
        if list(parts) != list(shapes):
            # FedAvgM adds arrays by position.
            ordered = {name: _numpy(parts[name]) for name in shapes}
            put_back(inner, {attribute: _value(attribute, ordered)})


def packed(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the state as named arrays, for a file."""
    return dict(_arrays(state))


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Invert :func:`packed`."""
    by_attribute: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        attribute, _, part = name.partition(DOT)
        by_attribute.setdefault(attribute, {})[part] = array
    return {attribute: _value(attribute, parts) for attribute, parts in by_attribute.items()}


def _value(attribute: str, parts: dict[str, NDArray[Any]]) -> Any:
    if attribute == "current_arrays":
        return ArrayRecord({name: Array(array) for name, array in parts.items()})
    return list(parts.values()) if attribute == "momentum_vector" else parts


def _arrays(state: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    for attribute, value in state.items():
        if value is None:
            continue
        parts = value.items() if hasattr(value, "items") else enumerate(value)
        for name, array in parts:
            yield f"{attribute}{DOT}{name}", _numpy(array)


def _numpy(array: Any) -> NDArray[Any]:
    return array.numpy() if isinstance(array, Array) else np.asarray(array)


def check_wrapper(
    wrapper: Strategy,
    recipe: Recipe,
    estimator: str | None,
    *,
    presence: Presence,
    on_failure: str,
) -> None:
    """Refuse a wrapper for privacy with settings that its noise does not cover.

    These are an estimator, given by name, that remembers updates, weights that make up for
    presence, and weights that grow when clients fail. Warn of a choice that depends on updates.
    """
    if presence != "ignore":
        raise FLOWER.refusal(
            f"{type(wrapper).__name__} needs equal weights, and with presence={presence!r} a "
            f"client that comes rarely weighs more. Use presence='ignore'."
        )
    if on_failure == "renormalise":
        raise FLOWER.refusal(
            f"on_failure='renormalise' raises the weights of those that answer, and the noise of "
            f"{type(wrapper).__name__} does not grow with them. Use on_failure='keep'."
        )
    if estimator is not None:
        raise FLOWER.refusal(
            f"with the {estimator} estimator {type(wrapper).__name__} would clip differences from "
            f"predictions in the place of updates, and a client's past updates would move the "
            f"model in every later round, which no noise accounts for. Use estimator='plain'."
        )
    if recipe.learns:
        getLogger(__name__).warning(
            "CohortStrategy: %s chooses by the clients' updates before %s adds noise; what the "
            "choice of clients reveals is not in its guarantee. Use size where that counts.",
            recipe.name,
            type(wrapper).__name__,
        )


def check_weights(wrapper: Strategy, design: Design, recipe: Recipe) -> None:
    """Refuse a design whose weights a wrapper for privacy would change: it averages replies."""
    check_equal_draws(design, recipe, "a privacy wrapper")
    if design.size_deviation():
        raise FLOWER.refusal(
            f"the draws of {recipe.name!r} vary in number, and {type(wrapper).__name__} averages "
            f"replies, so weights that sum to more than 1 would shrink. Put the wrapper around "
            f"CohortStrategy, or use size."
        )


def warn_of_weights(wrapper: Any, design: Design) -> None:
    """Warn if a wrapper's noise is for smaller weights than a client can have."""
    covered = getattr(wrapper, "num_sampled_clients", None)
    if covered is None or not design.exact_counts:
        return
    largest = design.largest_weight()
    if covered * largest > 1 + 1e-9:
        getLogger(__name__).warning(
            "CohortStrategy: a client can have the weight %.3g, and the noise of %s is for 1 / "
            "num_sampled_clients = %.3g. Pass num_sampled_clients=%d, or refuse clients that are "
            "drawn twice with max_draws=1.",
            *(largest, type(wrapper).__name__, 1 / covered, max(1, int(1 / largest + 1e-9))),
        )


def refuse_other_loops(estimator: str | None, *, is_secure: bool) -> None:
    """Refuse a foreign loop: it cannot draw again, play a protocol, or remember updates."""
    if is_secure:
        raise FLOWER.refusal(
            "secure needs its own start, which plays the protocol; another loop would ask clients "
            "for plain updates. Call CohortStrategy's start."
        )
    if estimator is not None:
        raise FLOWER.refusal(
            f"the {estimator} estimator needs its own start: under a wrapper for privacy around "
            f"it a client's past updates would move the model in every later round, which no "
            f"noise accounts for. Call CohortStrategy's start, or use estimator='plain'."
        )
    raise FLOWER.refusal(
        "on_failure='redraw' and extra need its own start; a wrapper around it "
        "runs another loop, sees nothing of redrawn clients and would not clip their updates. Put "
        "the wrapper inside, CohortStrategy(Wrapper(FedAvg()), ...), or use on_failure='keep'."
    )
