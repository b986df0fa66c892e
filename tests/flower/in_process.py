"""A grid whose nodes are client apps in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid


class InProcessGrid(Grid):
    """Calls the app for every message; ``fails`` says which (node, message type) give no answer.

    With ``answers_for_nodes`` these errors come from node 1, as the SuperLink's own do.
    """

    def __init__(
        self,
        app: ClientApp,
        partitions: dict[int, int],
        fails: Callable[[int, str], bool] = lambda node, kind: False,
    ) -> None:
        self.app, self.partitions, self.fails = app, partitions, fails
        self.asked: list[tuple[str, int]] = []
        self.answers_for_nodes = False
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._waiting = {}
        for message in sorted(messages, key=lambda each: each.metadata.dst_node_id):
            for reply in self._answer(message):
                self._waiting[message.metadata.message_id] = reply
        return list(self._waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out one reply at a time, in the order of node numbers."""
        ready = [key for key in self._waiting if key in set(message_ids)]
        return [self._waiting.pop(ready[0])] if ready else []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.partitions)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [reply for message in messages for reply in self._answer(message)]

    def _answer(self, message: Message) -> list[Message]:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((kind, node))
        message.metadata.__dict__["_message_id"] = f"message-{len(self.asked)}"
        if self.fails(node, kind):
            error = Message(Error(code=6, reason="node unavailable"), reply_to=message)
            if self.answers_for_nodes:
                error.metadata.__dict__["_src_node_id"] = 1
            return [error]
        context = Context(
            run_id=1,
            node_id=node,
            node_config={"partition-id": self.partitions[node]},
            state=RecordDict(),
            run_config={},
        )
        return [self.app(message, context)]


def play_the_server() -> None:
    """Give this process the identity that Flower gives a server app's."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
