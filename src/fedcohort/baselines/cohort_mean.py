"""Cohort mean: uniform draws, weighted by their shares of the cohort's samples."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import ClassVar, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import Rng, checked_rng
from fedcohort.baselines.chosen import ChosenDesign, RoundsDesign
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population
from fedcohort.streams import draw_subsets

#: The cohorts that moments are estimated from: at most this many, with this many members.
ESTIMATE_COHORTS, ESTIMATE_MEMBERS, FEWEST_COHORTS = 4000, 10**7, 20
#: The sizes at which they are estimated; between them they are interpolated.
MOST_NODES = 1000


@final
class CohortMeanDesign(ChosenDesign):
    r"""Draw ``cohort_size`` distinct clients, all subsets equally likely; average their models.

    A drawn client weighs its share of the samples in the cohort *S*,

    .. math:: w_i = \frac{n_i}{\sum_{j \in S} n_j} ,

    and the weights always sum to 1. FedAvg does this in Flower and in most frameworks, where the
    server does not know the sizes of clients that it did not ask.

    Biased, unless all sizes are equal: a large client raises the sum that its size is divided by.
    On average it weighs less than its importance (with one draw all weigh :math:`1/n`). The bias
    shrinks as m grows and is 0 for m = n. A built design is a single cohort; ``over_rounds`` is
    the law of all.

    Needs the sizes of drawn clients only. Building takes O(n).

    Parameters
    ----------
    rng
        Draws the cohort.

    Examples
    --------
    >>> design = CohortMeanDesign(Population([5, 3, 2]), 2, rng=0)
    >>> design.chosen.tolist(), design.weight_per_draw().tolist()
    ([1, 2], [0.0, 0.6, 0.4])

    References
    ----------
    B. McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017.
    """

    def __init__(self, population: Population, cohort_size: int, *, rng: Rng = None) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        clients = rng.choice(drawable_clients(self), self.cohort_size, replace=False)
        sizes = population.sizes[clients]
        self._choose(clients, sizes / sizes.sum())

    def over_rounds(self) -> "CohortMeanRounds":
        """Return the law of a random round: any cohort, all equally likely."""
        return CohortMeanRounds(self.population, self.cohort_size)


class _Estimated(NamedTuple):
    """Estimates of E[w] and Var[w], shape (n_clients,), and the errors of both sums."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    errors: tuple[float, float]


class _Sample:
    """Drawn cohorts; each gives the weight that any client would have among m - 1 others.

    For a member, the others are the rest of its cohort. Any other client replaces a member that is
    dropped at random, since the order of the members is not random.
    """

    def __init__(
        self, cohorts: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator
    ) -> None:
        self._cohorts, self._sizes = cohorts, sizes
        self._some = np.flatnonzero(sizes)
        members = sizes[cohorts].astype(np.float64)
        sums = members.sum(axis=1, keepdims=True)
        dropped = rng.integers(cohorts.shape[1], size=(len(cohorts), 1))
        others = sums - np.take_along_axis(members, dropped, axis=1)
        self._nodes = _nodes(sizes[self._some])
        self._shares = self._nodes / (self._nodes + others)
        self._own, self._added = members / sums, members / (members + others)

    def means(self, power: int) -> NDArray[np.float64]:
        """Return each client's mean weight to this power, if drawn, shape (n_clients,)."""
        at_nodes, found = (self._shares**power).mean(axis=0), np.zeros(len(self._sizes))
        places = np.log(self._sizes[self._some])
        found[self._some] = np.interp(places, np.log(self._nodes), at_nodes)
        corrections = self._corrections(power).ravel()
        by_client = np.bincount(self._cohorts.ravel(), corrections, len(found))
        return found + by_client / len(self._cohorts)

    def sums(self, coefficients: NDArray[np.float64], power: int) -> NDArray[np.float64]:
        """Return the terms that ``coefficients @ means(power)`` averages, one per cohort.

        Every client counts as the nearest node: precise enough for a standard error.
        """
        place = np.searchsorted(self._nodes, self._sizes[self._some])
        place = np.minimum(place, len(self._nodes) - 1)
        at_nodes = np.bincount(place, coefficients[self._some], len(self._nodes))
        of_members = (coefficients[self._cohorts] * self._corrections(power)).sum(axis=1)
        return np.asarray(self._shares**power @ at_nodes + of_members)

    def _corrections(self, power: int) -> NDArray[np.float64]:
        """Return the members' own weights minus those of clients of their size."""
        return np.asarray(self._own**power - self._added**power)


@final
class CohortMeanRounds(RoundsDesign):
    r"""Any cohort of :class:`CohortMeanDesign`, all equally likely.

    If the cohorts are too many to list, the moments are estimated from at most 4,000 of them, drawn
    with a fixed seed. With T the samples of the other m - 1 members,

    .. math:: E[w_i^k] = \frac{m}{n} E\Big[\Big(\frac{n_i}{n_i + T}\Big)^k\Big] ,

    so that every drawn cohort is a sample for every client: drop one member, and add client i.
    """

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        sizes = population.sizes[self._drawable]
        self.unbiased = bool((sizes == sizes[0]).all()) or len(sizes) == self.cohort_size
        self.exact_weights = self.exact_moments or self.unbiased
        most = max(FEWEST_COHORTS, ESTIMATE_MEMBERS // self.cohort_size)
        self.estimate_cohorts = 0 if self.exact_weights else min(ESTIMATE_COHORTS, most)

    def n_cohorts(self) -> int:
        """Return the number of cohorts; a lower bound if it has more than 64 bits."""
        n, m = len(self._drawable), self.cohort_size
        return math.comb(n, min(m, n - m, 64))

    def largest_weight(self) -> float:
        """Return the share of the largest client in a cohort with the smallest others."""
        sizes = np.sort(self.population.sizes[self._drawable])
        return float(sizes[-1] / (sizes[-1] + sizes[: self.cohort_size - 1].sum()))

    def weight_variance(self) -> NDArray[np.float64]:
        if self.exact_moments:
            return super().weight_variance()
        if self.unbiased:  # equal sizes, and weights of 0 or 1/m
            n, m = len(self._drawable), self.cohort_size
            return np.where(self.population.sizes > 0, (n - m) / (m * n * n), 0.0)
        return self._estimated.variance

    def standard_errors(self) -> tuple[float, float]:
        """Return the errors of ``sum(|bias|)`` and ``sum(weight_variance)``."""
        return (0.0, 0.0) if self.exact_weights else self._estimated.errors

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        positions = draw_subsets(rng, len(self._drawable), self.cohort_size, rounds)
        return self._drawable[positions]

    def _every_cohort(self) -> NDArray[np.int64]:
        subsets = combinations(self._drawable.tolist(), self.cohort_size)
        listed = np.fromiter(chain.from_iterable(subsets), dtype=np.int64)
        return listed.reshape(-1, self.cohort_size)

    def _weights_of(self, cohorts: NDArray[np.int64]) -> NDArray[np.float64]:
        sizes = self.population.sizes[cohorts]
        return np.asarray(sizes / sizes.sum(axis=1, keepdims=True))

    @cached_property
    def _mean_weights(self) -> NDArray[np.float64]:
        if self.unbiased:
            return self.population.importance
        return self._by_client(self._listed.data) if self.exact_moments else self._estimated.mean

    @cached_property
    def _estimated(self) -> _Estimated:
        rng, chance = np.random.default_rng(0), self.cohort_size / len(self._drawable)
        sample = _Sample(self.sample(rng, self.estimate_cohorts), self.population.sizes, rng)
        first, second = chance * sample.means(1), chance * sample.means(2)
        mean = first / first.sum()  # the weights of a cohort sum to 1
        # To first order, a change d of ``first`` changes the mean by d - mean * sum(d).
        signs = np.sign(mean - self.population.importance)
        bias = sample.sums(signs - signs @ mean, 1)
        variance = sample.sums(np.ones_like(mean), 2) - 2 * sample.sums(mean - mean @ mean, 1)
        errors = [
            chance * float(each.std(ddof=1)) / math.sqrt(len(each)) for each in (bias, variance)
        ]
        return _Estimated(mean, np.maximum(second - mean**2, 0.0), (errors[0], errors[1]))


def _nodes(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return all different sizes, or if they are many, as many as possible with equal ratios."""
    different = np.unique(sizes).astype(np.float64)
    if len(different) <= MOST_NODES:
        return different
    return np.geomspace(different[0], different[-1], MOST_NODES)


@final
@dataclass(frozen=True, repr=False)
class CohortMean(Recipe):
    """Recipe of :class:`CohortMeanDesign`."""

    name: ClassVar[str] = "cohort-mean"

    def design(self, population: Population, known: Knowledge) -> CohortMeanDesign:
        return CohortMeanDesign(population, self.cohort_size, rng=known.rng)
