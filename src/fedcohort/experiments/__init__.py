"""Experiment files become runs, runs become folders; needs the extra ``sim``."""

from fedcohort._lazy import import_extra

for _module in ("torch", "pyarrow", "threadpoolctl"):
    import_extra(_module, extra="sim", owner="fedcohort.experiments")

from fedcohort._arguments import suggest_names as _suggest_names  # noqa: E402
from fedcohort.experiments.experiment_file import read_experiment  # noqa: E402
from fedcohort.experiments.merge import merge_runs  # noqa: E402
from fedcohort.experiments.results import Results, read_results  # noqa: E402
from fedcohort.experiments.run_folder import RunFolder  # noqa: E402
from fedcohort.experiments.runner import FailedUnitsError, Observer, execute  # noqa: E402
from fedcohort.experiments.settings import Experiment, Panel  # noqa: E402
from fedcohort.experiments.units import Part  # noqa: E402

__all__ = [
    "Experiment",
    "FailedUnitsError",
    "Observer",
    "Panel",
    "Part",
    "Results",
    "RunFolder",
    "execute",
    "merge_runs",
    "read_experiment",
    "read_results",
]

_suggest_names(__name__, __all__)
