"""fedcohort chooses who trains: unbiased, low-variance client sampling for federated learning.

>>> from fedcohort import Selector, SizeClustered
>>> selector = Selector(SizeClustered(2), {"Nice": 5, "Lyon": 3, "Brest": 2}, seed=0)
>>> cohort = selector.draw()
>>> cohort.ids, cohort.weights.tolist()
(['Lyon', 'Nice'], [0.5, 0.5])
"""

from fedcohort import diagnostics
from fedcohort._version import __version__ as __version__
from fedcohort.aggregation import aggregate
from fedcohort.cohort import Cohort
from fedcohort.designs import (
    Auto,
    Balanced,
    CohortMean,
    Deadline,
    Design,
    DivFL,
    FirstResponders,
    Multinomial,
    NormOptimal,
    Oort,
    Poisson,
    PowerOfChoice,
    Recipe,
    RoundRobin,
    SimilarityClustered,
    SizeClustered,
    Stratified,
    Target,
    Tournament,
    Uniform,
)
from fedcohort.difference import Difference
from fedcohort.errors import FedcohortError
from fedcohort.plan import Plan
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.similarity import UpdateMemory

__all__ = [
    "Auto",
    "Balanced",
    "Cohort",
    "CohortMean",
    "Deadline",
    "Design",
    "Difference",
    "DivFL",
    "FedcohortError",
    "FirstResponders",
    "Multinomial",
    "NormOptimal",
    "Oort",
    "Plan",
    "Poisson",
    "Population",
    "PowerOfChoice",
    "Recipe",
    "RoundRobin",
    "Selector",
    "SimilarityClustered",
    "SizeClustered",
    "Stratified",
    "Target",
    "Tournament",
    "Uniform",
    "UpdateMemory",
    "aggregate",
    "diagnostics",
]
