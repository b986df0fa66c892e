"""Every design in a Fed-BioMed experiment; needs the extra ``fedbiomed``."""

from fedcohort._lazy import import_extra

import_extra("fedbiomed", extra="fedbiomed", owner="fedcohort.fedbiomed")

from fedcohort.deployment.limits import Limits  # noqa: E402
from fedcohort.fedbiomed.strategy import CohortStrategy  # noqa: E402

__all__ = ["CohortStrategy", "Limits"]
