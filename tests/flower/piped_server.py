"""A server in a process of its own, whose nodes are in the process that started it.

A process that is spawned imports this module by its name, which a test's module does not have.
"""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from fedcohort import Uniform
from fedcohort.flower import CohortStrategy, SecureAggregation
from flower.federation import client_app, model
from flower.in_process import InProcessGrid, play_the_server

#: The largest entry of a share that is not clipped.
CLIP = 4.0


class PipedGrid(InProcessGrid):
    """The server's end of a pipe to the process with the nodes; keeps every reply in memory."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(client_app(), {})
        self._pipe, self._kept = pipe, list[Message]()

    def _call(self, *question: Any) -> Any:
        self._pipe.send(question)
        return self._pipe.recv()

    def get_node_ids(self) -> Iterable[int]:
        return list(self._call("nodes"))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = self._call("push", sent)
        for each in sent:
            each.metadata.__dict__["_message_id"] = ids[each.metadata.dst_node_id]
        return list(ids.values())

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies: list[Message] = self._call("pull", list(message_ids))
        self._kept += replies
        return replies

    def end(self) -> None:
        self._call("end")


def serve(pipe: Connection, is_secure: bool) -> None:
    """Train as a server in a process of its own, which never computes an update."""
    play_the_server()
    grid = PipedGrid(pipe)
    secure = SecureAggregation(clip=CLIP) if is_secure else None
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), Uniform(6, unbiased=True), seed=0, secure=secure
    )
    result = strategy.start(grid, model(0.0), num_rounds=1)
    assert result.arrays is not None
    grid.end()
