"""The strategy that aggregates: its checks, its state, and the nodes that it sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from logging import getLogger
from typing import Any, final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
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
from numpy.typing import NDArray

from fedcohort.designs import Recipe
from fedcohort.errors import FlowerError

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
#: Seconds between two looks for replies.
PAUSE = 0.5


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
) -> list[Message]:
    """Let the strategy write to these nodes, and check that it does."""
    if not nodes:
        return []
    with _writing_to_all(weighing_strategy(strategy), len(nodes)):
        messages = list(strategy.configure_train(number, *sent, GridView(grid, nodes)))
    if sorted(message.metadata.dst_node_id for message in messages) != sorted(nodes):
        raise FlowerError(
            f"CohortStrategy: {type(strategy).__name__} must write to the {len(nodes)} drawn "
            f"clients, each once; it wrote {len(messages)} messages. Use a strategy that trains "
            f"on all nodes of its grid."
        )
    return messages


def shown_the_model(
    inner: FedAvg, number: int, sent: tuple[ArrayRecord, ConfigRecord], grid: Grid
) -> None:
    """Show the round's model to the strategy, which writes to nobody; FedAdam steps from it."""
    with _writing_to_all(inner, 0):
        list(inner.configure_train(number, *sent, GridView(grid, [])))


def without_metrics(inner: FedAvg) -> AbstractContextManager[None]:
    """Let the strategy aggregate messages without metrics."""
    return _with(inner, train_metrics_aggr_fn=lambda contents, weight_key: MetricRecord())


def _writing_to_all(inner: FedAvg, n_nodes: int) -> AbstractContextManager[None]:
    """Let the strategy choose all of ``n_nodes`` nodes; evaluation stays as it is."""
    return _with(inner, fraction_train=1.0, min_train_nodes=n_nodes, min_available_nodes=n_nodes)


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


def check_state(inner: FedAvg, model: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model of other shapes than the strategy's moments or momentum."""
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


def refuse_wrapper(wrapper: Strategy) -> None:
    """Refuse a wrapper for privacy with the difference estimator."""
    raise FlowerError(
        f"CohortStrategy: with the difference estimator {type(wrapper).__name__} would clip "
        f"differences in the place of updates, and a client's last update would move the model in "
        f"every later round, which no noise accounts for. Use estimator='plain'."
    )


def warn_of_choice(wrapper: Strategy, recipe: Recipe) -> None:
    """Warn that a wrapper's noise does not cover a choice that depends on updates."""
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


class _Around(Grid):
    """Forward every call to another grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes."""
        return self._grid.get_node_ids()

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Fetch replies."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


@final
class GridView(_Around):
    """A grid that lists only ``node_ids``."""

    def __init__(self, grid: Grid, node_ids: Sequence[int]) -> None:
        super().__init__(grid)
        self._node_ids = list(node_ids)

    def get_node_ids(self) -> Iterable[int]:
        """Return the visible nodes."""
        return list(self._node_ids)


@final
class FirstAnswers(_Around):
    """A grid that waits for replies only until ``enough`` says that there are enough.

    ``enough`` is called with the replies that came since its last call.
    """

    def __init__(self, grid: Grid, enough: Callable[[list[Message]], bool]) -> None:
        super().__init__(grid)
        self._enough = enough

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages; return the replies that came first."""
        end = None if timeout is None else time.monotonic() + timeout
        # Flower's grid has no id for a message that could not be sent.
        pending = {each for each in self._grid.push_messages(messages) if each}
        replies: list[Message] = []
        while pending:
            new = list(self._grid.pull_messages(pending))
            replies += new
            pending -= {reply.metadata.reply_to_message_id for reply in new}
            if self._enough(new) or (end is not None and time.monotonic() > end):
                break
            if pending:
                time.sleep(PAUSE)
        return replies


def wait_for_nodes(grid: Grid, needed: int) -> None:
    """Wait until as many nodes are there as the inner strategy asks for, as Flower does."""
    while (found := len(list(grid.get_node_ids()))) < needed:
        log.info("waiting for nodes: %d of %d are there", found, needed)
        time.sleep(1)
