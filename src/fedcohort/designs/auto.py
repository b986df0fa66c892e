"""Auto: the design with the smallest exact variance on the known updates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from logging import getLogger
from typing import ClassVar, Unpack, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import Rng, checked_rng
from fedcohort._updates import largest_entries
from fedcohort.designs.base import Design, RowDesign
from fedcohort.designs.multinomial import MultinomialDesign
from fedcohort.designs.recipe import Knowledge
from fedcohort.designs.similarity_clustered import SimilarityClusteredDesign, TreeRecipe
from fedcohort.designs.size_clustered import SizeClusteredDesign
from fedcohort.designs.tournament import TournamentDesign
from fedcohort.population import Population
from fedcohort.similarity.measures import checked_updates, inner_products
from fedcohort.similarity.trees import AUTO_EXACT, GroupTree, Products, TreeOptions, client_tree

log = getLogger("fedcohort")

#: Variances from inner products are right to 1e-10 if centring leaves at least this share of the
#: largest squared norm.
LEAST_LEFT = 1e-6


@final
class AutoDesign(Design):
    """Draw from the design with the smallest variance on the clients' last updates.

    The candidates are the tournament, Algorithm 2, Algorithm 1 and multinomial sampling; the first
    wins ties. V is exact for each of them. On the known updates the choice is therefore never
    worse than any of the four.

    Parameters
    ----------
    updates
        The clients' last updates, zero before the first; shape (n_clients, dimension).
    tree, measure, linkage, products
        As in :class:`SimilarityClusteredDesign`; both tree designs share one tree.

    Attributes
    ----------
    predicted
        V of every candidate on these updates, by the name of its recipe.
    choice
        The name of the chosen candidate.
    design
        The chosen candidate.

    Examples
    --------
    >>> population = Population([1, 1, 1, 1])
    >>> design = AutoDesign(population, 2, [[1, 0], [0, 1], [2, 0], [0, 3]], rng=0)
    >>> design.choice, {name: round(v, 3) for name, v in design.predicted.items()}
    ('tournament', {'tournament': 0.312, 'similarity': 0.312, 'size': 0.938, 'multinomial': 1.094})
    """

    reads = "clients' updates"
    unbiased = True

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        updates: ArrayLike,
        *,
        rng: Rng = None,
        **options: Unpack[TreeOptions],
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        deltas = checked_updates(self.name, updates, population.n_clients)
        is_small = population.n_clients <= AUTO_EXACT
        if is_small and options.get("products") is None and _can_be_squared(deltas):
            # The tree and the predictions both need them.
            options["products"] = cache(lambda: inner_products(deltas))
        units, total = self.cohort_size * population.sizes % population.total, population.total
        leaves, found = client_tree(self.name, deltas, units, total, rng=rng, **options)
        groups = np.zeros(population.n_clients, dtype=np.int64)
        groups[leaves] = found.groups
        shared = GroupTree(groups, found.merges)
        candidates: dict[str, Design] = {
            "tournament": TournamentDesign(population, cohort_size, tree=shared, rng=rng),
            "similarity": SimilarityClusteredDesign(population, cohort_size, tree=shared, rng=rng),
            "size": SizeClusteredDesign(population, cohort_size, rng=rng),
            "multinomial": MultinomialDesign(population, cohort_size),
        }
        products = options.get("products") if is_small else None
        self.predicted = _predicted(candidates, deltas, products)
        self.choice = min(self.predicted, key=self.predicted.__getitem__)
        self.design = candidates[self.choice]
        log.info("%s: draws from %s; V predicted: %s", self.name, self.choice, self.predicted)

    def weight_variance(self) -> NDArray[np.float64]:
        return self.design.weight_variance()

    def covariance(self) -> NDArray[np.float64]:
        return self.design.covariance()

    def inclusion_probability(self) -> NDArray[np.float64]:
        return self.design.inclusion_probability()

    def max_count(self) -> NDArray[np.int64]:
        return self.design.max_count()

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.integer] | csr_array:
        return self.design.sample(rng, rounds)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        return self.design.aggregate_variance(updates)


def _predicted(
    candidates: dict[str, Design], updates: NDArray[np.floating], products: Products | None
) -> dict[str, float]:
    """Return V of unbiased candidates without residual, from inner products if precise enough."""
    shifted = None if products is None else _about_mean(candidates["multinomial"], products())
    if shifted is None:
        return {name: design.aggregate_variance(updates) for name, design in candidates.items()}
    return {name: max(_spread(design, shifted), 0.0) for name, design in candidates.items()}


def _spread(design: Design, products: NDArray[np.float64]) -> float:
    """Return V from inner products: row by row for a plan, else from the covariance."""
    if isinstance(design, MultinomialDesign):
        importance = design.population.importance
        alone = importance @ products.diagonal()
        return float(alone - importance @ products @ importance) / design.cohort_size
    if isinstance(design, RowDesign):
        shares = design.plan.probabilities
        shares = shares[np.diff(shares.indptr) > 1]  # a row with one client has no variance
        together = shares.multiply(shares @ products).sum()
        return float((shares @ products.diagonal()).sum() - together) / design.cohort_size**2
    return float(np.vdot(design.weight_covariance(), products))


def _about_mean(design: Design, products: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the inner products of the centred updates; None if too many digits are lost."""
    importance = design.population.importance
    with_mean = products @ importance
    shifted = products - with_mean[:, None] - with_mean + importance @ with_mean
    # If the updates are nearly equal, only rounding errors are left.
    is_right = shifted.diagonal().max() > LEAST_LEFT * products.diagonal().max()
    return shifted if is_right else None


def _can_be_squared(updates: NDArray[np.floating]) -> bool:
    """Return whether squares of the updates' entries neither overflow nor underflow."""
    largest = largest_entries(updates)
    return bool(((largest == 0) | ((largest > 1e-100) & (largest < 1e100))).all())


@final
@dataclass(frozen=True, repr=False)
class Auto(TreeRecipe):
    """Recipe of :class:`AutoDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "auto"

    def design(self, population: Population, known: Knowledge) -> AutoDesign:
        return AutoDesign(**self.arguments(population, known))
