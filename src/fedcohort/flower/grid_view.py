"""A grid on which only some nodes are to be seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


@final
class GridView(Grid):
    """A grid that lists only ``node_ids``; all else is the grid's own."""

    def __init__(self, grid: Grid, node_ids: Sequence[int]) -> None:
        self._grid, self._node_ids = grid, list(node_ids)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are to be seen."""
        return list(self._node_ids)

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
