"""Target sampling: clustered sampling with known groups instead of a similarity tree."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import Rng, checked_rng, group_numbers
from fedcohort.designs.base import RowDesign
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.plan import Entries, Plan, fill_groups, overlaps, whole_rows
from fedcohort.population import Population


@final
class TargetDesign(RowDesign):
    r"""Fill the distributions with known groups, such as the classes that clients hold.

    A client with :math:`m n_i \ge M` first gets :math:`\lfloor m n_i / M \rfloor` distributions
    alone. A group above M units is put in random order and cut into full distributions and a
    remainder. The rest is filled as in Algorithm 2: the largest groups open the remaining
    distributions, and the clients of the other groups fill the room that is left.

    With m groups of equal mass this is the paper's oracle: one client from each group, by
    importance. Servers rarely know such groups; use it as a reference.

    Parameters
    ----------
    groups
        The group of every client: n_clients labels of any kind.

    Examples
    --------
    >>> design = TargetDesign(Population([1, 1, 1, 1]), 2, ["a", "b", "a", "b"], rng=0)
    >>> sorted(design.plan.units.toarray().tolist())
    [[0, 2, 0, 2], [2, 0, 2, 0]]

    References
    ----------
    Y. Fraboni et al., "Clustered sampling", ICML 2021, Section 6 ("target").
    """

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        groups: Sequence[Hashable],
        *,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        total = population.total
        numbers = group_numbers(self.name, groups, population.n_clients)
        alone, rest = whole_rows(self.cohort_size * population.sizes, total)
        clients = rng.permutation(np.flatnonzero(rest))
        clients = clients[np.argsort(numbers[clients], kind="stable")]
        full, left = _cut_groups(clients, rest[clients], numbers[clients], total)
        filled = fill_groups(left.clients, left.units, left.rows, capacity=total, rng=rng)
        self.plan = Plan.of_entries(filled.below(full.below(alone)), population)


def _cut_groups(
    clients: NDArray[np.int64],
    units: NDArray[np.int64],
    groups: NDArray[np.int64],
    capacity: int,
) -> tuple[Entries, Entries]:
    """Cut every group into full rows and a remainder. Clients must be sorted by group.

    Return the full rows, and the remainders with their groups as rows.
    """
    masses = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(masses, groups, units)
    n_full = masses // capacity
    # Cut the line of all clients where a row is full and where a group ends.
    cut_group = np.repeat(np.arange(len(masses)), n_full + 1)
    is_rest = np.diff(cut_group, append=len(masses)) > 0
    cuts = np.where(is_rest, (masses - n_full * capacity)[cut_group], capacity)
    pieces, cut, shared = overlaps(units, cuts)
    in_rest = is_rest[cut]
    row_of_cut = np.cumsum(~is_rest) - 1
    full = Entries(row_of_cut[cut[~in_rest]], clients[pieces[~in_rest]], shared[~in_rest])
    rest = Entries(cut_group[cut[in_rest]], clients[pieces[in_rest]], shared[in_rest])
    return full, rest


@final
@dataclass(frozen=True, repr=False)
class Target(Recipe):
    """Recipe of :class:`TargetDesign`; the groups are the population's."""

    name: ClassVar[str] = "target"
    grouped: ClassVar[bool] = True

    def design(self, population: Population, known: Knowledge) -> TargetDesign:
        return TargetDesign(population, self.cohort_size, population.groups or (), rng=known.rng)
