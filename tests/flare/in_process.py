"""FLARE's own controllers with clients in this process: an engine and a communicator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import (
    ModelLearnable,
    ModelLearnableKey,
    make_model_learnable,
)
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcohort.deployment import round as rounds
from fedcohort.deployment import waits
from fedcohort.nvflare import questions

#: What a client does with a task: answers, answers with an error, or not in time.
Client_ = Callable[[str, FLModel], FLModel | Shareable | None]


class Clock:
    """The controller's time: it passes when the controller sleeps, and when a test says so."""

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = cls()
        for module in (rounds, waits, questions):
            monkeypatch.setattr(module, "time", clock)
        return clock

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Persistor(ModelPersistor):
    """Keeps every model that it is given."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self.params, self.saved = dict(params), list[dict[str, Any]]()

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        return make_model_learnable(weights=dict(self.params), meta_props={})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        self.saved.append({**model[ModelLearnableKey.WEIGHTS]})


class Federation(WFCommSpec):
    """An engine and a communicator; clients answer at once.

    Attributes
    ----------
    clients
        What each connected client does.
    asked
        Every task and client, in the order of sending.
    events
        The events that were fired, with the data of those that report figures.
    before_task
        Called with every task before it is sent.
    disconnected
        The clients that FLARE deems disconnected.
    dead
        The clients that do not ask for tasks; all others do so before every draw.
    """

    def __init__(self, clients: Mapping[str, Client_], folder: Path) -> None:
        super().__init__()
        self.clients, self.folder = dict(clients), folder
        self.asked: list[tuple[str, str]] = []
        self.timeouts: list[int] = []
        self.events: list[str] = []
        self.figures: list[dict[str, Any]] = []
        self.before_task: Callable[[Task], None] = lambda task: None
        self.disconnected: set[str] = set()
        self.dead: set[str] = set()
        self.parts: dict[str, Any] = {}

    # The engine

    def get_clients(self) -> list[Client]:
        for name in self.clients:
            if name not in self.dead:
                event = EventType.BEFORE_PROCESS_TASK_REQUEST
                self.controller.handle_event(event, request_of(name))
        return [Client(name, name) for name in self.clients]

    def get_component(self, name: str) -> Any:
        return self.parts.get(name)

    def fire_event(self, kind: str, fl_ctx: FLContext) -> None:
        self.events.append(kind)
        if kind == "analytix_log_stats":
            self.figures.append(fl_ctx.get_prop("__event_data__")["DXO"]["data"])

    def get_workspace(self) -> Any:
        return SimpleNamespace(get_run_dir=lambda job: str(self.folder))

    def get_cell(self) -> None:
        return None

    # The communicator

    def broadcast(
        self,
        task: Task,
        fl_ctx: FLContext,
        targets: Any = None,
        min_responses: int = 1,
        wait_time_after_min_received: int = 0,
    ) -> None:
        assert targets
        assert min_responses == 0
        self.timeouts.append(task.timeout)
        self.before_task(task)
        for name in targets:
            self.asked.append((task.name, name))
            client_task = ClientTask(Client(name, name), task)
            if task.before_task_sent_cb is not None:
                task.before_task_sent_cb(client_task, fl_ctx)
            if (answer := self._answer(name, task)) is not None:
                client_task.result = answer
                assert task.result_received_cb is not None
                task.result_received_cb(client_task, fl_ctx)

    def _answer(self, name: str, task: Task) -> Shareable | None:
        # Clients get a copy, as over a wire.
        sent = FLModelUtils.from_shareable(task.data)
        sent.params = {key: _copied(value) for key, value in sent.params.items()}
        try:
            answer = self.clients[name](task.name, sent)
        except Exception:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return FLModelUtils.to_shareable(answer) if isinstance(answer, FLModel) else answer

    def get_num_standing_tasks(self) -> int:
        return 0

    def get_client_disconnect_time(self, name: str) -> float | None:
        return 1.0 if name in self.disconnected else None

    # A server's life

    def run(self, made: Any, params: Mapping[str, Any]) -> Persistor:
        """Run a controller from these parameters; return what kept its models."""
        persistor = self.parts["persistor"] = Persistor(params)
        context = FLContextManager(self, "server", "job").new_context()
        made.set_communicator(self)
        made.initialize(context)
        made.abort_signal = Signal()
        made.run()
        return persistor


def request_of(name: str) -> FLContext:
    """Return the context of a client's request for a task."""
    context, peer = FLContext(), FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, name)
    context.set_peer_context(peer)
    return context


def _copied(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else np.copy(value)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a selection log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def adding(size: int, update: NDArray[Any], **properties: Any) -> Client_:
    """Make a client with so many samples that adds an update to the parameter ``w``."""

    def client(task: str, model: FLModel) -> FLModel:
        if task == "num_examples":
            return FLModel(metrics={"num_examples": size, **properties})
        return FLModel(params={"w": model.params["w"] + update}, metrics={"loss": float(size)})

    return client
