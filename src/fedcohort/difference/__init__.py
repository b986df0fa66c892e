"""The difference estimator: what is remembered of clients takes the variance out of a cohort."""

from fedcohort.difference.cluster_means import ClusterMeans
from fedcohort.difference.control_variates import ControlVariates
from fedcohort.difference.last_updates import LastUpdates
from fedcohort.difference.settings import ESTIMATORS, Difference, EstimatorName, estimator_of

__all__ = [
    "ESTIMATORS",
    "ClusterMeans",
    "ControlVariates",
    "Difference",
    "EstimatorName",
    "LastUpdates",
    "estimator_of",
]
