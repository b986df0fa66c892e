"""The server's memory of client updates, and the difference estimator that uses it."""

from fedcohort.memory.base import Memory, Variates
from fedcohort.memory.difference import (
    ESTIMATORS,
    ClusterMeans,
    Difference,
    EstimatorName,
    Keep,
    estimator_of,
)
from fedcohort.memory.last_updates import LastUpdates, LowRankUpdates
from fedcohort.memory.update_memory import CountSketch, UpdateMemory

__all__ = [
    "ESTIMATORS",
    "ClusterMeans",
    "CountSketch",
    "Difference",
    "EstimatorName",
    "Keep",
    "LastUpdates",
    "LowRankUpdates",
    "Memory",
    "UpdateMemory",
    "Variates",
    "estimator_of",
]
