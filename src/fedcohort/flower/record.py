"""Write down who takes part in a Flower federation, with any strategy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedcohort._arguments import brief, checked_path
from fedcohort._whole_file import reason_of
from fedcohort.errors import WriteError
from fedcohort.flower.grid import cause_of
from fedcohort.flower.settings import FLOWER

AnyStrategy = TypeVar("AnyStrategy", bound=Strategy)
#: Metrics of a reply that may hold the number of examples.
EXAMPLES = "num-examples"


def record(strategy: AnyStrategy, path: str | Path) -> AnyStrategy:
    """Let a strategy write down who takes part; return the same strategy.

    Every round appends a JSON line for each client that was asked: the round, the node's id, its
    status (answered, failed), its number of examples, and why it failed. ``fedcohort audit`` reads
    the file. Training does not change: nothing is drawn, weighed or sent differently.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = record(FedAvg(), "participation.jsonl")
    """
    path = checked_path("record", "path", path)
    if not isinstance(strategy, Strategy):
        raise FLOWER.refusal(
            f"record needs a strategy of Flower; got {brief(strategy)}. Pass for example FedAvg()."
        )
    key = str(getattr(strategy, "weighted_by_key", EXAMPLES))
    configure: Callable[..., Iterable[Message]] = strategy.configure_train
    aggregate: Callable[..., tuple[ArrayRecord | None, MetricRecord | None]] = (
        strategy.aggregate_train
    )
    asked: dict[int, set[int]] = {}

    def configure_train(
        server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(configure(server_round, arrays, config, grid))
        asked[server_round] = {message.metadata.dst_node_id for message in messages}
        return messages

    def aggregate_train(
        server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        came = list(replies)
        lines = _lines(server_round, asked.pop(server_round, set()), came, key)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        except OSError as error:
            raise WriteError(f"{path}: cannot be written ({reason_of(error)})") from error
        return aggregate(server_round, came)

    strategy.configure_train = configure_train  # type: ignore[method-assign]
    strategy.aggregate_train = aggregate_train  # type: ignore[method-assign]
    return strategy


def _lines(
    round_: int, nodes: set[int], came: Iterable[Message], key: str
) -> Iterator[dict[str, Any]]:
    """Yield a line for each client that was asked, in the order of node ids."""
    replies = {message.metadata.src_node_id: message for message in came}
    # For a node that is gone, the SuperLink answers in its own name.
    others = (
        cause_of(str(each.error.reason))
        for node, each in replies.items()
        if node not in nodes and each.has_error()
    )
    silence = next(others, "no reply")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    for node in sorted(nodes):
        line: dict[str, Any] = {"round": round_, "client": str(node), "when": when}
        reply = replies.get(node)
        if reply is None or reply.has_error():
            reason = silence if reply is None else cause_of(str(reply.error.reason))
            yield {**line, "status": "failed", "reason": reason[:200]}
        else:
            metrics = {
                k: v for own in reply.content.metric_records.values() for k, v in own.items()
            }
            size = metrics.get(key)
            number = {"num_examples": size} if isinstance(size, (int, float)) else {}
            yield {**line, "status": "answered", **number}
