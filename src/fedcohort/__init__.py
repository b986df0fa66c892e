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
    Design,
    Multinomial,
    MultinomialDesign,
    Poisson,
    PoissonDesign,
    Recipe,
    RowDesign,
    SimilarityClustered,
    SimilarityClusteredDesign,
    SizeClustered,
    SizeClusteredDesign,
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
from fedcohort.streams import Stream, stream
from fedcohort.version import __version__ as __version__

__all__ = [
    "Auto",
    "AutoDesign",
    "Balanced",
    "BalancedDesign",
    "Cohort",
    "Design",
    "Difference",
    "FedcohortError",
    "Multinomial",
    "MultinomialDesign",
    "Plan",
    "Poisson",
    "PoissonDesign",
    "Population",
    "Recipe",
    "RowDesign",
    "SimilarityClustered",
    "SimilarityClusteredDesign",
    "SizeClustered",
    "SizeClusteredDesign",
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
