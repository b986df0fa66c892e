"""Grids around a grid: one that shows only some nodes, and one that takes the first answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from logging import getLogger
from typing import Any, final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

log = getLogger("flwr.fedcohort")

#: Seconds between two looks for replies.
PAUSE = 0.5


class _Around(Grid):
    """A grid that leaves everything to another one."""

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
    """A grid that lists only ``node_ids``; all else is the grid's own."""

    def __init__(self, grid: Grid, node_ids: Sequence[int]) -> None:
        super().__init__(grid)
        self._node_ids = list(node_ids)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are to be seen."""
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
