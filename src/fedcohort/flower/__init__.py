"""Every design in a Flower federation; needs the extra ``flower``."""

from fedcohort._lazy import import_extra

import_extra("flwr", extra="flower", owner="fedcohort.flower")

from fedcohort._deployment import Limits  # noqa: E402
from fedcohort.flower.queries import register_signal_queries, register_size_query  # noqa: E402
from fedcohort.flower.settings import Waits  # noqa: E402
from fedcohort.flower.strategy import CohortStrategy  # noqa: E402

__all__ = ["CohortStrategy", "Limits", "Waits", "register_signal_queries", "register_size_query"]
