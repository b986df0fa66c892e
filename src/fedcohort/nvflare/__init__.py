"""Every design in an NVIDIA FLARE job; needs the extra ``nvflare``."""

from fedcohort._lazy import import_extra

import_extra("nvflare", extra="nvflare", owner="fedcohort.nvflare")

from fedcohort.deployment.limits import Limits  # noqa: E402
from fedcohort.nvflare.controller import CohortController, CohortSelection  # noqa: E402
from fedcohort.nvflare.questions import SIZE_TASK  # noqa: E402

__all__ = ["SIZE_TASK", "CohortController", "CohortSelection", "Limits"]
