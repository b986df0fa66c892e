"""Cohort mean: uniform draws, weighted by their shares of the cohort's samples."""

from dataclasses import dataclass
from typing import ClassVar, final

from fedcohort._arguments import Rng, checked_rng
from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.population import Population


@final
class CohortMeanDesign(ChosenDesign):
    r"""Draw ``cohort_size`` distinct clients, all subsets equally likely; average their models.

    A drawn client weighs its share of the samples in the cohort *S*,

    .. math:: w_i = \frac{n_i}{\sum_{j \in S} n_j} ,

    and the weights always sum to 1. FedAvg does this in Flower and in most frameworks, where the
    server does not know the sizes of clients that it did not ask.

    Biased, unless all sizes are equal: a large client raises the sum that its size is divided by.
    On average it weighs less than its importance (with one draw all weigh :math:`1/n`). The bias
    shrinks as m grows and is 0 for m = n. A built design is a single cohort;
    :func:`~fedcohort.diagnostics.estimated_bias` measures the bias over many.

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


@final
@dataclass(frozen=True, repr=False)
class CohortMean(Recipe):
    """Recipe of :class:`CohortMeanDesign`."""

    name: ClassVar[str] = "cohort-mean"

    def design(self, population: Population, known: Knowledge) -> CohortMeanDesign:
        """Make the design from what is known."""
        return CohortMeanDesign(population, self.cohort_size, rng=known.rng)
