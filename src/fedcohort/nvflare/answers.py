"""Models and reports in FLARE's own forms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.base_fedavg import make_fedavg_metrics_aggregation_info

from fedcohort._updates import as_numpy, is_tensor
from fedcohort.cohort import Cohort
from fedcohort.deployment.arrays import Arrays, ModelArrays, as_arrays, like_parameters
from fedcohort.deployment.round import Round
from fedcohort.nvflare.settings import FLARE

if TYPE_CHECKING:
    from fedcohort.nvflare.controller import CohortSelection

#: The name of a client's weight in FLARE's reports.
WEIGHT = "cohort_weight"


def tensors_where(params: Mapping[str, Any], step: Arrays) -> dict[str, Any]:
    """Return a step with tensors where the model has tensors; types stay as wide as they are."""
    return {
        name: sys.modules["torch"].as_tensor(values) if is_tensor(params[name]) else values
        for name, values in step.items()
    }


@final
class StepAggregator(ModelAggregator):
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


def sent_model(params: Mapping[str, Any] | None) -> ModelArrays:
    """Return the model to send; refuse none."""
    if not params:
        raise FLARE.refusal(
            "needs a first model, and the server has none. Add a persistor with one."
        )
    return ModelArrays(as_arrays(params))


def restored_model(saved: Arrays, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved model in the kinds and types of these parameters; refuse another model."""
    shapes = {str(name): as_numpy(value).shape for name, value in params.items()}
    if {name: array.shape for name, array in saved.items()} != shapes:
        raise FLARE.refusal(
            "the checkpoint has a model of other arrays than the persistor's. Use another "
            "checkpoint for another model."
        )
    return like_parameters(params, saved)


def report(controller: CohortSelection, now: Round, settled: Cohort) -> None:
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
