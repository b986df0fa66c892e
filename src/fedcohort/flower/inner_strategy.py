"""The strategy that aggregates: its checks, its state, and the nodes that it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from logging import getLogger
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

from fedcohort._deployment import ModelArrays
from fedcohort.designs import Recipe
from fedcohort.errors import FlowerError
from fedcohort.flower.grid import GridView
from fedcohort.selector import Selector

log = getLogger("flwr.fedcohort")

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
#: Between an attribute's name and an array's.
DOT = "."


def weighing_strategy(strategy: Strategy) -> FedAvg:
    """Return the FedAvg within a strategy and its wrappers; refuse what ignores weights."""
    inner: Any = strategy
    while not isinstance(inner, FedAvg) and isinstance(getattr(inner, "strategy", None), Strategy):
        if getattr(inner, "accountant", None) is not None:
            raise FlowerError(
                f"CohortStrategy: the accountant of {type(inner).__name__} needs replies of equal "
                f"weight, always as many; a client that is drawn twice weighs twice. Leave the "
                f"accountant out, and account for max_draws yourself."
            )
        inner = inner.strategy  # a wrapper
    if isinstance(inner, WEIGHTLESS) or not isinstance(inner, FedAvg):
        raise FlowerError(
            f"CohortStrategy: {type(inner).__name__} ignores the weights that make an aggregate "
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
        raise FlowerError(
            f"CohortStrategy: {type(strategy).__name__} must write to the {len(nodes)} drawn "
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


def _writing_to_all(inner: FedAvg, n_nodes: int) -> AbstractContextManager[None]:
    """Let the strategy choose all of ``n_nodes`` nodes."""
    fractions = {"fraction_train": 1.0, "fraction_evaluate": 1.0}
    least = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
    return _with(inner, **fractions, **dict.fromkeys(least, n_nodes))


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


def state_of(inner: FedAvg) -> dict[str, Any]:
    """Return the strategy's state by attribute; it replaces these values, never changes them."""
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


def check_model(sent: ModelArrays, inner: FedAvg, selector: Selector) -> None:
    """Refuse another model than the one that the strategy or the selector goes on from."""
    for known in (selector.memory, selector.variates):
        if known is not None and known.dimension != sent.dimension:
            raise FlowerError(
                f"CohortStrategy: remembers updates of {known.dimension} numbers; got a model of "
                f"{sent.dimension}. Use a new strategy for another model."
            )
    model = sent.arrays
    shapes = [array.shape for array in model.values()]
    for value in state_of(inner).values():
        is_named = hasattr(value, "items")
        parts = list(value.values()) if is_named else value or []
        found = [tuple(part.shape) for part in parts]
        if parts and (found != shapes or (is_named and list(value) != list(model))):
            raise FlowerError(
                f"CohortStrategy: {type(inner).__name__} goes on from arrays of shapes {found}; "
                f"got a model of shapes {shapes}. Use a new strategy for another model."
            )


def packed(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the state as named arrays, for a file."""
    return dict(_arrays(state))


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Invert :func:`packed`."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        attribute, _, part = name.partition(DOT)
        found.setdefault(attribute, {})[part] = array
    return {attribute: _value(attribute, parts) for attribute, parts in found.items()}


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
            whole = array.numpy() if isinstance(array, Array) else np.asarray(array)
            yield f"{attribute}{DOT}{name}", whole


def check_wrapper(wrapper: Strategy, recipe: Recipe, *, is_difference: bool) -> None:
    """Refuse a wrapper for privacy with the difference estimator.

    Warn where its noise does not cover a choice that depends on updates.
    """
    if is_difference:
        raise FlowerError(
            f"CohortStrategy: with the difference estimator {type(wrapper).__name__} would clip "
            f"differences in the place of updates, and a client's last update would move the model "
            f"in every later round, which no noise accounts for. Use estimator='plain'."
        )
    if recipe.learns:
        getLogger(__name__).warning(
            "CohortStrategy: %s chooses by the clients' updates before %s adds noise; what the "
            "choice of clients reveals is not in its guarantee. Use size where that counts.",
            recipe.name,
            type(wrapper).__name__,
        )


def refuse_secure_aggregation(recipe: Recipe, *, is_difference: bool) -> None:
    """Refuse secure aggregation, with the reason."""
    if is_difference:
        raise FlowerError(
            "CohortStrategy: the difference estimator remembers the clients' single updates, which "
            "secure aggregation hides from the server. Use estimator='plain'."
        )
    if recipe.learns:
        raise FlowerError(
            f"CohortStrategy: {recipe.name} compares the clients' single updates, which secure "
            f"aggregation hides from the server. Use a design that needs sizes alone, such as size."
        )
    raise FlowerError(
        "CohortStrategy: Flower's Message API has no SecAgg+ yet; it is part of the older "
        "workflow, which draws clients itself. Use TLS, or differential privacy."
    )


def refuse_other_loops(*, is_difference: bool) -> None:
    """Refuse a foreign loop: it cannot draw again, take first answers, or remember updates."""
    if is_difference:
        raise FlowerError(
            "CohortStrategy: the difference estimator needs its own start: under a wrapper for "
            "privacy around it a client's last update would move the model in every later round, "
            "which no noise accounts for. Call CohortStrategy's start, or use estimator='plain'."
        )
    raise FlowerError(
        "CohortStrategy: on_failure='redraw' and extra need its own start; a wrapper around it "
        "runs another loop, sees nothing of redrawn clients and would not clip their updates. Put "
        "the wrapper inside, CohortStrategy(Wrapper(FedAvg()), ...), or use on_failure='keep'."
    )
