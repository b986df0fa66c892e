"""A federation whose clients move the model by known amounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedcohort.flower import CohortStrategy, register_size_query
from flower.in_process import Clock, InProcessGrid, SlowGrid

SIZES = [50, 30, 20, 70, 10, 0]
SHAPES = ((3, 2), (4,))
DIMENSION = 10

Change = Callable[[int, RecordDict], RecordDict]


def update_of(client: int) -> NDArray[np.float32]:
    """What client ``client`` adds to the model, as one vector."""
    return np.random.default_rng(client).normal(size=DIMENSION).astype(np.float32)


def layers(vector: NDArray[Any]) -> list[NDArray[Any]]:
    """Cut a vector into the model's arrays."""
    return [vector[:6].reshape(SHAPES[0]), vector[6:].reshape(SHAPES[1])]


def client_app(
    sizes: list[Any] = SIZES,
    change: Change = lambda client, content: content,
    update: Callable[[int], NDArray[Any]] = update_of,
    mods: list[Any] | None = None,
    train_mods: list[Any] | None = None,
    properties: Callable[[int], dict[str, Any]] | None = None,
) -> ClientApp:
    """Make an app that adds its client's update; ``change`` can spoil a reply."""
    app = ClientApp(mods=mods)

    @app.train(mods=train_mods)
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        record = message.content.array_records["arrays"]
        arrays = {name: array.numpy() for name, array in record.items()}
        steps = dict(zip(sorted(arrays), layers(update(client)), strict=True))
        moved = {name: Array(a + steps[name].astype(a.dtype)) for name, a in arrays.items()}
        content = RecordDict(
            {
                "arrays": ArrayRecord(moved),
                "metrics": MetricRecord({"num-examples": 1, "loss": float(client)}),
            }
        )
        return Message(change(client, content), reply_to=message)

    def own_properties(context: Context) -> dict[str, Any]:
        assert properties is not None  # for mypy: else it is not registered
        return properties(int(context.node_config["partition-id"]))

    register_size_query(
        app,
        lambda context: sizes[int(context.node_config["partition-id"])],
        properties=properties and own_properties,
    )
    return app


def grid_of(n: int = len(SIZES), *, first: int = 1000, **more: Any) -> InProcessGrid:
    """Make a grid of n clients with node ids that say nothing."""
    app = more.pop("app", None) or client_app()
    ids = np.random.default_rng(first).permutation(n) + first
    return InProcessGrid(app, {int(node): client for client, node in enumerate(ids)}, **more)


def slow_grid(
    clock: Clock,
    delay: Callable[[int, str], float],
    n: int = len(SIZES),
    *,
    app: ClientApp | None = None,
) -> SlowGrid:
    """Make a grid of n clients whose replies take ``delay(client, message type)`` seconds."""
    ids = np.random.default_rng(1000).permutation(n) + 1000
    partitions = {int(node): client for client, node in enumerate(ids)}

    def of_node(node: int, kind: str) -> float:
        return delay(grid.partitions[node], kind) if node in grid.partitions else 0.0

    grid = SlowGrid(app or client_app(), partitions, clock=clock, delay=of_node)
    return grid


def node_of(grid: InProcessGrid, client: int) -> int:
    """Return the first node of a client."""
    return next(node for node, each in grid.partitions.items() if each == client)


def model(value: float = 1.0) -> ArrayRecord:
    return ArrayRecord(layers(np.full(DIMENSION, value, dtype=np.float32)))


def flat(arrays: ArrayRecord) -> NDArray[np.float64]:
    return np.concatenate([a.ravel().astype(np.float64) for a in arrays.to_numpy_ndarrays()])


def weights_of(strategy: CohortStrategy) -> dict[str, float]:
    """Return the weights of the open round's cohort, by client."""
    cohort = strategy.selector.cohort
    assert cohort is not None
    return dict(zip(map(str, cohort.ids), cohort.weights.tolist(), strict=True))


def counts_of(strategy: CohortStrategy) -> dict[str, int]:
    """Return how often the open round's cohort drew each client."""
    cohort = strategy.selector.cohort
    assert cohort is not None
    return dict(zip(map(str, cohort.ids), cohort.counts.tolist(), strict=True))


def drawn(strategy: CohortStrategy) -> dict[str, int]:
    """Return how often clients were drawn so far, of those that were."""
    return {str(key): n for key, (n, _) in strategy.selections.summary().items() if n}


def failed(strategy: CohortStrategy) -> dict[str, int]:
    """Return in how many rounds clients failed so far, of those that did."""
    counts = strategy.selections.failed.tolist()
    ids = strategy.selector.population.ids
    return {str(key): n for key, n in zip(ids, counts, strict=True) if n}


def remembered(strategy: CohortStrategy) -> dict[str, NDArray[np.float32]]:
    """Return what a learning design remembers of the clients that sent an update."""
    memory = strategy.selector.memory
    if memory is None:
        return {}
    ids = strategy.selector.population.ids
    return {str(ids[k]): memory.updates[k] for k in np.flatnonzero(memory.seen).tolist()}


def in_its_own_loop(strategy: CohortStrategy) -> CohortStrategy:
    """Let a test play the rounds of a strategy that must be started."""
    strategy._is_started = True
    return strategy


def one_round(
    strategy: Strategy, grid: InProcessGrid, number: int = 1, start: ArrayRecord | None = None
) -> ArrayRecord | None:
    """Play one round as ``Strategy.start`` does; None: the model stays."""
    sent = model() if start is None else start
    messages = strategy.configure_train(number, sent, ConfigRecord(), grid)
    replies = grid.send_and_receive(list(messages))
    return strategy.aggregate_train(number, replies)[0]
