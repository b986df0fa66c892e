"""A grid whose nodes are client apps in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedcohort.deployment import waits
from fedcohort.flower import grid

#: The moment at which the clock starts, after Flower's earliest for messages.
START = 1.8e9


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
        self.is_slow = False  # one reply a look
        self.sent: list[Message] = []
        self._waiting: dict[str, Message] = {}
        self._states: dict[int, RecordDict] = {}  # what apps keep from message to message

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = sorted(messages, key=lambda each: each.metadata.dst_node_id)
        for message in sent:
            for reply in self._answer(message):
                self._waiting[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies that have come, in the order of node numbers."""
        asked = set(message_ids)
        ready = [key for key in self._waiting if key in asked]
        return [self._waiting.pop(key) for key in ready[: 1 if self.is_slow else None]]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.partitions)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [reply for message in messages for reply in self._answer(message)]

    def _answer(self, message: Message) -> list[Message]:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((kind, node))
        self.sent.append(message)
        message.metadata.__dict__["_message_id"] = f"message-{len(self.asked)}"
        if node not in self.partitions or self.fails(node, kind):
            error = Message(Error(code=6, reason="node unavailable"), reply_to=message)
            if self.answers_for_nodes:
                error.metadata.__dict__["_src_node_id"] = 1
            return [error]
        context = Context(
            run_id=1,
            node_id=node,
            node_config={"partition-id": self.partitions[node]},
            state=self._states.setdefault(node, RecordDict()),
            run_config={},
        )
        return [self.app(message, context)]


class SlowGrid(InProcessGrid):
    """Gives every reply ``delay`` seconds after its question; never where that is infinite.

    ``delay`` is a function of the node and the type of the message, and ``asked_at`` is when
    nodes got messages of a type.
    """

    def __init__(
        self,
        app: ClientApp,
        partitions: dict[int, int],
        *,
        clock: Clock,
        delay: Callable[[int, str], float],
        fails: Callable[[int, str], bool] = lambda node, kind: False,
    ) -> None:
        super().__init__(app, partitions, fails)
        self.clock, self.delay = clock, delay
        self._due: dict[str, float] = {}
        self._asked_at: list[tuple[str, int, float]] = []

    def asked_at(self, kind: str, node: int | None = None) -> list[float]:
        return [at for type_, to, at in self._asked_at if type_ == kind and node in (None, to)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        ids = super().push_messages(sent)
        for about in (message.metadata for message in sent):
            self._asked_at.append((about.message_type, about.dst_node_id, self.clock.now))
            wait = self.delay(about.dst_node_id, about.message_type)
            self._due[about.message_id] = self.clock.now + wait
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages(
            each for each in message_ids if self._due[each] <= self.clock.now
        )


class Clock:
    """The plug-in's time: it passes when the plug-in sleeps, and when a test says so."""

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Take the place of the module ``time``."""
        clock = cls()
        for module in (waits, grid):
            monkeypatch.setattr(module, "time", clock)
        messages = import_module("flwr.app.message.message")
        monkeypatch.setattr(messages, "now", lambda: datetime.fromtimestamp(clock.time(), UTC))
        return clock

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, Callable[[], object]]] = []

    def at(self, moment: float, event: Callable[[], object]) -> None:
        """Let something happen at a moment."""
        self._later.append((moment, event))

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return START + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self._later if each[0] <= self.now]
        self._later = [each for each in self._later if each[0] > self.now]
        for _, event in due:
            event()


def play_the_server() -> None:
    """Give this process the identity that Flower gives a server app's."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
