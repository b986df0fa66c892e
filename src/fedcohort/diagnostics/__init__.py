"""What a design does to the clients, as exact numbers: pure functions of a design."""

from fedcohort.diagnostics.aggregate import aggregate_variance
from fedcohort.diagnostics.inclusion import expected_distinct, inclusion_probability, max_count
from fedcohort.diagnostics.summary import Summary, summary
from fedcohort.diagnostics.weights import bias, weight_covariance, weight_variance

__all__ = [
    "Summary",
    "aggregate_variance",
    "bias",
    "expected_distinct",
    "inclusion_probability",
    "max_count",
    "summary",
    "weight_covariance",
    "weight_variance",
]
