"""A FLARE controller that draws the clients: FedAvg's rounds, another draw and aggregate."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.base_fedavg import (
    BaseFedAvg,
    make_fedavg_metrics_aggregation_info,
)
from nvflare.app_common.workflows.fedavg import FedAvg

from fedcohort._updates import as_numpy, is_tensor
from fedcohort.cohort import Cohort
from fedcohort.deployment.arrays import (
    Arrays,
    LazyArrays,
    ModelArrays,
    as_arrays,
    like_parameters,
)
from fedcohort.deployment.checkpoint import must_resume
from fedcohort.deployment.limits import Limits
from fedcohort.deployment.options import SelectorOptions
from fedcohort.deployment.round import NO_ANSWER, Round, Rounds, TrainingRound, weights_of
from fedcohort.deployment.waits import TimeLimit
from fedcohort.designs import Recipe
from fedcohort.memory import EstimatorName, EstimatorSettings
from fedcohort.nvflare.questions import SiteDirectory
from fedcohort.nvflare.settings import (
    FLARE,
    PASSED_ON,
    as_plain,
    check_controller,
    check_kind,
    estimator_from,
    limits_from,
    optimizer_from,
    recipe_from,
)
from fedcohort.optimizers import ServerOptimizer, State
from fedcohort.selector.settings import unpacks

if TYPE_CHECKING:  # it calls the methods of FedAvg, and stands before controllers that inherit it
    from nvflare.app_common.workflows.fedavg import FedAvg as Base
else:
    Base = object

#: The name of a client's weight in FLARE's reports.
WEIGHT = "cohort_weight"


@unpacks(SelectorOptions, without=FLARE.lacks)
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
    {settings}
    sizes
        Samples by client name. None asks the clients, in a task named ``num_examples``.
    estimator
        The name of an estimator, its settings, or a mapping of its name and fields.
    server_optimizer
        How the model moves along the aggregate: one of ``fedcohort.optimizers``, or a mapping with
        its name and fields, such as ``{"name": "adam", "lr": 0.1}``; None adds the aggregate.
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
        estimator: EstimatorName | EstimatorSettings | Mapping[str, Any] = "plain",
        server_optimizer: ServerOptimizer | Mapping[str, Any] | None = None,
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
        settings: Any = {name: kwargs.pop(name) for name in PASSED_ON & kwargs.keys()}
        super().__init__(*args, **{"ignore_result_error": True, **kwargs})
        self._options = SelectorOptions(
            recipe_from(recipe),
            plugin=FLARE,
            estimator=estimator_from(estimator),
            limits=limits_from(limits),
            **settings,
        )
        self.selector, bounds = self._options.selector(), self._options.bounds
        self._optimizer = optimizer_from(server_optimizer)
        # FLARE writes a job's configuration from attributes with the names of arguments.
        for name in PASSED_ON:
            setattr(self, name, getattr(self._options, name))
        self.recipe = as_plain(self._options.recipe)
        self.estimator = as_plain(self._options.estimator)
        self.limits, self.server_optimizer = asdict(bounds), as_plain(self._optimizer)
        self.min_clients = FLARE.count("min_clients", min_clients)
        # FLARE counts whole seconds, at least one.
        self.timeout = FLARE.number("timeout", timeout, least=1)
        self.start_timeout = FLARE.number("start_timeout", start_timeout, least=1)
        self.query_timeout = FLARE.number("query_timeout", query_timeout, least=1)
        self.checkpoint, self.resume = checkpoint and str(checkpoint), resume
        self.every, self.log_file = FLARE.count("every", every), log_file and str(log_file)
        moves = super().update_model.__func__
        check_controller(self, is_plain=moves is BaseFedAvg.update_model)
        self._sites = SiteDirectory(self, self._options.sizes, bounds)
        self._round: TrainingRound | None = None
        self._current: FLModel | None = None
        self._sent = FLModel(params={})
        self._counts: Callable[[FLModel], None] | None = None
        self._until = TimeLimit(0.0)

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Add the controller to a job; the server has the library, so FLARE need not copy it."""
        packages = job.job.app_packages
        job.set_app_packages([*packages, *({"fedcohort"} - set(packages))])
        super().add_to_fed_job(job, ctx, **kwargs)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note which client asks for a task."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST:
            self._sites.note_request(str(fl_ctx.get_peer_context().get_identity_name()))

    # Called by FedAvg, in the order of a round

    def run(self) -> None:
        """Prepare the selector, then train as the controller does."""
        self._options = replace(self._options, log_file=self._path(self.log_file))
        self.selector, bounds = self._options.selector(), self._options.bounds
        audit_every = self._options.audit_every
        self._rounds = Rounds(FLARE, self.selector, self._sites, bounds, audit_every=audit_every)
        self.aggregator = _StepAggregator(self.aggregated)
        self._moments: State | None = None
        self._is_first, self._file = True, self._path(self.checkpoint)
        self._resumes = must_resume(FLARE, self._file, resume=self.resume)
        if self.model is not None:
            is_whole = isinstance(self.model, FLModel)
            self._current = self.model if is_whole else FLModel(params=self.model)
        recipe, seed = self.selector.recipe, self.selector.seed
        FLARE.logger.info("clients are drawn by %r, seed %d", recipe, seed)
        super().run()
        if self.selector.selections is not None:
            self.selector.selections.log_summary()

    def load_model(self) -> FLModel:
        """Load the model from the persistor; with ``resume``, from the checkpoint."""
        model = super().load_model()
        if model is not None and self._resumes:
            model.params = self._restored(model.params)
        self._current = model
        return model

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Draw the round's clients; the recipe says how many."""
        self._round = None
        needed = self.min_clients if self._is_first else 1
        there = self._sites.gather(needed, None if self._is_first else self.timeout)
        cohort = self._rounds.draw(there, self._ask_signal)
        self._until, self._is_first = TimeLimit(self.timeout), False
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
            sent = _sent_model(data.params)
            self._rounds.check_model(sent)
            self._round = self._rounds.open(sent)
            self._sent, self._counts = data, callback
        now = self._round
        now.ask(targets or ())

        def accept(result: FLModel) -> bool:
            is_usable = self._accept(now, str(result.meta.get("client_name")), result)
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
            model.params = like_parameters(before, model.params)
        self._current = model
        if self._file is not None and self.selector.round_ % self.every == 0:
            parts = {"model": as_arrays(model.params)}
            if self._moments is not None:
                parts["moments"] = dict(self._moments)
            self._rounds.save(self._file, parts, origin=self._origin)
        return model

    @staticmethod
    def _accept(now: TrainingRound, name: str, result: FLModel) -> bool:
        """Read a client's answer: its model, or its update; return whether it can be used."""
        if not now.expects(name):
            return False
        params = result.params if isinstance(result.params, Mapping) else {}
        return now.accept_arrays(
            name,
            LazyArrays(params),
            result,
            metrics=dict(result.metrics or {}),
            is_update=result.params_type == ParamsType.DIFF,
        )

    def _accept_train_result(
        self, client_name: str, result: Shareable, fl_ctx: FLContext, is_unknown_task: bool = False
    ) -> bool:
        """Note why a client failed, then call FLARE's own method."""
        now, code = self._round, result.get_return_code()
        has_failed = not is_unknown_task and code not in (None, ReturnCode.OK)
        if has_failed and now is not None and now.expects(client_name):
            now.accept(client_name, f"error: {code}")
        accepted = super()._accept_train_result(client_name, result, fl_ctx, is_unknown_task)
        return bool(accepted)

    def aggregated(self) -> FLModel:
        """Settle the round, and return the step as a model of differences; empty: it is void."""
        now = self._round
        assert now is not None  # for mypy: FedAvg sends before it aggregates
        self._close(now, list(now.asked))
        if self._options.on_failure == "redraw":
            self._ask_others(now)
        settled, moments = self.selector.settle(now.answers()), [self._moments]

        def optimize(step: Arrays) -> Arrays:
            if self._optimizer is None:
                return step
            moved, moments[0] = self._optimizer.step(step, self._moments)
            return cast("Arrays", moved)

        step = self._rounds.step(now, optimize)
        if step is not None:
            self._moments = moments[0]
        self._round, has_clients = None, self._sites.has_samples()
        self._rounds.end(now, has_moved=step is not None, has_clients=has_clients)
        _report(self, now, settled)
        return FLModel(
            params_type=ParamsType.DIFF,
            params=_tensors_where(self._sent.params, step or {}),
            metrics=now.mean_metrics(settled),
            current_round=self.current_round,
            meta=_aggregation_info(settled),
        )

    def _close(self, now: TrainingRound, names: list[str]) -> None:
        """Stop waiting for clients."""
        lost = now.close(names)
        self._sites.note_missed(name for name in lost if now.failed[name] == NO_ANSWER)

    def _ask_others(self, now: TrainingRound) -> None:
        """Ask clients in place of those that failed, until enough answered."""
        while not self._until.has_passed and not self.is_aborted():
            more = self._rounds.redraw(now)
            if not more:
                break
            self.send_model(self.task_name, self._sent, more, callback=self._counts)
            self._sites.wait_for_tasks()
            self._close(now, more)

    def _ask_signal(self, signal: str, names: list[str]) -> dict[str, object]:
        """Ask clients for what the recipe wants to know before the draw."""
        has_model = signal != "duration" and self._current is not None
        model = self._current if has_model else FLModel(params={})
        answers = self._sites.ask(signal, model, names)
        return {name: own if isinstance(own, str) else own[signal] for name, own in answers.items()}

    def _seconds(self) -> int:
        """Return how long to wait for answers: half of what is left while redraws may follow."""
        left, redraws = self._until.left, self._options.on_failure == "redraw"
        return max(1, math.ceil(left / 2 if redraws else left))

    def _path(self, name: str | None) -> Path | None:
        return None if name is None else Path(self.get_run_dir()) / name

    @property
    def _origin(self) -> dict[str, Any]:
        """Settings that must be the same when a checkpoint is read."""
        return {"server_optimizer": self.server_optimizer}

    def _restored(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Continue from the checkpoint; return its model, in the persistor's types."""
        assert self._file is not None  # for mypy: there is a checkpoint
        parts, restore_rounds = self._rounds.read(self._file, origin=self._origin)
        model = _restored_model(parts["model"], params)
        restore_rounds()
        self._moments = parts.get("moments")
        done, last = self.selector.round_, self.num_rounds
        self.start_round, self.num_rounds = done, max(0, last - done)
        FLARE.logger.info("continues from the checkpoint: %d of %d rounds are done", done, last)
        return model


@final
class CohortController(CohortSelection, FedAvg):
    """FLARE's FedAvg with clients drawn by a recipe; see :class:`CohortSelection`."""


def _tensors_where(params: Mapping[str, Any], step: Arrays) -> dict[str, Any]:
    """Return a step with tensors where the model has tensors; types stay as wide as they are."""
    return {
        name: sys.modules["torch"].as_tensor(values) if is_tensor(params[name]) else values
        for name, values in step.items()
    }


@final
class _StepAggregator(ModelAggregator):
    """FedAvg calls this instead of an aggregator: ``step`` settles a round's answers."""

    def __init__(self, step: Callable[[], FLModel]) -> None:
        super().__init__()
        self._step = step

    def accept_model(self, model: FLModel) -> None:
        """Do nothing: the answer was read when it came."""

    def aggregate_model(self) -> FLModel:
        """Return the step."""
        return self._step()

    def reset_stats(self) -> None:
        """Do nothing: a round begins with its draw."""


def _sent_model(params: Mapping[str, Any] | None) -> ModelArrays:
    """Return the model to send; refuse none."""
    if not params:
        raise FLARE.refusal(
            "needs a first model, and the server has none. Add a persistor with one."
        )
    return ModelArrays(as_arrays(params))


def _restored_model(saved: Arrays, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved model in the kinds and types of these parameters; refuse another model."""
    shapes = {str(name): as_numpy(value).shape for name, value in params.items()}
    if {name: array.shape for name, array in saved.items()} != shapes:
        raise FLARE.refusal(
            "the checkpoint has a model of other arrays than the persistor's. Use another "
            "checkpoint for another model."
        )
    return like_parameters(params, saved)


def _report(controller: CohortSelection, now: Round, settled: Cohort) -> None:
    """Send a round's figures to FLARE's tracking, as scalars."""
    figures = {
        "cohort_clients": len(now.asked),
        "failed_clients": len(now.failed),
        "residual": settled.residual,
    }
    if (log := controller.selector.selections) is not None:
        figures |= log.figures
    for tag, value in figures.items():
        kind = AnalyticsDataType.SCALAR
        dxo = create_analytic_dxo(tag, float(value), kind, global_step=now.number)
        send_analytic_dxo(controller, dxo, controller.fl_ctx)


def _aggregation_info(settled: Cohort) -> dict[str, Any]:
    """Return how the metrics were averaged, for FLARE's reports."""
    shares = weights_of(settled).items()
    sites = [{"name": name, "weight": weight, "weight_key": WEIGHT} for name, weight in shares]
    info = make_fedavg_metrics_aggregation_info(weight_key=WEIGHT, site_weights=sites or None)
    return {AppConstants.METRICS_AGGREGATION_INFO: info}
