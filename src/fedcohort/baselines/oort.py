"""Oort: prefer clients that were useful and fast when last drawn, and add some new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedcohort._arguments import Rng, checked_kind, checked_rng, checked_whole
from fedcohort._fields import Record, number
from fedcohort.designs.base import DistinctDesign, drawable_clients, spread
from fedcohort.designs.poisson import capped_coins
from fedcohort.designs.recipe import Knowledge, Recipe
from fedcohort.designs.signals import PAST, SignalName, Signals, checked_signal, collected
from fedcohort.population import Population


class SystematicDraw:
    r"""Draw ``draws`` distinct clients, client *i* with chance :math:`q_i = \min(1, \lambda u_i)`.

    Systematic sampling. Each client covers a part of a line as long as its chance, in the order
    given; the line is as long as the number of draws. A comb with teeth 1 apart is placed on it
    at random, and every tooth picks a client. The chances are exact, since all numbers are
    integers. There are at most as many outcomes as clients, and so the moments are exact too.

    Parameters
    ----------
    clients
        The clients in the order of the line. Pass a random order to treat all pairs alike.
    masses
        The integers u, one for each client; at least ``draws`` of them positive, and
        draws * sum(masses) below 2^63.
    draws
        The number of drawn clients, 0 or more.

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
        #: Each client's chance times the step; and the distance of the comb's teeth, which is also
        #: the number of places where the comb can start.
        if draws == 0:
            self.lengths, self.step = np.zeros(len(clients), dtype=np.int64), 1
        else:
            self.lengths, self.step = capped_coins(masses, draws)
        self._ends = np.cumsum(self.lengths)
        # All places between two of these give the same clients.
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
        """The counts of every outcome, shape (outcomes, clients); each row has ``draws`` ones."""
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
        """Return the clients picked at these places below ``step``, shape (places, draws)."""
        return self.clients[self._picks(places)]

    def covariance(self) -> NDArray[np.float64]:
        """Return the covariance of the counts, shape (clients, clients), in the line's order."""
        off = self.outcomes.toarray() - self.chances
        together: NDArray[np.float64] = (off * self.probabilities[:, None]).T @ off
        np.fill_diagonal(together, self.variances)
        return together

    def total_spread(self, updates: NDArray[np.floating]) -> float:
        """Return the variance of the sum of the drawn updates; ``updates`` has all clients."""
        own = updates[self.clients].astype(np.float64)
        return spread(self.probabilities, self.outcomes @ own)

    def _picks(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions on the line that the comb picks at these places."""
        teeth = places[:, None] + self.step * np.arange(self.draws)
        return np.searchsorted(self._ends, teeth, side="right")


#: Utilities become integers for an exact lottery; the largest becomes this one.
UTILITY_UNITS = 2**24
#: With a larger exponent every slower client would have utility 0.
LARGEST_PENALTY = 1e6


@dataclass(frozen=True)
class OortOptions(Record):
    """Hyper-parameters of :class:`OortDesign`.

    The defaults are those of the published program, except ``cutoff`` (0.7 there) and ``pace``
    (which its pacer changes over time).

    Attributes
    ----------
    exploration, exploration_decay, exploration_least
        The share of new clients in the cohort of round 0, the factor by which it shrinks in every
        round, and its minimum.
    clip
        Utilities are clipped at this quantile.
    cutoff
        Take the lowest utility that a choice by rank would include. Clients with at least this
        share of it are in the lottery.
    pace
        The preferred duration is this quantile of the known ones.
    penalty
        The exponent of the penalty on slower clients.
    """

    exploration: float = number(0.9, least=0, most=1)
    exploration_decay: float = number(0.98, least=0, most=1)
    exploration_least: float = number(0.2, least=0, most=1)
    clip: float = number(0.95, least=0, most=1)
    cutoff: float = number(0.95, least=0, most=1)
    pace: float = number(0.5, least=0, most=1)
    penalty: float = number(2.0, least=0, most=LARGEST_PENALTY)


@final
class OortDesign(DistinctDesign):
    r"""Average clients that are likely to be useful, and a share of new clients.

    Consider a client that was last drawn in round :math:`L_i` of *t* (both counted from 1). Its
    samples' losses had the root mean square :math:`\ell_i`, and it took :math:`d_i` seconds. Then

    .. math::

        U_i = n_i \ell_i \text{ (clipped, scaled to 0 ... 1)}, \qquad
        u_i = \Bigl(U_i + \sqrt{0.1 \ln t / L_i}\Bigr) \cdot
              \begin{cases} (T / d_i)^\alpha & d_i > T \\ 1 & \text{else.} \end{cases}

    Of the m clients, :math:`\lfloor (1 - \varepsilon) m \rfloor` are drawn in proportion to
    utility from the clients above a cutoff (``OortOptions.cutoff``). The rest are drawn from
    clients never drawn before, all equally likely. :math:`\varepsilon = \max(\varepsilon_0
    \gamma^{t-1}, \varepsilon_{\min})`. If there are too few of one kind, the other fills up.

    Biased toward useful and fast clients: with :math:`q_i` the chance to be drawn, the bias is
    :math:`q_i / m - p_i`. The chances are proportional to utility, capped at 1, and exact:
    :class:`SystematicDraw` draws the clients in a random order. The published program draws one
    client after the other, for which there is no formula.

    Parts that need state are left out: the blacklist of clients that were drawn often, and the
    pacer of the preferred duration T (here a fixed quantile of the known durations). So are the
    noise on utilities and the mixing with fairness. New clients are not drawn by speed, since
    their speed is unknown.

    Needs the signals ``past_loss``, ``past_duration`` and ``past_round``; no client is asked. A
    client without a past loss is new. A client without a past duration is not slow.

    Parameters
    ----------
    signals
        The three arrays by name, each of shape (n_clients,), NaN for clients never drawn.
    round_
        The round, from 0.
    options
        Hyper-parameters.
    rng
        Breaks ties and orders the lotteries.

    Attributes
    ----------
    exploit, explore
        The lotteries of known and of new clients.

    Examples
    --------
    >>> population = Population([5, 5, 5, 5])
    >>> signals = {
    ...     "past_loss": np.array([2.0, 1.0, 0.1, np.nan]),
    ...     "past_duration": np.array([1.0, 1.0, 1.0, np.nan]),
    ...     "past_round": np.array([0.0, 0.0, 0.0, np.nan]),
    ... }
    >>> design = OortDesign(population, 2, signals, round_=40, rng=0)
    >>> design.expected_counts().tolist()
    [1.0, 0.0, 0.0, 1.0]

    References
    ----------
    F. Lai, X. Zhu, H. Madhyastha, M. Chowdhury, "Oort: efficient federated learning via guided
    participant selection", OSDI 2021.
    """

    reads = "clients' losses and durations"
    unbiased = False

    exploit: SystematicDraw
    explore: SystematicDraw

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        signals: Signals | None,
        *,
        round_: int,
        options: OortOptions | None = None,
        rng: Rng = None,
    ) -> None:
        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        round_ = checked_whole(self.name, "round_", round_, way_out="Count rounds from 0.")
        options = OortOptions() if options is None else options
        way_out = "Pass for example OortOptions(clip=0.9)."
        checked_kind(self.name, "options", options, OortOptions, way_out=way_out)
        n = population.n_clients
        given = {name: collected(self.name, signals, name) for name in PAST}
        past = {name: checked_signal(self.name, name, each, n) for name, each in given.items()}
        clients = rng.permutation(drawable_clients(self))
        is_known = ~np.isnan(past["past_loss"][clients])
        known, new = clients[is_known], clients[~is_known]
        share = max(
            options.exploration * options.exploration_decay**round_, options.exploration_least
        )
        # 1e-9 corrects rounding: in floats, 1 - 0.9 is less than 0.1.
        by_share = int((1 - share) * self.cohort_size + 1e-9)
        n_exploit = max(by_share, self.cohort_size - len(new))
        n_exploit = min(n_exploit, len(known))
        utility = _utility(
            population.sizes[known], {k: v[known] for k, v in past.items()}, round_, options
        )
        admitted = _admitted(utility, n_exploit, options.cutoff)
        self.exploit = SystematicDraw(known[admitted], _units(utility[admitted]), n_exploit)
        equal = np.ones(len(new), dtype=np.int64)
        self.explore = SystematicDraw(new, equal, self.cohort_size - n_exploit)

    def expected_counts(self) -> NDArray[np.float64]:
        """Return the chance of each client, shape (n_clients,)."""
        return self._by_client("chances")

    def weight_variance(self) -> NDArray[np.float64]:
        return self._by_client("variances") / self.cohort_size**2

    def _by_client(self, what: str) -> NDArray[np.float64]:
        values = np.zeros(self.population.n_clients)
        for lottery in (self.exploit, self.explore):
            values[lottery.clients] = getattr(lottery, what)
        return values

    def covariance(self) -> NDArray[np.float64]:
        covariance = np.zeros((self.population.n_clients,) * 2)
        for lottery in (self.exploit, self.explore):
            covariance[np.ix_(lottery.clients, lottery.clients)] = lottery.covariance()
        return covariance / self.cohort_size**2

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        lotteries = (self.exploit, self.explore)
        places = rng.integers([lottery.step for lottery in lotteries], size=(rounds, 2))
        drawn = [lottery.drawn_at(places[:, k]) for k, lottery in enumerate(lotteries)]
        return np.concatenate(drawn, axis=1)

    def aggregate_spread(self, updates: NDArray[np.floating]) -> float:
        spreads = [lottery.total_spread(updates) for lottery in (self.exploit, self.explore)]
        return sum(spreads) / self.cohort_size**2


def _utility(
    sizes: NDArray[np.int64],
    past: dict[SignalName, NDArray[np.float64]],
    round_: int,
    options: OortOptions,
) -> NDArray[np.float64]:
    """Return the utility of clients that were drawn before."""
    if len(sizes) == 0:
        return np.zeros(0)
    # Scale by the largest loss, so that no product overflows. Only ratios matter.
    raw = sizes * (past["past_loss"] / (past["past_loss"].max() or 1.0))
    raw = np.minimum(raw, np.quantile(raw, options.clip))
    width = float(np.ptp(raw))
    useful = (raw - raw.min()) / width if width else np.ones(len(raw))
    # A known client without a past round counts as drawn in the current round.
    last = np.nan_to_num(past["past_round"], nan=round_) + 1
    useful = useful + np.sqrt(0.1 * np.log(round_ + 1) / last)
    seconds = past["past_duration"]
    if not np.isnan(seconds).all():
        preferred = np.nanquantile(seconds, options.pace)
        is_slow = seconds > preferred
        useful[is_slow] *= (preferred / seconds[is_slow]) ** options.penalty
    return np.asarray(useful)


def _admitted(utility: NDArray[np.float64], number: int, cutoff: float) -> NDArray[np.bool_]:
    """Return which clients are in the lottery for ``number`` places."""
    if number == 0:
        return np.zeros(len(utility), dtype=bool)
    last = np.sort(utility)[::-1][number - 1]
    return np.asarray(utility >= cutoff * last)


def _units(utility: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return integers proportional to utility, at least 1: every admitted client can be drawn."""
    largest = utility.max(initial=0.0) or 1.0
    return np.asarray(np.maximum(np.rint(utility / largest * UTILITY_UNITS), 1), dtype=np.int64)


@final
@dataclass(frozen=True, repr=False)
class Oort(OortOptions, Recipe):
    """Recipe of :class:`OortDesign`; its hyper-parameters are :class:`OortOptions`."""

    name: ClassVar[str] = "oort"
    signals: ClassVar[tuple[SignalName, ...]] = PAST

    __repr__ = Recipe.__repr__

    def design(self, population: Population, known: Knowledge) -> OortDesign:
        return OortDesign(
            population,
            self.cohort_size,
            known.signals,
            round_=known.round_,
            options=self,
            rng=known.rng,
        )
