"""What a design does to the clients: pure functions of a design, exact but where they say so."""

from fedcohort.diagnostics.estimated import (
    Estimate,
    Estimates,
    aggregate_variance,
    estimated_aggregate_variance,
    estimated_bias,
)
from fedcohort.diagnostics.exact import (
    Summary,
    bias,
    expected_distinct,
    inclusion_probability,
    max_count,
    summary,
    weight_covariance,
    weight_variance,
)

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
