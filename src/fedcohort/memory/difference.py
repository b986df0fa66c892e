"""The estimators by name, and the settings of the difference estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from numpy.typing import ArrayLike

from fedcohort._arguments import MOST, brief
from fedcohort._display import record_repr
from fedcohort._fields import choice, number, whole
from fedcohort._updates import Array, Layout
from fedcohort.errors import AggregationError, FedcohortError
from fedcohort.memory.base import Estimator, EstimatorSettings
from fedcohort.memory.regression import Regression
from fedcohort.memory.rows import Keep, rows_of

#: How updates are aggregated, by name.
EstimatorName = Literal["plain", "difference", "regression"]
KEEPS: tuple[Keep, ...] = get_args(Keep)
#: The names of the estimators.
ESTIMATORS: tuple[EstimatorName, ...] = get_args(EstimatorName)


@dataclass(frozen=True, slots=True)
class Difference(EstimatorSettings):
    r"""Settings of the difference estimator.

    .. math:: v = \sum_i w_i (\Delta_i - h_i) + \sum_j p_j h_j

    h is ``shrink`` times what is kept of a client's last update, and 0 before the first. The
    estimator is unbiased for every design with :math:`E[w] = p` and every h that is fixed before
    the draw. Its variance is the design's variance on :math:`\Delta - h`.

    Attributes
    ----------
    shrink
        The factor from what is remembered to h. With 0 this is the plain aggregate.
    keep
        How an update of d numbers is kept: ``"float32"`` (4 d bytes a client), ``"float16"``,
        ``"int8"`` (d bytes: one scale per update), or ``"rank"``, r numbers a client and r d in
        all.
    rank
        r, for ``keep="rank"``.
    max_remembered
        The most clients that are remembered. After each round, the clients beyond it whose
        updates are oldest are forgotten.

    Examples
    --------
    >>> Difference(keep="int8", max_remembered=10_000)
    Difference(keep='int8', max_remembered=10000)

    References
    ----------
    D. Jhunjhunwala et al., "FedVARP: tackling the variance due to partial client participation",
    2022: this estimator, for uniform sampling and equal importance. A. Rodio, G. Neglia,
    "FedStale: leveraging stale client updates in federated learning", 2024: ``shrink`` is its
    beta, with unequal importance.
    """

    shrink: float = number(1.0, least=0, most=1)
    keep: Keep = choice("float32", KEEPS)
    rank: int = whole(32, least=1, most=MOST, way_out="Try 32.")
    max_remembered: int | None = whole(None, least=1, most=MOST, way_out="None remembers all.")

    __repr__ = record_repr

    def _check(self) -> None:
        if self.rank != 32 and self.keep != "rank":
            raise AggregationError(
                f"Difference: rank needs keep='rank'; got {self!r}. Leave one out."
            )

    def _memory(
        self, importance: ArrayLike, zeros: Array, *, layout: Layout, n_given: int, seed: int
    ) -> Estimator:
        return self.memory(importance, zeros)

    def memory(self, importance: ArrayLike, zeros: Array) -> Estimator:
        """Make an empty memory for the estimator.

        ``importance`` is the population's, shape (n_clients,). ``zeros`` is a flat model of zeros:
        a numpy array or a torch tensor, with the type and device of the updates.
        """
        made = rows_of(self.keep, self.rank, importance, zeros)
        made.shrink, made.max_remembered = self.shrink, self.max_remembered
        return made


#: The record of each estimator's settings, by name.
RECORDS: dict[str, type[EstimatorSettings]] = {
    "difference": Difference,
    "regression": Regression,
}


def estimator_fields(settings: EstimatorSettings) -> dict[str, Any]:
    """Return the name and the fields of an estimator, for JSON."""
    return {"name": type(settings).__name__.lower(), **asdict(settings)}


def estimator_from_fields(fields: Mapping[str, Any]) -> EstimatorSettings:
    """Return the estimator of :func:`estimator_fields`; without a name the difference estimator."""
    rest = dict(fields)
    return RECORDS[rest.pop("name", "difference")](**rest)


def estimator_of(
    owner: str,
    estimator: EstimatorName | EstimatorSettings,
    *,
    error: type[FedcohortError] = AggregationError,
) -> EstimatorSettings | None:
    """Return the settings of a named estimator; None for the plain one."""
    if isinstance(estimator, EstimatorSettings):
        return estimator
    if not isinstance(estimator, str) or estimator not in ESTIMATORS:
        raise error(
            f"{owner}: estimator must be one of {', '.join(ESTIMATORS)}, a Difference or a "
            f"Regression; got {brief(estimator)}."
        )
    return RECORDS[estimator]() if estimator in RECORDS else None
