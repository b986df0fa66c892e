"""The server's memory of client updates, and the difference estimator that uses it."""

from fedcohort.memory.base import Memory
from fedcohort.memory.difference import (
    ESTIMATORS,
    ClusterMeans,
    Difference,
    EstimatorName,
    estimator_of,
)
from fedcohort.memory.update_memory import CountSketch, UpdateMemory

__all__ = [
    "ESTIMATORS",
    "ClusterMeans",
    "CountSketch",
    "Difference",
    "EstimatorName",
    "Memory",
    "UpdateMemory",
    "estimator_of",
]
