"""Systematic sampling: a comb of equal steps over a line of chances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort.designs.coins import capped_coins
from fedcohort.designs.spread import spread


class SystematicDraw:
    r"""Draw ``draws`` distinct clients, client *i* with chance :math:`q_i = \min(1, \lambda u_i)`.

    The clients lie on a line in the order given, each as long as its chance, together
    as long as there are draws; a comb whose teeth are 1 apart falls on it at a random place and
    picks one client with every tooth. In integers: the chances are exact. A comb has at most as
    many different outcomes as there are clients, so that all moments are exact as well.

    Parameters
    ----------
    clients
        In the order of the line; random, if pairs are to be treated alike.
    masses
        The integers u, one for each client; at least ``draws`` of them positive, and
        draws * sum(masses) below 2^63.
    draws
        How many clients are drawn, 0 or more.

    Attributes
    ----------
    lengths
        What each client covers of the line, in integers: its chance times the step.
    step
        How far the comb's teeth are apart: it falls on one of so many places.

    Examples
    --------
    >>> comb = SystematicDraw(np.array([4, 7, 9]), np.array([1, 1, 2]), draws=2)
    >>> comb.chances.tolist()
    [0.5, 0.5, 1.0]
    >>> comb.outcomes.toarray().tolist(), comb.probabilities.tolist()
    ([[1, 0, 1], [0, 1, 1]], [0.5, 0.5])
    """

    def __init__(self, clients: NDArray[np.int64], masses: NDArray[np.int64], draws: int) -> None:
        self.clients, self.draws = clients, draws
        if draws == 0:
            self.lengths, self.step = np.zeros(len(clients), dtype=np.int64), 1
        else:
            self.lengths, self.step = capped_coins(masses, draws)
        self._ends = np.cumsum(self.lengths)
        # Between two of these places the comb picks the same clients.
        self._places = np.unique(np.concatenate([[0], self._ends % self.step]))

    @property
    def chances(self) -> NDArray[np.float64]:
        """The chance of each client, in the order of the line."""
        return self.lengths / self.step

    @property
    def variances(self) -> NDArray[np.float64]:
        """The variance of each client's count, q (1 - q), in the order of the line."""
        return self.chances * ((self.step - self.lengths) / self.step)

    @property
    def outcomes(self) -> csr_array:
        """The counts of every outcome, shape (outcomes, clients); draws of them are 1."""
        picked = self._picks(self._places)
        starts = self.draws * np.arange(len(picked) + 1)
        ones = np.ones(picked.size, dtype=np.int64)
        shape = (len(picked), len(self.clients))
        return csr_array((ones, picked.ravel(), starts), shape=shape)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """The probability of every outcome, shape (outcomes,)."""
        return np.diff(self._places, append=self.step) / self.step

    def drawn_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients that the comb picks at places below ``step``; (places, draws)."""
        return self.clients[self._picks(places)]

    def covariance(self) -> NDArray[np.float64]:
        """Return the covariance of the counts, shape (clients, clients), in the line's order."""
        off = self.outcomes.toarray() - self.chances
        together: NDArray[np.float64] = (off * self.probabilities[:, None]).T @ off
        np.fill_diagonal(together, self.variances)
        return together

    def total_spread(self, updates: NDArray[np.floating]) -> float:
        """Return the variance of the drawn clients' summed updates, one row a client of all."""
        own = updates[self.clients].astype(np.float64)
        return spread(self.probabilities, self.outcomes @ own)

    def _picks(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what the comb picks at these places, as positions on the line."""
        teeth = places[:, None] + self.step * np.arange(self.draws)
        return np.searchsorted(self._ends, teeth, side="right")
