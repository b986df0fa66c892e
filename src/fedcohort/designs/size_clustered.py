"""Clustered sampling by sample size: Algorithm 1 of the paper."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import Rng, checked_flag, checked_rng
from fedcohort.designs.base import RowDesign
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.plan import Entries, Plan, descending, overlaps, whole_rows
from fedcohort.population import Population


@final
class SizeClusteredDesign(RowDesign):
    r"""Put the clients on a line, largest first, and cut the line into m distributions.

    Client :math:`i` takes :math:`m n_i` units of a line of :math:`m M`. The line is cut into m
    pieces of M units, and :math:`r'_{k,i}` is the overlap of client :math:`i` with piece
    :math:`k`. A client is drawn at most :math:`\lfloor m p_i \rfloor + 2` times. Building takes
    O(n log n); the plan has at most n + m - 1 entries.

    Clients of equal size are ordered at random. Their order decides who shares a distribution:
    clients numbered by class would otherwise be clustered by class.

    Parameters
    ----------
    whole_rows_first
        Use the scheme of Theorem 3's proof: every client first gets
        :math:`\lfloor m p_i \rfloor` distributions alone, and only the remainders form the line,
        largest first. This often lowers the variance, but not always.

    Examples
    --------
    >>> SizeClusteredDesign(Population([5, 3, 2]), 2, rng=0).plan.units.toarray().tolist()
    [[10, 0, 0], [0, 6, 4]]

    References
    ----------
    Y. Fraboni et al., "Clustered sampling", ICML 2021, Algorithm 1 and appendix C. Some indices of
    the printed pseudo-code are off by one; they are corrected here.
    """

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        *,
        whole_rows_first: bool = False,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        units = self.cohort_size * population.sizes
        if checked_flag(self.name, "whole_rows_first", whole_rows_first):
            alone, rest = whole_rows(units, population.total)
            entries = _cut_line(rest, population.total, rng).below(alone)
        else:
            entries = _cut_line(units, population.total, rng)
        self.plan = Plan.of_entries(entries, population)


def _cut_line(units: NDArray[np.int64], total: int, rng: np.random.Generator) -> Entries:
    """Put the clients' units on a line, largest first, and cut it every ``total`` units."""
    order = descending(units, rng)
    cuts = np.full(int(units.sum()) // total, total)
    pieces, rows, shared = overlaps(units[order], cuts)
    return Entries(rows, order[pieces], shared)


@final
@dataclass(frozen=True, repr=False)
class SizeClustered(Recipe):
    """Recipe of :class:`SizeClusteredDesign`."""

    name: ClassVar[str] = "size"

    whole_rows_first: bool = False

    def design(self, population: Population, known: Knowledge) -> SizeClusteredDesign:
        return SizeClusteredDesign(
            population, self.cohort_size, whole_rows_first=self.whole_rows_first, rng=known.rng
        )
