"""What FLARE's own tracking and reports are told of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.base_fedavg import make_fedavg_metrics_aggregation_info

from fedcohort.cohort import Cohort
from fedcohort.nvflare.answers import RoundAnswers

if TYPE_CHECKING:
    from fedcohort.nvflare.controller import CohortSelection

#: What FLARE's reports call the weight of a client's metrics.
WEIGHT = "cohort_weight"


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
