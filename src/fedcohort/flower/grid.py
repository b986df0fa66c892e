"""Send messages and wait for replies, up to a deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, final

from flwr.app import Message
from flwr.serverapp import Grid

from fedcohort.deployment.round import NO_ANSWER
from fedcohort.deployment.waits import LONGEST_PAUSE, SHORTEST_PAUSE, TimeLimit
from fedcohort.flower.settings import FLOWER, SHORTEST, Waits

#: Seconds by which the SuperLink's clock may be ahead of the server's.
CLOCK_SKEW = 1.0
#: Flower's codes of errors that the SuperLink gives for messages whose time has passed.
EXPIRED = (3, 4)
#: The line in tracebacks between an exception and the one that was raised from it.
RAISED_FROM = "The above exception was the direct cause of the following exception:"


@final
class RoundClock:
    """The time that a round has left, and how long each wait for replies may take.

    Parameters
    ----------
    waits
        How long to wait.
    more_follows
        Whether something may follow the wait for training: redraws, or an evaluation.
    """

    def __init__(self, waits: Waits, *, more_follows: bool) -> None:
        self.waits, self._more_follows = waits, more_follows
        self.until = TimeLimit(math.inf)
        self._slowest = 0.0  # the seconds that sending messages took this round

    def begin(self, round_: int) -> None:
        """Start a round."""
        self.until, self._slowest = TimeLimit(self.waits.of_round(round_)), 0.0

    def seconds(self, *, is_last: bool = False) -> float:
        """Return how long to wait for the next replies; the last wait can take all that is left."""
        left = self.until.left
        if self.waits.reply is not None:
            return min(self.waits.reply, left)
        return left if is_last or not self._more_follows else left / 2

    def is_enough(self, seconds: float) -> bool:
        """Whether a message can be answered within ``seconds``.

        Sending it must not take all of them; it is expected to take as long as this round's
        slowest.
        """
        return seconds > max(self._slowest, SHORTEST)

    def stamped(self, messages: list[Message], *, is_last: bool = False) -> list[Message]:
        """Set each message's time to live to the time that the server waits for its reply.

        Return none if that is too short.
        """
        seconds = self.seconds(is_last=is_last)
        for message in messages:
            message.metadata.ttl = min(seconds, message.metadata.ttl)
        return messages if self.is_enough(seconds) else []

    def exchange(
        self,
        grid: Grid,
        messages: Sequence[Message],
        seconds: float,
        enough: Callable[[list[Message]], bool] = lambda replies: False,
    ) -> list[Message]:
        """Send messages; return the replies that come in time; send none if that is too short.

        ``enough`` is called with the replies since its last call, and can end the wait.
        """
        if not messages or not self.is_enough(seconds):
            return []
        end = TimeLimit(seconds)
        pending = sent(grid, messages)
        self._slowest = max(self._slowest, seconds - end.left)
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
    """Send messages; return the nodes by message, without those that could not be sent.

    The SuperLink refuses messages whose time has passed when it reads them: they are lost.
    """
    try:
        # Flower's grid has no id for a message that could not be stored.
        ids = {each for each in grid.push_messages(messages) if each}
    except Exception as error:  # of the library that Flower sends with
        # It answers "internal server error", and writes the reason into its own log only.
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status != HTTPStatus.INTERNAL_SERVER_ERROR or not _has_expired(messages):
            raise
        FLOWER.logger.warning("%d messages expired before the SuperLink got them", len(messages))
        return {}
    about = [message.metadata for message in messages]
    return {each.message_id: each.dst_node_id for each in about if each.message_id in ids}


def _has_expired(messages: Iterable[Message]) -> bool:
    """Whether the time of a message has passed by the SuperLink's clock."""
    ends = [each.metadata.created_at + each.metadata.ttl for each in messages]
    return min(ends) <= time.time() + CLOCK_SKEW


def pulled(grid: Grid, pending: dict[str, int]) -> list[Message]:
    """Return the replies that have come, and take their messages off ``pending``."""
    replies = list(grid.pull_messages(list(pending)))
    for reply in replies:
        pending.pop(reply.metadata.reply_to_message_id, None)
    return replies


def node_of(reply: Message, nodes: Mapping[str, int]) -> int:
    """Return the node that a reply is about.

    The SuperLink itself answers for a node that has left or is too late.
    """
    about = reply.metadata
    if not reply.has_error():
        return about.src_node_id
    return nodes.get(about.reply_to_message_id, about.src_node_id)


def error_of(reply: Message) -> str:
    """Return a reply's error as a reason: its kind, a colon, and more."""
    if reply.error.code in EXPIRED:
        return NO_ANSWER
    return f"error {reply.error.code}: {cause_of(reply.error.reason or '')}"


def cause_of(reason: str) -> str:
    """Return the client's exception from the traceback in a reason; without one, the reason.

    In a simulation a reason is Ray's prefix, the traceback of the exception, and that of Flower's
    ``ClientAppException``, which was raised from it.
    """
    lines = reason.rpartition(RAISED_FROM)[0].splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    if not frames:
        return reason
    # Below the last frame stand its source, which is indented, and the exception.
    return " ".join(line for line in lines[frames[-1] + 1 :] if line and line[0] != " ")


def _passed_on(name: str) -> Any:
    """Return a method that calls the grid's method of this name."""
    return lambda self, *args, **options: getattr(self._grid, name)(*args, **options)


@final
class GridView(Grid):
    """A grid that lists only ``node_ids``; all else is the grid's."""

    def __init__(self, grid: Grid, node_ids: Sequence[int]) -> None:
        self._grid, self._node_ids = grid, list(node_ids)

    def get_node_ids(self) -> Iterable[int]:
        """Return the visible nodes."""
        return list(self._node_ids)

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    set_run = _passed_on("set_run")
    create_message = _passed_on("create_message")
    push_messages = _passed_on("push_messages")
    pull_messages = _passed_on("pull_messages")
    send_and_receive = _passed_on("send_and_receive")
