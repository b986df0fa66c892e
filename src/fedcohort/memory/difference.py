"""The estimators by name, and the settings of the difference estimator and of its relatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import MOST, brief
from fedcohort._display import record_repr
from fedcohort._fields import choice, number, whole
from fedcohort._updates import Array, Layout
from fedcohort.cohort import Cohort
from fedcohort.errors import AggregationError, FedcohortError
from fedcohort.memory.base import Estimator, EstimatorSettings
from fedcohort.memory.regression import Regression
from fedcohort.memory.rows import Keep, rows_of

#: How updates are aggregated, by name.
EstimatorName = Literal["plain", "difference", "mifa", "fedvarp", "fedstale", "regression"]
#: The weights of what the drawn clients add: the design's, their importance, or equal shares.
Weights = Literal["design", "importance", "equal"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
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
    weights
        What w is. ``"design"``: the design's weights; only these are unbiased. ``"importance"``:
        p of every drawn client, as in :class:`MIFA`. ``"equal"``: equal shares of the draws, as in
        published code of :class:`FedVARP`.

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
    weights: Weights = choice("design", WEIGHTS)

    __repr__ = record_repr

    def _check(self) -> None:
        if self.rank != 32 and self.keep != "rank":
            raise AggregationError(
                f"{type(self).__name__}: rank needs keep='rank'; got {self!r}. Leave one out."
            )

    @property
    def over_members(self) -> bool:
        """Whether every member counts in every round: if drawn clients weigh their importance."""
        return self.weights == "importance"

    @property
    def own_weights(self) -> bool:
        """Whether the weights are not those of the design."""
        return self.weights != "design"

    def weighed(self, cohort: Cohort, importance: NDArray[np.float64]) -> Cohort:
        """Return a drawn cohort with these weights; ``importance`` is that of the members."""
        if not self.own_weights or not len(cohort):
            return cohort
        clients, counts = cohort.clients, cohort.counts
        shares = importance[clients] if self.over_members else counts / counts.sum()
        return Cohort.of_checked(clients, counts, shares)

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


@dataclass(frozen=True, slots=True, repr=False)
class MIFA(Difference):
    r"""Settings of MIFA: every client that was seen counts in every round, by its last update.

    .. math:: v = \sum_{i \in S} p_i (\Delta_i - h_i) + \sum_j p_j h_j = \sum_j p_j h_j'

    with h' the memory after the round: the drawn clients' new updates, the last ones of all others.
    It is the difference estimator with weights :math:`p_i` in place of the design's. The sums run
    over all members, also those that are away, and a round in which no client answers moves by
    :math:`\sum_j p_j h_j`. As published, everyone that is there trains: take ``Uniform`` with as
    many draws as there are clients.

    It needs no chances of presence: that is its point. It is biased in every round: with q the
    chance to take part, :math:`E[v] = \sum_j p_j (q_j \Delta_j + (1 - q_j) h_j)`. With independent
    presence, a client's update in it is on average :math:`(1 - q_j) / q_j` rounds old.

    The published program divides remembered updates by the clients' learning rate, and multiplies
    by the present one: with a constant rate that is the same. It starts with a round of all
    clients; here, as in its variant that does not wait, h is 0 at first.

    Examples
    --------
    >>> MIFA(keep="int8")
    MIFA(keep='int8')

    References
    ----------
    X. Gu, K. Huang, J. Zhang, L. Huang, "Fast federated learning in the presence of arbitrary
    device unavailability", NeurIPS 2021.
    """

    weights: Weights = choice("importance", WEIGHTS)


@dataclass(frozen=True, slots=True, repr=False)
class FedVARP(Difference):
    r"""Settings of FedVARP: the difference estimator, under the name of its publication.

    With :class:`~fedcohort.Uniform` (``unbiased=True``) and equal sizes, the weights are 1/m, and

    .. math:: v = \frac1m \sum_{i \in S} (\Delta_i - h_i) + \frac1n \sum_j h_j

    is the publication's. With any other unbiased design and importance, it is unbiased too.
    ``weights="equal"`` weighs the drawn clients equally whatever the design, as published programs
    do with the clients that happen to be there. That is biased if chances or importances differ.

    Examples
    --------
    >>> FedVARP(weights="equal")
    FedVARP(weights='equal')

    References
    ----------
    D. Jhunjhunwala, P. Sharma, A. Nagarkatti, G. Joshi, "FedVARP: tackling the variance due to
    partial client participation in federated learning", UAI 2022.
    """


@dataclass(frozen=True, slots=True, repr=False)
class FedStale(Difference):
    r"""Settings of FedStale: the difference estimator with :math:`h = \beta` times the last update.

    .. math:: v = \sum_i w_i (\Delta_i - \beta h_i) + \beta \sum_j p_j h_j

    ``shrink`` is beta. With 0 it is plain aggregation, with 1 FedVARP. The published programs use
    0.5; the advice is a smaller one where clients take part unequally and their data are alike.
    The published weights are :math:`p_i / q_i` with the chance of presence q; here they are the
    design's.

    Examples
    --------
    >>> FedStale(), FedStale(shrink=0.2)
    (FedStale(), FedStale(shrink=0.2))

    References
    ----------
    A. Rodio, G. Neglia, "FedStale: leveraging stale client updates in federated learning", 2024.
    """

    shrink: float = number(0.5, least=0, most=1)


#: The record of each estimator's settings, by name.
RECORDS: dict[str, type[EstimatorSettings]] = {
    "difference": Difference,
    "mifa": MIFA,
    "fedvarp": FedVARP,
    "fedstale": FedStale,
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
            f"{owner}: estimator must be one of {', '.join(ESTIMATORS)}, or settings such as "
            f"Difference(); got {brief(estimator)}."
        )
    return RECORDS[estimator]() if estimator in RECORDS else None
