"""A round's answers: checked, as numpy arrays, and what FLARE is told of them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.base_fedavg import make_fedavg_metrics_aggregation_info

from fedcohort._deployment import (
    LOSS_METRIC,
    SILENCE,
    ArrayCheck,
    Arrays,
    ClientUpdate,
    ModelArrays,
    is_finite_number,
    log_reasons,
)
from fedcohort._updates import is_tensor
from fedcohort.cohort import Cohort
from fedcohort.errors import NvflareError
from fedcohort.nvflare.settings import OWNER
from fedcohort.selector import Selector

if TYPE_CHECKING:
    from fedcohort.nvflare.controller import CohortSelection

#: The name of a client's weight in FLARE's reports.
WEIGHT = "cohort_weight"


def as_array(value: object) -> NDArray[Any]:
    """Return a parameter as a numpy array; numpy has no bfloat16, so that becomes float32."""
    if not is_tensor(value):
        return np.asarray(value)
    tensor: Any = value
    tensor = tensor.detach().cpu()
    wide = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    array: NDArray[Any] = wide.numpy()
    return array


def in_kind_of(own: object, value: object) -> Any:
    """Return a new value of a parameter in its kind, numpy or torch, type and device."""
    if is_tensor(own):
        tensor: Any = own
        return sys.modules["torch"].as_tensor(value).to(tensor)
    values, kind = as_array(value), np.asarray(own).dtype
    if kind.kind in "iub" and values.dtype.kind == "f":
        values = np.rint(values)
    return values.astype(kind, copy=False)


def tensors_where(params: Mapping[str, Any], step: Arrays) -> dict[str, Any]:
    """Return a step with tensors where the model has tensors; types stay as wide as they are."""
    return {
        name: sys.modules["torch"].as_tensor(values) if is_tensor(params[name]) else values
        for name, values in step.items()
    }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A usable answer: the update, the metrics, and the seconds that it took."""

    update: ClientUpdate
    metrics: Mapping[str, Any]
    seconds: float


@final
@dataclass(slots=True)
class RoundAnswers:
    """A round between the draw and the aggregate: who answered, and why others did not.

    Attributes
    ----------
    number
        The round, from 0.
    sent
        The model that clients were sent.
    check
        Says whether arrays can be used.
    asked
        When each client was asked.
    answered, failed
        The usable answers by client, in order of arrival, and why others cannot be used.
    """

    number: int
    sent: ModelArrays
    check: ArrayCheck
    asked: dict[str, float] = field(default_factory=dict)
    answered: dict[str, Answer] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _zero: ModelArrays | None = None

    @property
    def updates(self) -> dict[str, ClientUpdate]:
        """The updates of those that answered, none of them computed yet."""
        return {name: answer.update for name, answer in self.answered.items()}

    def ask(self, names: Iterable[str]) -> None:
        """Note that clients are asked now."""
        self.asked |= dict.fromkeys(names, time.monotonic())

    def accept(self, name: str, result: FLModel) -> str | None:
        """Take a client's answer; return what is wrong with it."""
        if name not in self.asked or name in self.answered or name in self.failed:
            return "was not expected"
        found = self._update(result)
        if isinstance(found, str):
            self.failed[name] = found
            return found
        seconds = time.monotonic() - self.asked[name]
        self.answered[name] = Answer(found, dict(result.metrics or {}), seconds)
        return None

    def fail(self, name: str, reason: str) -> None:
        """Note why a client that was asked failed."""
        if name in self.asked and name not in self.answered:
            self.failed.setdefault(name, reason)

    def close(self) -> list[str]:
        """Count those that did not answer among the failed; return all that are new there."""
        silent = [name for name in self.asked if name not in self.answered]
        for name in silent:
            self.failed.setdefault(name, SILENCE)
        return silent

    def log(self, names: Iterable[str]) -> None:
        """Log why clients failed."""
        failed = {name: self.failed[name] for name in names}
        log_reasons(failed, f"training in round {self.number}", len(self.asked))

    def reported(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return what clients reported: losses, the metric ``rms_loss``, and durations."""
        losses: dict[str, float] = {}
        for name, answer in self.answered.items():
            loss: Any = answer.metrics.get(LOSS_METRIC)
            if is_finite_number(loss) and loss >= 0:
                losses[name] = float(loss)
        return losses, {name: answer.seconds for name, answer in self.answered.items()}

    def mean_metrics(self, settled: Cohort) -> dict[str, float] | None:
        """Return the means, by the settled weights, of the metrics that all answers share."""
        shares = zip(map(str, settled.ids), settled.weights.tolist(), strict=True)
        weights = {name: weight for name, weight in shares if weight > 0}
        total = math.fsum(weights.values())
        found = [self.answered[name].metrics for name in weights]
        names = [key for key in (found[0] if found else ()) if all(_has(own, key) for own in found)]
        return {
            key: math.fsum(w * float(self.answered[n].metrics[key]) for n, w in weights.items())
            / total
            for key in names
        } or None

    def _update(self, result: FLModel) -> ClientUpdate | str:
        """Return a client's update, or what is wrong with it."""
        params = result.params
        if not isinstance(params, Mapping) or set(params) != set(self.sent.arrays):
            return "has other arrays than the model"
        start = self._start(result.params_type)
        try:
            arrays = {name: as_array(params[name]) for name in self.sent.arrays}
        except Exception as error:  # a client can send anything
            return f"cannot be read: {type(error).__name__}, {error}"
        cast = self.check(arrays, start)
        return cast if isinstance(cast, str) else ClientUpdate(start, {**arrays, **cast})

    def _start(self, kind: ParamsType | None) -> ModelArrays:
        """Return what an update counts from: the model, or zero where updates themselves come."""
        if kind != ParamsType.DIFF:
            return self.sent
        if self._zero is None:
            self._zero = self.sent.at_zero()
        return self._zero


@final
class StepAggregator(ModelAggregator):
    """FedAvg calls this instead of an aggregator: ``step`` settles a round's answers."""

    def __init__(self, step: Callable[[], FLModel]) -> None:
        super().__init__()
        self._step = step

    def accept_model(self, model: FLModel) -> None:
        """Do nothing: the answer was checked when it came, and is kept."""

    def aggregate_model(self) -> FLModel:
        """Return the step."""
        return self._step()

    def reset_stats(self) -> None:
        """Do nothing: a round begins with its draw."""


def _has(metrics: Mapping[str, Any], key: str) -> bool:
    return is_finite_number(metrics.get(key))


def opened_round(
    selector: Selector, params: Mapping[str, Any] | None, check: ArrayCheck
) -> RoundAnswers:
    """Open a round with a model; refuse none, and another than the one that is remembered."""
    if not params:
        raise NvflareError(
            f"{OWNER}: needs a first model, and the server has none. Add a persistor with one."
        )
    sent = ModelArrays({str(name): as_array(value) for name, value in params.items()})
    for known in (selector.memory, selector.variates):
        if known is not None and known.dimension != sent.dimension:
            raise NvflareError(
                f"{OWNER}: remembers updates of {known.dimension} numbers; got a model of "
                f"{sent.dimension}. Use another checkpoint for another model."
            )
    return RoundAnswers(selector.round_, sent, check)


def report(controller: CohortSelection, now: RoundAnswers, settled: Cohort) -> None:
    """Send a round's figures to FLARE's tracking, as scalars."""
    figures = {
        "cohort_clients": len(now.asked),
        "failed_clients": len(now.failed),
        "residual": settled.residual,
    }
    for tag, value in figures.items():
        kind = AnalyticsDataType.SCALAR
        dxo = create_analytic_dxo(tag, float(value), kind, global_step=now.number)
        send_analytic_dxo(controller, dxo, controller.fl_ctx)


def aggregation_info(settled: Cohort) -> dict[str, Any]:
    """Return how the metrics were averaged, for FLARE's reports."""
    shares = zip(map(str, settled.ids), settled.weights.tolist(), strict=True)
    sites = [{"name": name, "weight": weight, "weight_key": WEIGHT} for name, weight in shares]
    info = make_fedavg_metrics_aggregation_info(weight_key=WEIGHT, site_weights=sites or None)
    return {AppConstants.METRICS_AGGREGATION_INFO: info}
