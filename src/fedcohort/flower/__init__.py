"""Every design in a Flower federation; needs the extra ``flower``."""

from fedcohort._lazy import import_extra

import_extra("flwr", extra="flower", owner="fedcohort.flower")

from fedcohort._arguments import suggest_names as _suggest_names  # noqa: E402
from fedcohort.deployment.limits import Limits  # noqa: E402
from fedcohort.flower.queries import register_signal_queries, register_size_query  # noqa: E402
from fedcohort.flower.record import record  # noqa: E402
from fedcohort.flower.secure import SecureAggregation, secure_aggregation_mod  # noqa: E402
from fedcohort.flower.settings import Waits  # noqa: E402
from fedcohort.flower.strategy import CohortStrategy  # noqa: E402

__all__ = [
    "CohortStrategy",
    "Limits",
    "SecureAggregation",
    "Waits",
    "record",
    "register_signal_queries",
    "register_size_query",
    "secure_aggregation_mod",
]

_suggest_names(__name__, __all__)
