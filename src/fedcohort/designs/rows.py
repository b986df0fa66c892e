"""Row designs: m independent draws, one from each distribution of a plan."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort.designs.base import Design, count_matrix
from fedcohort.designs.spread import spread
from fedcohort.plan import Plan


class RowDesign(Design):
    r"""Draw one client from each of the m distributions of a ``plan``; each draw weighs 1/m.

    With :math:`r_{k,i}` the chance of client :math:`i` in row :math:`k` (Fraboni et al. 2021,
    Section 3.2 and appendix A):

    .. math::

        \operatorname{Var}[w_i] &= \tfrac1{m^2} \sum_k r_{k,i} (1 - r_{k,i}) \le p_i (1-p_i) / m \\
        P(i \in S) &= 1 - \prod_k (1 - r_{k,i}) \ge 1 - (1 - p_i)^m \\
        B &= \tfrac1{m^2} \sum_k \sum_i r_{k,i} \|\Delta_i - \bar\Delta_k\|^2 \le B_{MD},
            \quad \bar\Delta_k = \sum_i r_{k,i} \Delta_i .

    A plan satisfies Proposition 1, so that every row design is unbiased, and in these three never
    worse than multinomial sampling. A final class sets ``plan`` in its ``__init__``.
    """

    unbiased = True

    #: The m distributions.
    plan: Plan

    def weight_variance(self) -> NDArray[np.float64]:
        """Return Var[w], shape (n_clients,)."""
        units, total = self.plan.units.data, self.plan.total
        return self._by_client((units / total) * ((total - units) / total)) / self.cohort_size**2

    def weight_covariance(self) -> NDArray[np.float64]:
        """Return Cov[w], shape (n_clients, n_clients): minus what two clients share of the rows."""
        shares = self.plan.probabilities
        covariance: NDArray[np.float64] = -(shares.T @ shares).toarray() / self.cohort_size**2
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def inclusion_probability(self) -> NDArray[np.float64]:
        """Return the chance of each client to be in the cohort, shape (n_clients,)."""
        with np.errstate(divide="ignore"):  # log 0: a client that fills a row is certain
            misses = np.log1p(-self.plan.units.data / self.plan.total)
        return 0.0 - np.expm1(self._by_client(misses))

    def max_count(self) -> NDArray[np.int64]:
        """Return how often each client can be drawn at most: the rows that it lies in."""
        return np.bincount(self.plan.units.indices, minlength=self.population.n_clients)

    def _draw_counts(self, rng: np.random.Generator, rounds: int) -> csr_array:
        return count_matrix(self.plan.draw_clients(rng, rounds), self.population.n_clients)

    def _aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        units, total = self.plan.units, self.plan.total
        rows = zip(units.indptr[:-1], units.indptr[1:], strict=True)
        spreads = (
            spread(units.data[start:end] / total, updates[units.indices[start:end]])
            for start, end in rows
        )
        return math.fsum(spreads) / self.cohort_size**2

    def _by_client(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum one value per entry of the plan over the rows, shape (n_clients,)."""
        n = self.population.n_clients
        return np.asarray(np.bincount(self.plan.units.indices, values, n), dtype=np.float64)
