"""The server's memory of client updates, and the estimators that use it."""

from fedcohort._arguments import suggest_names as _suggest_names
from fedcohort.memory.base import Estimator, EstimatorSettings, Memory
from fedcohort.memory.difference import (
    ESTIMATORS,
    MIFA,
    Difference,
    EstimatorName,
    FedStale,
    FedVARP,
    Weights,
    estimator_of,
)
from fedcohort.memory.regression import Regression
from fedcohort.memory.rows import Keep
from fedcohort.memory.update_memory import CountSketch, UpdateMemory

__all__ = [
    "ESTIMATORS",
    "MIFA",
    "CountSketch",
    "Difference",
    "Estimator",
    "EstimatorName",
    "EstimatorSettings",
    "FedStale",
    "FedVARP",
    "Keep",
    "Memory",
    "Regression",
    "UpdateMemory",
    "Weights",
    "estimator_of",
]

_suggest_names(__name__, __all__)
