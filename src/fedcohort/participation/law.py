"""The claimed design as a law of who takes part: chances of each client, and exact tails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedcohort._display import counted
from fedcohort.baselines.cohort_mean import CohortMean, CohortMeanRounds
from fedcohort.designs import Design, Recipe
from fedcohort.designs.base import RoundedDesign, RowDesign
from fedcohort.designs.catalogue import text_of
from fedcohort.designs.recipe import Knowledge
from fedcohort.errors import DesignError
from fedcohort.participation.table import Participation
from fedcohort.population import Population

#: Most entries (patterns of presence times clients) for which designs are built one by one.
MOST_BUILT = 2_000_000
#: Most steps of the exact law of a sum; above, Hoeffding's bound is used.
MOST_STEPS = 4_000_000_000
Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False)
class Stratum:
    """Rounds with one law.

    Attributes
    ----------
    rounds
        Their positions.
    low, high
        Bounds on the chance of each client to be asked; equal where it is known.
    weights
        The expected weight of each client; NaN if unknown.
    design
        The design; None without one.
    """

    rounds: NDArray[np.int64]
    low: Floats
    high: Floats
    weights: Floats
    design: Design | None = None


@final
@dataclass(frozen=True, eq=False)
class Law:
    """What the claimed design says about each round.

    ``claim`` says it in words; ``is_claimed`` is False if the audit assumed a design because the
    log names none. ``expected_everyone`` are the weights that the design would give on average if
    everyone were always there, shape (n_clients,).
    """

    claim: str
    is_claimed: bool
    strata: tuple[Stratum, ...]
    expected_everyone: Floats
    recipe: Recipe | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the chance of every client is known."""
        return all(np.array_equal(each.low, each.high) for each in self.strata)

    @property
    def is_known(self) -> bool:
        """Whether the law says anything about who is asked."""
        return any((each.high < 1).any() or (each.low > 0).any() for each in self.strata)

    def expected_rounds(self) -> Floats:
        """Return in how many rounds each client is expected to be asked, the middle of bounds."""
        return np.asarray(sum(len(s.rounds) * (s.low + s.high) / 2 for s in self.strata))

    def expected_weights(self) -> Floats:
        """Return the mean over rounds of the expected weights."""
        n_rounds = sum(len(each.rounds) for each in self.strata)
        return np.asarray(sum(len(s.rounds) * s.weights for s in self.strata) / max(1, n_rounds))

    def too_few(self, times: NDArray[np.int64], since: NDArray[np.int64] | int = 0) -> Floats:
        """Return the largest chance that a client is asked in at most ``times`` rounds.

        With ``since``, a position for each client, only rounds from there on count.
        """
        return self._tail(times, since, lower=True)

    def too_many(self, times: NDArray[np.int64]) -> Floats:
        """Return the largest chance that a client is asked in at least ``times`` rounds."""
        return self._tail(times, 0, lower=False)

    def _tail(
        self, times: NDArray[np.int64], since: NDArray[np.int64] | int, *, lower: bool
    ) -> Floats:
        """Compute the tail once for all clients with the same chances, rounds and times."""
        chances = np.array([each.low if lower else each.high for each in self.strata])
        starts = np.broadcast_to(since, times.shape)
        lengths = np.array(
            [[(s.rounds >= at).sum() for s in self.strata] for at in np.unique(starts)]
        )
        which = np.searchsorted(np.unique(starts), starts)
        keys = np.vstack([chances, which, times]).T
        _, first, place = np.unique(
            np.ascontiguousarray(keys).view(f"V{keys.shape[1] * 8}").ravel(),
            return_index=True,
            return_inverse=True,
        )
        tail = cumulative(
            times[first] if lower else times[first] - 1, chances[:, first], lengths[which[first]]
        )
        tail = tail if lower else 1.0 - tail
        return np.clip(tail, 0.0, 1.0)[place]


def cumulative(most: NDArray[np.int64], chances: Floats, lengths: NDArray[np.int64]) -> Floats:
    """Return P(X <= most) for sums X of independent coins, one for each client.

    Parameters
    ----------
    most
        Shape (n,).
    chances
        Shape (strata, n): the chance of a coin of each stratum.
    lengths
        Shape (n, strata): how many coins each stratum has.

    Notes
    -----
    Exact: binomial for one chance, else the law of the sum, one coin after another, on the side
    with fewer terms. If that takes too long, the binomial law with the mean chance: below its mean
    minus 1 and above its mean it is an upper bound of the tails (Hoeffding, "On the distribution of
    the number of successes in independent trials", 1956).
    """
    n_coins = lengths.sum(axis=1)
    mean = np.einsum("sn,ns->n", chances, lengths) / np.maximum(n_coins, 1)
    is_one = np.all((chances == chances[0]) | (lengths.T == 0), axis=0) | (len(chances) == 1)
    single = chances[0] if len(chances) else mean
    found = np.where(is_one, binom.cdf(most, n_coins, np.where(n_coins > 0, single, 0.0)), np.nan)
    # A stratum without coins may come first.
    other = is_one & (mean != single)
    found[other] = binom.cdf(most[other], n_coins[other], mean[other])
    for flipped in (False, True):
        chosen = ~is_one & ((2 * most > n_coins) == flipped)
        if not chosen.any():
            continue
        p = 1 - chances[:, chosen] if flipped else chances[:, chosen]
        limit = n_coins[chosen] - most[chosen] - 1 if flipped else most[chosen]
        width = int(max(limit.max(), 0)) + 1
        if width * chosen.sum() * int(n_coins[chosen].max()) > MOST_STEPS:
            found[chosen] = binom.cdf(most[chosen], n_coins[chosen], mean[chosen])
            continue
        below = _sum_law(p, lengths[chosen], width, limit)
        found[chosen] = 1 - below if flipped else below
    return found


def _sum_law(p: Floats, lengths: NDArray[np.int64], width: int, limit: NDArray[np.int64]) -> Floats:
    """Return P(X <= limit), where a sum of ``width`` and more is dropped."""
    law = np.zeros((width, p.shape[1]))
    law[0] = 1.0
    for stratum in range(len(p)):
        for k in range(int(lengths[:, stratum].max(initial=0))):
            own = np.where(k < lengths[:, stratum], p[stratum], 0.0)
            law[1:] = law[1:] * (1 - own) + law[:-1] * own
            law[0] *= 1 - own
    sums = np.cumsum(law, axis=0)
    found = sums[np.clip(limit, 0, width - 1), np.arange(p.shape[1])]
    return np.where(limit < 0, 0.0, found)


def law_of(own: Participation, recipe: Recipe | None) -> Law:
    """Return the law of a participation under its claimed design.

    Without a design, the audit assumes what Flower, FLARE and Fed-BioMed do by default: everyone is
    asked, or as many clients as were asked, all subsets equally likely; and weights are shares of
    the cohort's samples.
    """
    there = own.known_available() & (own.known_sizes() > 0)
    claimed = recipe if recipe is not None else own.recipe
    if claimed is not None:
        return _claimed(own, claimed, there)
    return _assumed(own, there)


def population_of(own: Participation, there: NDArray[np.bool_] | None = None) -> Population:
    """Return the clients, absent ones with size 0."""
    sizes = own.known_sizes()
    if there is not None:
        sizes = np.where(there, sizes, 0)
    return Population.of_checked(sizes.astype(np.int64), own.ids, own.groups)


def _patterns(own: Participation, there: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Return the positions of rounds with the same available clients."""
    if own.available is None:
        return [np.arange(own.n_rounds)]
    known: dict[bytes, list[int]] = {}
    for k, row in enumerate(there):
        known.setdefault(np.packbits(row).tobytes(), []).append(k)
    return [np.array(rounds, dtype=np.int64) for rounds in known.values()]


def _assumed(own: Participation, there: NDArray[np.bool_]) -> Law:
    """Return the law of uniform draws, or of asking everyone, whichever the log looks like."""
    counts = own.counts
    asked = own.per_round() if counts is None else counts.asked
    members = there.sum(axis=1) if counts is None else counts.connected
    typical = int(np.median(asked)) if len(asked) else 0
    everyone = 2 * np.count_nonzero(asked >= members) > len(asked)
    m = int(np.max(members, initial=1)) if everyone else typical
    claim = (
        "nobody named a design: assumed that everyone is asked in every round"
        if everyone
        else f"nobody named a design: assumed uniform draws of as many as were asked, {m} as a rule"
    )
    mean = _cohort_mean_weights(own, m)
    strata = []
    for rounds in _patterns(own, there):
        for number in np.unique(asked[rounds]).tolist() if not everyone else [None]:
            chosen = rounds if number is None else rounds[asked[rounds] == number]
            mask = there[chosen[0]] if own.n_clients else there[:0].ravel()
            chance = 1.0 if number is None else min(1.0, number / max(1, mask.sum()))
            p = np.where(mask, chance, 0.0)
            strata.append(Stratum(chosen, p, p, _within(mean, mask)))
    return Law(claim, False, tuple(strata), mean, CohortMean(max(1, m)))


def _within(weights: Floats, mask: NDArray[np.bool_]) -> Floats:
    """Return weights of the clients that are there, with their sum kept."""
    kept = np.where(mask, weights, 0.0)
    return kept * (weights.sum() / kept.sum()) if kept.sum() > 0 else kept


def _cohort_mean_weights(own: Participation, m: int) -> Floats:
    """Return the mean weights of clients in uniform cohorts, weighted by samples."""
    population = population_of(own)
    n = int(np.count_nonzero(population.sizes))
    if not n:
        return np.zeros(own.n_clients)
    design = CohortMean(max(1, min(m, n))).build(population, rng=0).over_rounds()
    return design.bias() + population.importance


def _claimed(own: Participation, recipe: Recipe, there: NDArray[np.bool_]) -> Law:
    """Return the law of a design that the log or the user names."""
    claim = f"{text_of(recipe)} with {counted(recipe.cohort_size, 'draw')}"
    everyone = _stratum(own, recipe, np.arange(own.n_rounds), None)
    if everyone.design is None:
        how = "every draw takes a client by its importance" if _draws_by_importance(recipe) else ""
        claim += f", whose cohorts depend on the training: {how or 'no law is known'}"
    patterns = _patterns(own, there)
    is_full = own.available is None
    builds = is_full or len(patterns) * own.n_clients <= MOST_BUILT
    strata = (
        [everyone]
        if is_full
        else [_stratum(own, recipe, rounds, there[rounds[0]], builds=builds) for rounds in patterns]
    )
    return Law(claim, True, tuple(strata), everyone.weights, recipe)


def _stratum(
    own: Participation,
    recipe: Recipe,
    rounds: NDArray[np.int64],
    there: NDArray[np.bool_] | None,
    *,
    builds: bool = True,
) -> Stratum:
    """Return the law of rounds with the same available clients.

    Equal clients share bounds: a design breaks ties between them at random, once.
    """
    population, n = population_of(own, there), own.n_clients
    if not population.sizes.any():
        return Stratum(rounds, np.zeros(n), np.zeros(n), np.zeros(n))
    design = built(recipe, population) if builds else None
    if design is not None:
        chance = design.inclusion_probability()
        low, high = _over_equals(chance, population)
        mean = population.importance + design.bias()
        return Stratum(rounds, low, high, _mean_over_equals(mean, population), design)
    p, m = population.importance, recipe.cohort_size
    if _draws_by_importance(recipe):
        low, high = -np.expm1(m * np.log1p(-np.minimum(p, 1 - 1e-16))), np.minimum(1.0, m * p)
        return Stratum(rounds, low, high, p)
    return Stratum(rounds, np.zeros(n), (p > 0).astype(float), np.full(n, np.nan))


def _draws_by_importance(recipe: Recipe) -> bool:
    """Return whether E[c] = m p also without knowing the law: the paper's row designs."""
    return recipe.name in ("similarity", "target", "size", "multinomial", "balanced", "stratified")


def built(recipe: Recipe, population: Population) -> Design | None:
    """Build the law of a random round; None if it depends on what clients answered before."""
    if recipe.learns or recipe.signals or recipe.keeps:
        return None
    if recipe.cohort_size > np.count_nonzero(population.sizes):
        return None
    known = Knowledge(recipe, memory=None, signals=None, round_=0, rng=np.random.default_rng(0))
    try:
        design = recipe.build_from(population, known)
    except DesignError:
        return None
    return None if known.round_was_read else design.over_rounds()


def _classes(population: Population) -> NDArray[np.int64]:
    """Return a number for each client, equal for clients of one size and group."""
    keys: Sequence[object] = population.groups or ()
    if not keys:
        return np.unique(population.sizes, return_inverse=True)[1]
    numbers = {each: k for k, each in enumerate(dict.fromkeys(keys))}
    labels = np.array([numbers[each] for each in keys])
    pairs = np.stack([population.sizes, labels], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].ravel()


def _over_equals(values: Floats, population: Population) -> tuple[Floats, Floats]:
    """Return the smallest and the largest value among equal clients; rounding does not count."""
    classes = _classes(population)
    n = int(classes.max()) + 1
    low, high = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(low, classes, values)
    np.maximum.at(high, classes, values)
    is_same = high - low < 1e-12
    low[is_same] = high[is_same]
    return low[classes], high[classes]


def _mean_over_equals(values: Floats, population: Population) -> Floats:
    classes = _classes(population)
    return np.asarray((np.bincount(classes, values) / np.bincount(classes))[classes])


def drawn_weights(own: Participation, law: Law) -> Floats:
    """Return the weight of each entry if all that were drawn had answered."""
    drawn = own.count.astype(np.float64)
    if not law.is_claimed or isinstance(law.recipe, CohortMean):
        drawn *= own.known_sizes()[own.client]
    found = divided(drawn, own.per_round(drawn)[own.row])
    for stratum in law.strata if law.is_claimed else ():
        design = stratum.design
        if design is None or isinstance(design, (RowDesign, RoundedDesign, CohortMeanRounds)):
            continue  # equal draws, or shares of samples
        chosen = np.flatnonzero(np.isin(own.row, stratum.rounds) & (own.count > 0))
        for part in np.split(chosen, np.flatnonzero(np.diff(own.row[chosen])) + 1):
            if len(part):
                found[part] = design.weigh(own.client[part], own.count[part]).weights
    return found


def divided(values: Floats, sums: Floats) -> Floats:
    """Divide; 0 where the sum is 0."""
    return np.divide(values, sums, out=np.zeros_like(values), where=sums > 0)


def final_weights(own: Participation, intended: Floats) -> Floats:
    """Return the weight of each entry in the aggregate.

    If the log has none: the intended weights of those that answered, divided by their sum.
    """
    if np.isfinite(own.weight).any():
        return np.where(own.answered, np.nan_to_num(own.weight), 0.0)
    kept = np.where(own.answered, intended, 0.0)
    return divided(kept, own.per_round(kept)[own.row])
