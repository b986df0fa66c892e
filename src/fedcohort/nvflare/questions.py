"""Questions to clients before the draw: their sizes, and the signals that a recipe asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import TYPE_CHECKING, final

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcohort._deployment import ClaimedSizes, Limits, claimed_size
from fedcohort.errors import NvflareError
from fedcohort.nvflare.settings import OWNER

if TYPE_CHECKING:
    from fedcohort.nvflare.controller import CohortSelection

log = getLogger("fedcohort")

#: The task in which a client tells its number of samples; the metric of the answer has this name.
SIZE_TASK = "num_examples"


@final
class Sites:
    """The clients: who is connected, and their sizes, as given or as they tell them.

    A client that does not tell its size is asked again after ``query_timeout`` seconds, then
    after twice as long, and so on.

    Parameters
    ----------
    controller
        Asks the clients.
    given
        Samples by client, where the server knows them; None asks the clients.
    limits
        How large sizes can be.

    Attributes
    ----------
    sizes
        Samples by client, bounded.
    """

    def __init__(
        self, controller: CohortSelection, given: Mapping[str, int] | None, limits: Limits
    ) -> None:
        self._controller, self._given, self._limits = controller, given, limits
        self._claims: dict[str, int] = {}
        self._again: dict[str, tuple[float, float]] = {}
        self._told: set[str] = set()
        self.sizes: dict[str, int] = {}

    def connected(self) -> list[str]:
        """Return the clients of the job that FLARE does not deem disconnected."""
        controller = self._controller
        names = [str(client.name) for client in controller.engine.get_clients()]
        return [name for name in names if not controller.get_client_disconnect_time(name)]

    def takers(self) -> list[str]:
        """Return the connected clients that have samples."""
        return [name for name in self.connected() if self.sizes.get(name)]

    def gather(self, needed: int, seconds: float | None) -> list[str]:
        """Return the connected clients whose sizes are known.

        Wait until there are ``needed``, one with samples. After ``seconds`` go on with the clients
        that are there. None waits as long as for the start, and raises if they do not come.
        """
        controller, is_start = self._controller, seconds is None
        end = time.monotonic() + (controller.start_timeout if seconds is None else seconds)
        while True:
            names = self.connected()
            if unknown := self._unknown(names):
                self._hear(self.ask(SIZE_TASK, FLModel(params={}), unknown))
            there = [name for name in names if name in self._claims]
            if len(there) >= needed and self.takers():
                return there
            if controller.is_aborted():
                raise NvflareError(f"{OWNER}: the job was aborted while it waited for clients.")
            if time.monotonic() >= end:
                break
            time.sleep(controller._task_check_period)
        if is_start:
            raise NvflareError(
                f"{OWNER}: needs {needed} clients, and one with samples, within "
                f"{controller.start_timeout:g} s; {len(names)} came and the sizes of {len(there)} "
                f"are known. Answer the task {SIZE_TASK!r} in the clients' script or pass sizes, "
                f"start clients, or raise start_timeout."
            )
        return there

    def ask(self, task: str, model: FLModel, names: list[str]) -> dict[str, object]:
        """Ask a question; return the metric of that name by client, or why there is none."""
        found: dict[str, object] = dict.fromkeys(names, "no answer")

        def hear(client_task: ClientTask, fl_ctx: FLContext) -> None:
            found[client_task.client.name] = _metric(client_task.result, task)
            client_task.result = None

        question = Task(
            name=task,
            data=FLModelUtils.to_shareable(model),
            timeout=math.ceil(self._controller.query_timeout),
            result_received_cb=hear,
        )
        context = self._controller.fl_ctx
        self._controller.broadcast(question, context, targets=names, min_responses=0)
        self.wait()
        return found

    def wait(self) -> None:
        """Wait until all tasks have ended; each has a time limit."""
        controller = self._controller
        while controller.get_num_standing_tasks() and not controller.is_aborted():
            time.sleep(controller._task_check_period)

    def _unknown(self, names: Iterable[str]) -> list[str]:
        """Return whom to ask now; take the sizes that are given."""
        missing = [name for name in names if name not in self._claims]
        if self._given is None:
            now = time.monotonic()
            return [name for name in missing if self._again.get(name, (now, 0.0))[0] <= now]
        self._claim({name: self._given[name] for name in missing if name in self._given})
        if new := [name for name in missing if name not in self._given and name not in self._told]:
            log.warning("sizes has no entry for %.200s: they cannot be drawn", new)
            self._told |= set(new)
        return []

    def _hear(self, answers: Mapping[str, object]) -> None:
        """Take what clients told; a reason why one did not is text."""
        found = {
            name: answer if isinstance(answer, str) else claimed_size(answer)
            for name, answer in answers.items()
        }
        for name, size in found.items():
            if isinstance(size, str):
                log.warning("client %s did not say how many samples it has: %.200s", name, size)
                pause = self._again.get(name, (0.0, self._controller.query_timeout))[1]
                self._again[name] = time.monotonic() + pause, 2 * pause
        self._claim({name: size for name, size in found.items() if isinstance(size, int)})

    def state(self) -> dict[str, int]:
        """Return the sizes as they were claimed."""
        return dict(self._claims)

    def restore(self, state: Mapping[str, int]) -> None:
        """Take over what :meth:`state` returned; these clients are not asked again."""
        self._claim({name: int(size) for name, size in state.items()})

    def _claim(self, sizes: Mapping[str, int]) -> None:
        if not sizes:
            return
        self._claims |= sizes
        keys = list(self._claims)
        own_word = [self._given is None] * len(keys)
        bounded = ClaimedSizes(keys, list(self._claims.values()), own_word).bounded(self._limits)
        self.sizes = dict(zip(keys, bounded.tolist(), strict=True))


def _metric(result: Shareable, name: str) -> object:
    """Return a metric of an answer, or why there is none."""
    code = result.get_return_code()
    if code != ReturnCode.OK:
        return f"error: {code}"
    try:
        metrics = FLModelUtils.from_shareable(result).metrics or {}
    except Exception as error:  # a client can send anything
        return f"cannot be read: {type(error).__name__}"
    return metrics.get(name, f"has no metric {name!r}")


def numbers_from(answers: Mapping[str, object], signal: str) -> dict[str, float]:
    """Return the valid answers to a question for a signal: numbers of at least 0."""
    found = {
        name: float(answer)
        for name, answer in answers.items()
        if isinstance(answer, (int, float)) and math.isfinite(answer) and answer >= 0
    }
    if missing := [name for name in answers if name not in found]:
        log.warning(
            "%d of %d clients gave no %s: %.200s", len(missing), len(answers), signal, missing
        )
    return found
