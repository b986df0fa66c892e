"""A design of one's own: Algorithm 1 with equals in the order of their numbers.

Experiment files name it ``numbered_size.py:NumberedSize``. It is what a stable sort gives, and
depends on how clients happen to be numbered; ``SizeClustered`` orders equals at random instead.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.sparse import csr_array

from fedcohort import Plan, Population, Recipe
from fedcohort.designs import Knowledge, RowDesign


@final
class NumberedSizeDesign(RowDesign):
    """Line the clients up, largest first, equals by number, and cut the line into rows."""

    def __init__(self, population: Population, cohort_size: int) -> None:
        super().__init__(population, cohort_size)
        order, total = np.argsort(-population.sizes, kind="stable"), population.total
        ends = np.cumsum(cohort_size * population.sizes[order])
        starts, rows = ends - cohort_size * population.sizes[order], np.arange(cohort_size)[:, None]
        shared = np.minimum(ends, (rows + 1) * total) - np.maximum(starts, rows * total)
        units = np.zeros((cohort_size, population.n_clients), dtype=np.int64)
        units[:, order] = np.maximum(shared, 0)
        self.plan = Plan(csr_array(units), population)


@final
@dataclass(frozen=True)
class NumberedSize(Recipe):
    """Recipe of :class:`NumberedSizeDesign`."""

    name: ClassVar[str] = "numbered-size"

    def design(self, population: Population, known: Knowledge) -> NumberedSizeDesign:
        """Make the design."""
        return NumberedSizeDesign(population, self.cohort_size)
