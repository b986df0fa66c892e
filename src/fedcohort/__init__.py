"""fedcohort chooses who trains: unbiased, low-variance client sampling for federated learning.

>>> import numpy as np
>>> from fedcohort import Population, SizeClusteredDesign
>>> design = SizeClusteredDesign(Population([5, 3, 2]), cohort_size=2, rng=np.random.default_rng(0))
>>> cohort = design.draw(np.random.default_rng(1))
>>> cohort.clients.tolist(), cohort.weights.tolist()
([0, 1], [0.5, 0.5])
"""

from fedcohort import diagnostics
from fedcohort.aggregation import aggregate
from fedcohort.cohort import Cohort
from fedcohort.designs import (
    Auto,
    AutoDesign,
    Balanced,
    BalancedDesign,
    ChosenDesign,
    CohortMean,
    CohortMeanDesign,
    Deadline,
    DeadlineDesign,
    Design,
    DivFL,
    DivFLDesign,
    FirstResponders,
    FirstRespondersDesign,
    Multinomial,
    MultinomialDesign,
    NormOptimal,
    NormOptimalDesign,
    Oort,
    OortDesign,
    Poisson,
    PoissonDesign,
    PowerOfChoice,
    PowerOfChoiceDesign,
    Recipe,
    RoundRobin,
    RoundRobinDesign,
    RowDesign,
    SimilarityClustered,
    SimilarityClusteredDesign,
    SizeClustered,
    SizeClusteredDesign,
    Stratified,
    StratifiedDesign,
    Target,
    TargetDesign,
    Tournament,
    TournamentDesign,
    Uniform,
    UniformDesign,
)
from fedcohort.difference import Difference
from fedcohort.errors import FedcohortError
from fedcohort.plan import Plan
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.streams import Stream, stream
from fedcohort.version import __version__ as __version__

__all__ = [
    "Auto",
    "AutoDesign",
    "Balanced",
    "BalancedDesign",
    "ChosenDesign",
    "Cohort",
    "CohortMean",
    "CohortMeanDesign",
    "Deadline",
    "DeadlineDesign",
    "Design",
    "Difference",
    "DivFL",
    "DivFLDesign",
    "FedcohortError",
    "FirstResponders",
    "FirstRespondersDesign",
    "Multinomial",
    "MultinomialDesign",
    "NormOptimal",
    "NormOptimalDesign",
    "Oort",
    "OortDesign",
    "Plan",
    "Poisson",
    "PoissonDesign",
    "Population",
    "PowerOfChoice",
    "PowerOfChoiceDesign",
    "Recipe",
    "RoundRobin",
    "RoundRobinDesign",
    "RowDesign",
    "Selector",
    "SimilarityClustered",
    "SimilarityClusteredDesign",
    "SizeClustered",
    "SizeClusteredDesign",
    "Stratified",
    "StratifiedDesign",
    "Stream",
    "Target",
    "TargetDesign",
    "Tournament",
    "TournamentDesign",
    "Uniform",
    "UniformDesign",
    "aggregate",
    "diagnostics",
    "stream",
]
