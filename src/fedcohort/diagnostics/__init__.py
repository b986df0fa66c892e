"""What a design does to the clients: pure functions of a design, exact but where they say so."""

from fedcohort.diagnostics.aggregate import (
    Estimate,
    aggregate_variance,
    estimated_aggregate_variance,
)
from fedcohort.diagnostics.inclusion import expected_distinct, inclusion_probability, max_count
from fedcohort.diagnostics.scheme import Estimates, estimated_bias
from fedcohort.diagnostics.summary import Summary, summary
from fedcohort.diagnostics.weights import bias, weight_covariance, weight_variance

__all__ = [
    "Estimate",
    "Estimates",
    "Summary",
    "aggregate_variance",
    "bias",
    "estimated_aggregate_variance",
    "estimated_bias",
    "expected_distinct",
    "inclusion_probability",
    "max_count",
    "summary",
    "weight_covariance",
    "weight_variance",
]
