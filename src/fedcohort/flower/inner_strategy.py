"""The strategy that aggregates: one that respects weights, told to write to all it sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

from fedcohort.designs import Recipe
from fedcohort.errors import FlowerError

#: They look at the clients' models one by one, whatever weights they carry.
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


def weighing_strategy(strategy: Strategy) -> FedAvg:
    """Return the FedAvg within a strategy and its wrappers; refuse what ignores weights."""
    inner: Any = strategy
    while not isinstance(inner, FedAvg) and isinstance(getattr(inner, "strategy", None), Strategy):
        inner = inner.strategy  # a wrapper
    if isinstance(inner, WEIGHTLESS) or not isinstance(inner, FedAvg):
        raise FlowerError(
            f"CohortStrategy: {type(inner).__name__} ignores the weights that make an aggregate "
            f"unbiased. Use FedAvg, or one that inherits its weighted average: FedProx, FedAdam, "
            f"FedYogi, FedAdagrad, FedAvgM."
        )
    return inner


@contextmanager
def writing_to_all(inner: FedAvg, n_nodes: int) -> Iterator[None]:
    """Let the strategy choose all of ``n_nodes`` nodes; evaluation stays as it is."""
    names = ("fraction_train", "min_train_nodes", "min_available_nodes")
    before = {name: getattr(inner, name) for name in names}
    for name, value in zip(names, (1.0, n_nodes, n_nodes), strict=True):
        setattr(inner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(inner, name, value)


def refuse_secure_aggregation(recipe: Recipe) -> None:
    """Say why secure aggregation does not go with the recipe, or with Flower."""
    if recipe.learns:
        raise FlowerError(
            f"CohortStrategy: {recipe.name} compares the clients' single updates, which secure "
            f"aggregation hides from the server. Use a design that needs sizes alone, such as size."
        )
    raise FlowerError(
        "CohortStrategy: Flower's Message API has no SecAgg+ yet; it is part of the older "
        "workflow, which draws clients itself. Use TLS, or differential privacy."
    )
