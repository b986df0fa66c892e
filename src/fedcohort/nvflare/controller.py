"""A FLARE controller that draws the clients: FedAvg's rounds, another draw and aggregate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_common.workflows.fedavg import FedAvg

from fedcohort._deployment import ArrayCheck, Limits, Patience
from fedcohort.designs import Recipe
from fedcohort.errors import NvflareError
from fedcohort.memory import Difference, EstimatorName
from fedcohort.nvflare.answers import (
    RoundAnswers,
    StepAggregator,
    aggregation_info,
    as_array,
    in_kind_of,
    opened_round,
    report,
    tensors_where,
)
from fedcohort.nvflare.checkpoint import SavedRun
from fedcohort.nvflare.questions import Sites, numbers_from
from fedcohort.nvflare.settings import (
    OWNER,
    Settings,
    check_controller,
    check_kind,
    checked_count,
    checked_given,
    checked_seconds,
    estimator_from,
    limits_from,
    optimizer_from,
    plain_optimizer,
    plain_recipe,
    recipe_from,
)
from fedcohort.optimizers import ServerOptimizer, State
from fedcohort.population import Label
from fedcohort.selector.open_round import OnFailure

log = getLogger("fedcohort")

if TYPE_CHECKING:  # it calls the methods of FedAvg, and stands before controllers that inherit it
    from nvflare.app_common.workflows.fedavg import FedAvg as Base
else:
    Base = object


class CohortSelection(Base):
    """Draw every round's clients by a recipe, in a controller that inherits FLARE's ``FedAvg``.

    Put it before the controller: ``class Mine(CohortSelection, FedOpt)``. It takes the place of
    ``sample_clients`` and of the aggregator. All arguments can be written in JSON, so that it
    works in a job's configuration as well as with ``FedJob``.

    Parameters
    ----------
    recipe
        Which design to draw from: a recipe, or a mapping with the name and the fields of one of
        the library's, such as ``{"name": "size", "cohort_size": 10}``.
    seed
        Seeds the draws: one seed gives one sequence of cohorts.
    sizes
        Samples by client name. None asks the clients, in a task named ``num_examples``.
    groups
        Labels by client name, for recipes that draw by group.
    estimator
        ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference` or its fields.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    server_optimizer
        How the model moves along the aggregate: one of ``fedcohort.optimizers``, or a mapping with
        its name and fields, such as ``{"name": "adam", "lr": 0.1}``; None adds the aggregate.
    on_failure, tries
        What happens to the weight of a drawn client that fails. ``"keep"`` leaves it on the
        current model. ``"redraw"`` draws other clients in its place, up to ``tries`` times.
        ``"renormalise"`` spreads it over the clients that answered (biased).
    min_clients
        Wait for this many clients and their sizes before the first round.
    timeout, start_timeout, query_timeout
        The seconds that the server waits: for a round's answers, all redraws together; for the
        first clients; and for the answers to one question.
    limits
        What the server accepts: :class:`Limits`, or its fields.
    checkpoint, every, resume
        A file for the model and the selector, and how many rounds lie between two writes. With
        ``resume`` continue from it, if it exists, until ``num_rounds`` rounds are done in total.
    log_file
        Where to write a JSON line for every round. Files are relative to the job's run folder.
    kwargs
        Arguments of the controller, such as ``num_rounds`` and ``persistor_id``.

    Attributes
    ----------
    selector
        Draws the clients and remembers what it needs of them; rounds count from 0.
    """

    num_rounds: int

    def __init__(
        self,
        *args: Any,
        recipe: Recipe | Mapping[str, Any],
        seed: int | None = None,
        sizes: Mapping[str, int] | None = None,
        groups: Mapping[str, Label | None] | None = None,
        estimator: EstimatorName | Difference | Mapping[str, Any] = "plain",
        sketch: int | None = None,
        server_optimizer: ServerOptimizer | Mapping[str, Any] | None = None,
        on_failure: OnFailure = "keep",
        tries: int = 10,
        min_clients: int = 1,
        timeout: float = 3600,
        start_timeout: float = 600,
        query_timeout: float = 60,
        limits: Limits | Mapping[str, Any] | None = None,
        checkpoint: str | None = None,
        every: int = 1,
        resume: bool = False,
        log_file: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_kind(self)
        super().__init__(*args, **{"ignore_result_error": True, **kwargs})
        self._settings = Settings(
            recipe=recipe_from(recipe),
            seed=seed,
            sizes=checked_given(sizes),
            groups=None if groups is None else {str(name): of for name, of in groups.items()},
            estimator=estimator_from(estimator),
            sketch=sketch,
            on_failure=on_failure,
            tries=tries,
            limits=limits_from(limits),
            optimizer=optimizer_from(server_optimizer),
        )
        self.selector = self._settings.selector()
        draws = self._settings.recipe.cohort_size
        self._settings.limits.check_cohort(OWNER, draws, NvflareError)
        # FLARE writes a job's configuration from attributes with the names of arguments.
        self.recipe, self.seed = plain_recipe(self._settings.recipe), seed
        self.sizes, self.groups = self._settings.sizes, self._settings.groups
        self.estimator = asdict(estimator) if isinstance(estimator, Difference) else estimator
        self.sketch, self.on_failure, self.tries = sketch, on_failure, tries
        self.limits = asdict(self._settings.limits)
        self.server_optimizer = plain_optimizer(self._settings.optimizer)
        self.min_clients = checked_count("min_clients", min_clients)
        self.timeout = checked_seconds("timeout", timeout)
        self.start_timeout = checked_seconds("start_timeout", start_timeout)
        self.query_timeout = checked_seconds("query_timeout", query_timeout)
        self.checkpoint, self.resume = checkpoint and str(checkpoint), resume
        self.every, self.log_file = checked_count("every", every), log_file and str(log_file)
        moves = super().update_model.__func__
        check_controller(self, is_plain=moves is BaseFedAvg.update_model)
        self._round: RoundAnswers | None = None
        self._current: FLModel | None = None
        self._sent = FLModel(params={})
        self._counts: Callable[[FLModel], None] | None = None
        self._until = 0.0

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Add the controller to a job; the server has the library, so FLARE need not copy it."""
        known = job.job.app_packages
        job.set_app_packages([*known, *({"fedcohort"} - set(known))])
        super().add_to_fed_job(job, ctx, **kwargs)

    # Called by FedAvg, in the order of a round

    def run(self) -> None:
        """Prepare the selector, then train as the controller does."""
        settings, limits = self._settings, self._settings.limits
        self.selector = settings.selector(self._path(self.log_file) or True)
        self._sites = Sites(self, settings.sizes, limits)
        self._check = ArrayCheck(limits.max_norm, settings.recipe.learns)
        self._patience = Patience(OWNER, limits, NvflareError)
        self.aggregator = StepAggregator(self.aggregated)
        self._moments: State | None = None
        self._is_first, self._saved = True, self._saved_state()
        if self.model is not None:
            is_whole = isinstance(self.model, FLModel)
            self._current = self.model if is_whole else FLModel(params=self.model)
        log.info("clients are drawn by %r, seed %d", settings.recipe, self.selector.seed)
        super().run()
        if self.selector.selections is not None:
            self.selector.selections.log_summary()

    def load_model(self) -> FLModel:
        """Load the model from the persistor; with ``resume``, from the checkpoint."""
        model = super().load_model()
        if model is not None and self._saved is not None:
            model.params = self._restored(self._saved, model.params)
        self._current = model
        return model

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Draw the round's clients; the recipe says how many."""
        self._round = None
        needed = self.min_clients if self._is_first else 1
        there = self._sites.gather(needed, None if self._is_first else self.timeout)
        if self.selector.clients != self._sites.sizes:
            self.selector.clients = self._sites.sizes
        cohort = self.selector.draw(there, self._signals(there))
        self._until, self._is_first = time.monotonic() + self.timeout, False
        names = [str(each) for each in cohort.ids]
        self.info(f"Sampled clients: {names}")
        return names

    def send_model(
        self,
        task_name: str = "train",
        data: FLModel = None,
        targets: list[str] | None = None,
        min_responses: int | None = None,
        timeout: int = 0,
        callback: Callable[[FLModel], None] | None = None,
    ) -> None:
        """Send the model to exactly these clients; FLARE would send to all if the list is empty."""
        if self._round is None:
            self._round = opened_round(self.selector, data.params, self._check)
            self._sent, self._counts = data, callback
        now = self._round
        now.ask(targets or ())

        def accept(result: FLModel) -> bool:
            name = str(result.meta.get("client_name"))
            is_usable = now.accept(name, result) is None
            if is_usable and callback is not None:
                callback(result)
            return is_usable  # False: FLARE then does not count it as accepted

        if targets:
            seconds = timeout or self._seconds()
            super().send_model(task_name, data, targets, min_responses, seconds, accept)

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """Move the model; it keeps its kinds and types. Save the checkpoint."""
        if aggr_result.params:
            before = dict(model.params)
            model = super().update_model(model, aggr_result)
            model.params = {
                name: in_kind_of(before[name], value) for name, value in model.params.items()
            }
        self._current = model
        path = self._path(self.checkpoint)
        if path is not None and self.selector.round_ % self.every == 0:
            arrays = {str(name): as_array(value) for name, value in model.params.items()}
            state, sizes = self.selector.state(), self._sites.state()
            SavedRun(arrays, state, sizes, self.server_optimizer, self._moments).write(path)
        return model

    def _accept_train_result(
        self, client_name: str, result: Shareable, fl_ctx: FLContext, is_unknown_task: bool = False
    ) -> bool:
        """Note why a client failed, then do as FLARE does."""
        now, code = self._round, result.get_return_code()
        if now is not None and not is_unknown_task and code not in (None, ReturnCode.OK):
            now.fail(client_name, f"error: {code}")
        accepted = super()._accept_train_result(client_name, result, fl_ctx, is_unknown_task)
        return bool(accepted)

    def aggregated(self) -> FLModel:
        """Settle the round, and return the step as a model of differences; empty: it is void."""
        now = self._round
        assert now is not None  # for mypy: FedAvg sends before it aggregates
        now.log(now.close())
        if self.on_failure == "redraw":
            self._ask_others(now)
        settled, step = self.selector.settle(now.answered), self._step(now)
        if step is None:
            unused = dict.fromkeys(now.answered, "the round's aggregate was not used")
            self.selector.skip(failed={**unused, **now.failed})
        else:
            losses, durations = now.reported()
            self.selector.remember(
                now.updates, losses=losses, durations=durations, failed=now.failed
            )
        self._round = None
        reasons = list(now.failed.values())
        if not now.asked and not self._sites.takers():
            reasons = ["no client with samples was there"]
        self._patience.end_round(now.answered, reasons)
        report(self, now, settled)
        return FLModel(
            params_type=ParamsType.DIFF,
            params=tensors_where(self._sent.params, step or {}),
            metrics=now.mean_metrics(settled),
            current_round=self.current_round,
            meta=aggregation_info(settled),
        )

    def _step(self, now: RoundAnswers) -> Mapping[str, NDArray[Any]] | None:
        """Return what to add to the model; None where it stays."""
        if now.asked and self._patience.is_void(now.number, len(now.answered)):
            return None
        moments, optimizer = self._moments, self._settings.optimizer
        step: Any = self.selector.step(now.updates)
        if optimizer is not None and self._is_empty_draw:
            step = step + np.zeros(now.sent.dimension)  # its momentum goes on
        if not isinstance(step, Mapping):  # an empty cohort: the memory, or nothing
            step = now.sent.unflat(step) if isinstance(step, np.ndarray) else None
        if step is not None and optimizer is not None:
            step, moments = optimizer.step(step, moments)
        if step is not None and now.sent.plus(step) is None:
            log.error("round %d: the aggregate is not finite; the model stays", now.number)
            return None
        self._moments = moments
        return cast("Mapping[str, NDArray[Any]] | None", step)

    @property
    def _is_empty_draw(self) -> bool:
        """Whether clients were there, and the design drew none of them."""
        return self.selector.design is not None and not self.selector.asked

    def _ask_others(self, now: RoundAnswers) -> None:
        """Ask clients in place of those that failed, until enough answered."""
        lost = list(now.failed)
        while self._until > time.monotonic() and not self.is_aborted():
            more = [str(each) for each in self.selector.redraw(lost)]
            if not more:
                break
            self.send_model(self.task_name, self._sent, more, callback=self._counts)
            self._sites.wait()
            lost = [name for name in now.close() if name in more]
            now.log(lost)

    def _signals(self, there: list[str]) -> dict[str, dict[str, float]] | None:
        """Ask clients for what the recipe wants to know before the draw."""
        request = self.selector.ask(there)
        if request is None:
            return None
        has_model = request.signal != "duration" and self._current is not None
        model = self._current if has_model else FLModel(params={})
        answers = self._sites.ask(request.signal, model, [str(each) for each in request.ids])
        return {request.signal: numbers_from(answers, request.signal)}

    def _seconds(self) -> int:
        """Return how long to wait for answers: half of what is left while redraws may follow."""
        left = self._until - time.monotonic()
        return max(1, math.ceil(left / 2 if self.on_failure == "redraw" else left))

    def _path(self, name: str | None) -> Path | None:
        return None if name is None else Path(self.get_run_dir()) / name

    def _saved_state(self) -> SavedRun | None:
        """Return the checkpoint to go on from; None if there is none."""
        path = self._path(self.checkpoint)
        if path is None or not path.exists():
            return None
        if not self.resume:
            raise NvflareError(
                f"{OWNER}: {path} is there already. Pass resume=True to go on from it, or use "
                f"another file."
            )
        return SavedRun.read(path)

    def _restored(self, saved: SavedRun, params: Mapping[str, Any]) -> dict[str, Any]:
        """Go on from the checkpoint; return its model, in the kinds of the persistor's."""
        saved.check_optimizer(self.server_optimizer)
        found, self._moments = saved.model_like(params), saved.moments
        self.selector.restore(saved.selector)
        self._sites.restore(saved.sizes)
        done, last = self.selector.round_, self.num_rounds
        self.start_round, self.num_rounds = done, max(0, last - done)
        log.info("goes on from the checkpoint: %d of %d rounds are done", done, last)
        return found


@final
class CohortController(CohortSelection, FedAvg):
    """FLARE's FedAvg with clients drawn by a recipe; see :class:`CohortSelection`."""
