"""Sending messages and waiting for replies, never longer than agreed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedcohort._deployment import SILENCE
from fedcohort.flower.settings import SHORTEST, Waits

#: Seconds between two looks for replies, at least and at most.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
#: Flower's codes of errors that the SuperLink gives for messages whose time has passed.
EXPIRED = (3, 4)


@final
class Deadline:
    """A moment ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds until then; 0 afterwards."""
        return max(0.0, self._end - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """Whether no time is left."""
        return self.left == 0.0


@final
class RoundClock:
    """The time that a round has left, and who may wait how long for replies.

    Parameters
    ----------
    waits
        How long to wait.
    more_follows
        Whether something may follow the wait for training: redraws, or an evaluation.
    """

    def __init__(self, waits: Waits, *, more_follows: bool) -> None:
        self.waits, self._more_follows = waits, more_follows
        self.until = Deadline(math.inf)

    def begin(self, round_: int) -> None:
        """Start a round."""
        self.until = Deadline(self.waits.of_round(round_))

    def seconds(self, *, is_last: bool = False) -> float:
        """Return how long to wait for the next replies; the last wait can take all that is left."""
        left = self.until.left
        if self.waits.reply is not None:
            return min(self.waits.reply, left)
        return left if is_last or not self._more_follows else left / 2

    def stamped(self, messages: list[Message], *, is_last: bool = False) -> list[Message]:
        """Let messages live as long as replies are waited for."""
        seconds = max(self.seconds(is_last=is_last), SHORTEST)
        for message in messages:
            message.metadata.ttl = min(seconds, message.metadata.ttl)
        return messages


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    seconds: float,
    enough: Callable[[list[Message]], bool] = lambda replies: False,
) -> list[Message]:
    """Send messages; return the replies that come in time.

    ``enough`` is called with the replies since its last call, and can end the wait.
    """
    if not messages:
        return []
    end = Deadline(seconds)
    pending = sent(grid, messages)
    replies: list[Message] = []
    while pending:
        looked = time.monotonic()
        new = pulled(grid, pending)
        replies += new
        took = time.monotonic() - looked
        # The last look must end in time too.
        if enough(new) or not pending or end.left <= took:
            break
        # A look is slow where thousands of replies are open: spend a fifth of the time on it.
        pause = min(max(SHORTEST_PAUSE, 4 * took), LONGEST_PAUSE)
        time.sleep(min(pause, end.left - took))
    return replies


def sent(grid: Grid, messages: Sequence[Message]) -> dict[str, int]:
    """Send messages; return the nodes by message."""
    # Flower's grid has no id for a message that could not be sent.
    ids = {each for each in grid.push_messages(messages) if each}
    about = [message.metadata for message in messages]
    return {each.message_id: each.dst_node_id for each in about if each.message_id in ids}


def pulled(grid: Grid, pending: dict[str, int]) -> list[Message]:
    """Return the replies that have come, and take their messages off ``pending``."""
    replies = list(grid.pull_messages(list(pending)))
    for reply in replies:
        pending.pop(reply.metadata.reply_to_message_id, None)
    return replies


def node_of(reply: Message, nodes: Mapping[str, int]) -> int:
    """Return the node that a reply is about.

    The SuperLink answers in its own name for a node that has gone, or is too late.
    """
    about = reply.metadata
    if not reply.has_error():
        return about.src_node_id
    return nodes.get(about.reply_to_message_id, about.src_node_id)


def error_of(reply: Message) -> str:
    """Return a reply's error as a reason: its kind, a colon, and more."""
    if reply.error.code in EXPIRED:
        return SILENCE
    return f"error {reply.error.code}: {reply.error.reason}"


@final
class GridView(Grid):
    """A grid that lists only ``node_ids``."""

    def __init__(self, grid: Grid, node_ids: Sequence[int]) -> None:
        self._grid, self._node_ids = grid, list(node_ids)

    def get_node_ids(self) -> Iterable[int]:
        """Return the visible nodes."""
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
