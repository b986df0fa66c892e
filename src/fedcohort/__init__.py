"""fedcohort chooses who trains: unbiased, low-variance client sampling for federated learning.

>>> from fedcohort import Selector, SizeClustered
>>> selector = Selector(SizeClustered(2), {"Nice": 5, "Lyon": 3, "Brest": 2}, seed=0)
>>> cohort = selector.draw()
>>> cohort.ids, cohort.weights.tolist()
(['Lyon', 'Nice'], [0.5, 0.5])
"""

from typing import TYPE_CHECKING

from fedcohort._lazy import attach
from fedcohort._version import __version__ as __version__

if TYPE_CHECKING:
    from fedcohort import diagnostics
    from fedcohort.client_files import read_clients
    from fedcohort.cohort import Cohort, aggregate
    from fedcohort.comparison import CohortSizes, Comparison, compare
    from fedcohort.designs import (
        OSMD,
        Auto,
        Balanced,
        CohortMean,
        Deadline,
        Design,
        DivFL,
        FirstResponders,
        HiCS,
        KVib,
        Multinomial,
        NormOptimal,
        Oort,
        Poisson,
        PowerOfChoice,
        Recipe,
        RoundRobin,
        Shuffled,
        SimilarityClustered,
        SizeClustered,
        Stratified,
        Target,
        Tournament,
        Uniform,
    )
    from fedcohort.designs.function_recipe import recipe
    from fedcohort.errors import FedcohortError
    from fedcohort.memory import MIFA, Difference, FedStale, FedVARP, Regression, UpdateMemory
    from fedcohort.participation import Audit, audit
    from fedcohort.plan import Plan
    from fedcohort.population import Population
    from fedcohort.selector import Selector
    from fedcohort.studies import Study, study
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "client_files": "read_clients",
            "cohort": "Cohort aggregate",
            "comparison": "CohortSizes Comparison compare",
            "designs": (
                "Auto Balanced CohortMean Deadline Design DivFL FirstResponders HiCS "
                "KVib Multinomial NormOptimal OSMD Oort Poisson PowerOfChoice Recipe RoundRobin "
                "Shuffled SimilarityClustered SizeClustered Stratified Target Tournament Uniform"
            ),
            "designs.function_recipe": "recipe",
            "errors": "FedcohortError",
            "memory": "Difference FedStale FedVARP MIFA Regression UpdateMemory",
            "participation": "Audit audit",
            "plan": "Plan",
            "population": "Population",
            "selector": "Selector",
            "studies": "Study study",
        },
        modules=("designs", "diagnostics", "errors", "memory", "similarity"),
    )

__all__ = [
    "MIFA",
    "OSMD",
    "Audit",
    "Auto",
    "Balanced",
    "Cohort",
    "CohortMean",
    "CohortSizes",
    "Comparison",
    "Deadline",
    "Design",
    "Difference",
    "DivFL",
    "FedStale",
    "FedVARP",
    "FedcohortError",
    "FirstResponders",
    "HiCS",
    "KVib",
    "Multinomial",
    "NormOptimal",
    "Oort",
    "Plan",
    "Poisson",
    "Population",
    "PowerOfChoice",
    "Recipe",
    "Regression",
    "RoundRobin",
    "Selector",
    "Shuffled",
    "SimilarityClustered",
    "SizeClustered",
    "Stratified",
    "Study",
    "Target",
    "Tournament",
    "Uniform",
    "UpdateMemory",
    "aggregate",
    "audit",
    "compare",
    "diagnostics",
    "read_clients",
    "recipe",
    "study",
]
