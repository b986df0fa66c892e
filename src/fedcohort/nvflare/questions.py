"""Questions to clients before the draw: their sizes, and the signals that a recipe asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcohort.deployment.directory import Claim, Directory
from fedcohort.deployment.limits import Limits
from fedcohort.deployment.waits import TimeLimit
from fedcohort.nvflare.settings import FLARE
from fedcohort.population import Population

if TYPE_CHECKING:
    from fedcohort.nvflare.controller import CohortSelection

#: The task in which a client tells its number of samples; the metric of the answer has this name.
#: The answer's other metrics are the client's properties.
SIZE_TASK = "num_examples"


@final
class SiteDirectory(Directory):
    """The clients: who is available, and their sizes, given or self-reported.

    FLARE's clients ask for tasks, every other second while they are idle. A client that let a
    deadline pass is not available until it asks again: it is dead, or still busy. FLARE itself
    does not notice the death of a site that registers again.

    Parameters
    ----------
    controller
        Asks the clients.
    given
        Samples by client, where the server knows them; None asks the clients.
    limits
        How large sizes can be.
    """

    def __init__(
        self,
        controller: CohortSelection,
        given: Mapping[Any, int] | Population | None,
        limits: Limits,
    ) -> None:
        super().__init__(FLARE, given, limits=limits, pause=controller.query_timeout)
        self._controller, self._asks = controller, given is None
        self._away: set[str] = set()
        self._unsized: set[str] = set()  # clients without an entry in the given sizes

    def available(self) -> list[str]:
        """Return the clients of the job that are not away, and not disconnected for FLARE."""
        controller = self._controller
        names = [str(client.name) for client in controller.engine.get_clients()]
        self.see(names)
        here = [name for name in names if name not in self._away]
        return [name for name in here if not controller.get_client_disconnect_time(name)]

    def has_samples(self) -> bool:
        """Return whether an available client has samples."""
        return any(self.sizes.get(name) for name in self.available())

    def note_missed(self, names: Iterable[str]) -> None:
        """Note that clients let a deadline pass."""
        for name in names:
            self._away.add(name)
            FLARE.logger.info("client %s is not drawn again until it asks for a task", name)

    def note_request(self, name: str) -> None:
        """Note that a client asks for a task; FLARE calls this in a thread of its own."""
        if name in self._away:
            self._away.discard(name)
            FLARE.logger.info("client %s asks for tasks again, and can be drawn", name)

    def gather(self, needed: int, seconds: float | None) -> list[str]:
        """Return the available clients whose sizes are known.

        Wait until there are ``needed``, one with samples. After ``seconds`` continue with the
        clients that are there. None waits as long as for the start, and raises if too few come.
        """
        controller, is_start = self._controller, seconds is None
        end = TimeLimit(controller.start_timeout if seconds is None else seconds)
        while True:
            names = self.available()
            self._ask_sizes(names)
            self.seat()
            there = [name for name in names if name in self.sizes]
            if len(there) >= needed and self.has_samples():
                return there
            if controller.is_aborted():
                raise FLARE.refusal("the job was aborted while it waited for clients.")
            if end.has_passed:
                break
            time.sleep(controller._task_check_period)
        if is_start:
            raise FLARE.refusal(
                f"needs {needed} clients, and one with samples, within "
                f"{controller.start_timeout:g} s; {len(names)} came and the sizes of {len(there)} "
                f"are known. Answer the task {SIZE_TASK!r} in the clients' script or pass sizes, "
                f"start clients, or raise start_timeout."
            )
        return there

    def ask(
        self, task: str, model: FLModel, names: list[str]
    ) -> dict[str, Mapping[str, object] | str]:
        """Ask a question; return the metrics of the answer by client, or why there are none."""
        answers: dict[str, Mapping[str, object] | str] = {}

        def take(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answers[client_task.client.name] = _metrics(client_task.result, task)
            client_task.result = None

        question = Task(
            name=task,
            data=FLModelUtils.to_shareable(model),
            timeout=math.ceil(self._controller.query_timeout),
            result_received_cb=take,
        )
        context = self._controller.fl_ctx
        self._controller.broadcast(question, context, targets=names, min_responses=0)
        self.wait_for_tasks()
        self.note_missed(name for name in names if name not in answers)
        return {name: answers.get(name, "no answer") for name in names}

    def wait_for_tasks(self) -> None:
        """Wait until all tasks have ended; each has a time limit."""
        controller = self._controller
        while controller.get_num_standing_tasks() and not controller.is_aborted():
            time.sleep(controller._task_check_period)

    def _ask_sizes(self, names: list[str]) -> None:
        """Ask the available clients that are due for their sizes."""
        if not self._asks:
            if new := [name for name in self.unknown() if name not in self._unsized]:
                FLARE.logger.warning("sizes has no entry for %.200s: they cannot be drawn", new)
                self._unsized |= set(new)
            return
        due = [name for name in self.due() if name in names]
        answers = self.ask(SIZE_TASK, FLModel(params={}), due) if due else {}
        self.take({name: _claim(name, answer) for name, answer in answers.items()})


def _claim(name: str, answer: Mapping[str, object] | str) -> Claim | str:
    """Return what a client says of itself, or what is wrong with it."""
    if isinstance(answer, str):
        return answer
    properties = {key: value for key, value in answer.items() if key != SIZE_TASK}
    return Claim.of(name, answer[SIZE_TASK], properties)


def _metrics(result: Shareable, name: str) -> Mapping[str, object] | str:
    """Return the metrics of an answer, or why there are none; it must have one of this name."""
    code = result.get_return_code()
    if code != ReturnCode.OK:
        return f"error: {code}"
    try:
        metrics = FLModelUtils.from_shareable(result).metrics or {}
    except Exception as error:  # a client can send anything
        return f"cannot be read: {type(error).__name__}"
    return metrics if name in metrics else f"has no metric {name!r}"
