"""K-Vib sampling: independent coins, with chances learned from the norms of the drawn clients."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import checked_number, checked_numbers
from fedcohort._fields import flag, number, whole
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.poisson import CoinDesign, capped_chances
from fedcohort.designs.recipe import Knowledge, ObservedRound, Recipe
from fedcohort.errors import DesignError
from fedcohort.population import Population

#: Chances are multiples of one over this.
CHANCE_UNITS = 2.0**40
#: Longer updates count as this long: their squares would be infinite.
LONGEST = 1e140


@final
class KVibDesign(CoinDesign):
    r"""Toss a coin for every client, with chances by given lengths, mixed with equal chances.

    With :math:`Q_i` proportional to the length :math:`u_i`, capped at 1 and with the sum m, the
    chance is

    .. math:: q_i = (1 - \theta)\, Q_i + \theta\, m / n, \qquad V = \sum_i p_i^2 (1/q_i - 1)
        \|\Delta_i\|^2 .

    Q minimises :math:`\sum_i u_i^2 / Q_i` among all coins. Unbiased, since every chance is at least
    :math:`\theta m / n`, also if the lengths are wrong: so the other estimators are allowed, unlike
    with :class:`NormOptimalDesign`. The residual is random with mean 0, and the cohort may be
    empty. n is the number of clients with samples. Chances are multiples of 2^-40, so that coins
    are exact.

    Parameters
    ----------
    population, cohort_size
        The clients to draw from, and the expected number of clients.
    lengths
        What the chances follow, shape (n_clients,), at least 0.
    mix
        The share of equal chances, :math:`\theta`, above 0 and at most 1.

    Attributes
    ----------
    lengths, mix
        As given.

    Examples
    --------
    >>> design = KVibDesign(Population([1] * 4), 2, lengths=[6.0, 1.0, 1.0, 1.0], mix=0.5)
    >>> design.expected_counts().round(4).tolist()
    [0.75, 0.4167, 0.4167, 0.4167]

    References
    ----------
    D. Zeng et al., "Enhanced federated optimization: adaptive unbiased client sampling with reduced
    variance", TMLR 2025.
    """

    unbiased = True
    reads = "norms of clients' past updates"

    def __init__(
        self, population: Population, cohort_size: int, lengths: ArrayLike, *, mix: float
    ) -> None:
        super().__init__(population, cohort_size)
        there = drawable_clients(self)
        given = checked_numbers(self.name, "lengths", lengths, population.n_clients)
        known = given.astype(np.float64)
        fits = np.isfinite(known) & (known >= 0)
        if not fits.all():
            client = int(np.argmin(fits))
            raise DesignError(
                f"{self.name}: lengths must be finite and at least 0; client {client} has "
                f"{known[client]}. Give a client without one the length of an average client."
            )
        self.lengths, self.mix = known, checked_number(self.name, "mix", mix, above=0, most=1)
        self.lengths.setflags(write=False)
        own = known[there] / (known[there].max() or 1.0)
        equal = np.full(len(there), self.cohort_size / len(there))
        # Tiny lengths have no chance of their own: the mixture gives them one.
        long = np.flatnonzero(own > 1e-290)
        best = equal.copy() if not len(long) else np.zeros(len(there))
        if len(long):
            best[long] = capped_chances(own[long], min(self.cohort_size, len(long)))
        chances = np.minimum(1.0, (1 - self.mix) * best + self.mix * equal)
        self._chance = np.zeros(population.n_clients)
        self._chance[there] = np.maximum(np.rint(chances * CHANCE_UNITS), 1) / CHANCE_UNITS
        self._chance.setflags(write=False)

    def expected_counts(self) -> NDArray[np.float64]:
        return self._chance


@final
@dataclass(frozen=True, repr=False)
class KVib(Recipe):
    r"""Recipe of :class:`KVibDesign`: learn the lengths from the norms of the drawn clients.

    A client that answers adds :math:`p_i^2 \|\Delta_i\|^2 / q_i` to its sum :math:`W_i`; divided by
    the chance at which it was heard, so that clients that come seldom are not underrated. With an
    estimator the norm is that of :math:`\Delta_i - h_i`. The lengths are

    .. math:: u_i = \sqrt{W_i + \gamma}, \qquad \theta = \Big(\frac{n}{R m}\Big)^{1/3}, \qquad
        \gamma = \frac{G^2 n}{\theta m} ,

    with :math:`\theta` at most 1. All chances are equal at first.

    Parameters
    ----------
    rounds
        The number of rounds, R. With fewer than n / m, all chances stay equal.
    bound
        A bound on :math:`p_i^2 \|\Delta_i\|^2`, :math:`G^2`. None: the largest that was heard so
        far. A bound that is too large keeps the chances equal for long.
    root
        False leaves out the root in :math:`u_i`, as the published program does; the root is what
        minimises :math:`\sum_i (W_i + \gamma) / q_i`.

    Notes
    -----
    The published program does not cap the chance of the first client beyond 1, so that it weighs
    too little; here the chances are capped. There the bound is 0.1 for all models.
    """

    name: ClassVar[str] = "k-vib"
    keeps: ClassVar[tuple[str, ...]] = ("sums", "largest")

    rounds: int = whole(1000, least=1, way_out="Pass the number of rounds.")
    bound: float | None = number(None, above=0)
    root: bool = flag(True)

    def design(self, population: Population, known: Knowledge) -> KVibDesign:
        n = int(np.count_nonzero(population.sizes))
        mix = min(1.0, (n / (self.rounds * self.cohort_size)) ** (1 / 3))
        largest = float(np.nanmax(known.kept("largest"), initial=0.0))
        bound = largest if self.bound is None else self.bound
        gamma = bound * n / (mix * self.cohort_size)
        squares = np.nan_to_num(known.kept("sums")) + gamma
        lengths = np.sqrt(squares) if self.root else squares
        return KVibDesign(population, self.cohort_size, lengths, mix=mix)

    def observe(self, kept: dict[str, NDArray[np.float64]], observed: ObservedRound) -> None:
        clients, chances = observed.cohort.clients, observed.design.expected_counts()
        lengths = observed.population.importance[clients] * observed.norms
        squares = np.minimum(lengths, LONGEST) ** 2
        before = np.nan_to_num(kept["sums"][clients])
        kept["sums"][clients] = before + squares / chances[clients]
        kept["largest"][clients] = np.fmax(kept["largest"][clients], squares)
