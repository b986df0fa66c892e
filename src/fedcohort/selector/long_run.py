"""The mean weights of a few rounds, exactly: every pattern of presence and every cohort."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from fedcohort.baselines.uniform import UniformDesign
from fedcohort.designs import CoinDesign, Design, MultinomialDesign, RowDesign
from fedcohort.population import Population
from fedcohort.selector.attendance import Attendance
from fedcohort.selector.planner import Planner
from fedcohort.selector.records import ClientRecords
from fedcohort.selector.settings import SelectorSettings

#: The most outcomes of a round, over all histories, that are looked at; and of one design.
MOST_OUTCOMES, MOST_COHORTS = 200_000, 5_000
Mask = NDArray[np.bool_]
#: The chance of each set of drawn clients, as bytes of a mask.
Cohorts = Mapping[bytes, float]


class TooManyError(Exception):
    """There are more outcomes than are looked at, or a design cannot be enumerated."""


def exact_mean_weights(
    settings: SelectorSettings,
    population: Population,
    chances: NDArray[np.float64],
    known: NDArray[np.float64],
    rounds: int,
    seed: int,
) -> NDArray[np.float64] | None:
    """Return each client's E[w], averaged over the first rounds; None if that takes too long.

    Clients come independently with these chances, and answer whenever they are asked. If
    ``settings`` say that chances are known, weights make up for presence with ``known``, and a
    client with NaN there is not drawn.
    """
    try:
        return _mean_weights(settings, population, chances, known, rounds, seed)
    except TooManyError:
        return None


def _mean_weights(
    settings: SelectorSettings,
    population: Population,
    chances: NDArray[np.float64],
    known: NDArray[np.float64],
    rounds: int,
    seed: int,
) -> NDArray[np.float64]:
    members, n = np.ones(population.n_clients, dtype=bool), population.n_clients
    records, first, new = ClientRecords(settings, seed), Attendance(settings), np.full(n, -1)
    records.rearrange(new, range(n))
    first.rearrange(new)
    planner, is_known = Planner(settings, seed, records), settings.presence == "known"
    can_be_drawn = ~np.isnan(known) if is_known else members
    own_chances = np.where(can_be_drawn, known, 1.0) if is_known else None
    patterns = list(_patterns(chances))
    follows_draws = settings.max_participations is not None or settings.min_separation > 1

    @cache
    def law(drawable: bytes) -> tuple[Design, NDArray[np.float64], Cohorts] | None:
        mask = np.frombuffer(drawable, dtype=bool)
        if not population.sizes[mask].any():
            return None
        design = planner.design(population.restricted(mask), {}, 0, is_full=bool(mask.all()))
        if rounds > 1 and not design.lasts:
            raise TooManyError
        mean = design.expected_counts() * design.weight_per_draw()
        return design, mean, cohorts_of(design) if follows_draws else {bytes(n): 1.0}

    total, n_outcomes, histories = np.zeros(n), 0, {b"": (1.0, first)}
    for round_ in range(rounds):
        following = dict[bytes, tuple[float, Attendance]]()
        for chance, attendance in histories.values():
            allowed = attendance.allowed(members, round_) & can_be_drawn
            for there, own in patterns:
                found = law((there & allowed).tobytes())
                cohorts: Cohorts = {bytes(n): 1.0}
                if found is not None:
                    design, mean, cohorts = found
                    if settings.corrects_presence:
                        target = int(population.sizes[allowed].sum())
                        boosts = attendance.boosts(np.arange(n), own_chances)
                        mean = mean * boosts * (design.population.total / target)
                    total += chance * own * mean
                n_outcomes += len(cohorts)
                if n_outcomes > MOST_OUTCOMES:
                    raise TooManyError
                for drawn, likely in cohorts.items():
                    later, asked = copy(attendance), np.flatnonzero(np.frombuffer(drawn, bool))
                    later.record(
                        round_, members=members, present=there, asked=asked, failed=asked[:0]
                    )
                    key = b"".join(each.tobytes() for each in later.state().values())
                    before = following.get(key, (0.0, later))[0]
                    following[key] = (before + chance * own * likely, later)
        histories = following
    return total / rounds


def _patterns(chances: NDArray[np.float64]) -> Iterator[tuple[Mask, float]]:
    """Yield who may be there, with its chance."""
    sure = [(True,) if chance == 1 else (False, True) for chance in chances.tolist()]
    if sum(len(each) == 2 for each in sure) > MOST_OUTCOMES.bit_length():
        raise TooManyError
    for each in product(*sure):
        there = np.array(each, dtype=bool)
        yield there, float(np.where(there, chances, 1 - chances).prod())


def cohorts_of(design: Design) -> Cohorts:
    """Return the chance of each set of clients that a design can draw."""
    n, sizes = design.population.n_clients, design.population.sizes
    none = (False,) * n
    if isinstance(design, UniformDesign):
        there = np.flatnonzero(sizes).tolist()
        subsets = list(_bounded(combinations(there, design.cohort_size)))
        return {_mask(n, subset): 1 / len(subsets) for subset in subsets}
    if isinstance(design, CoinDesign):
        rows = [{k: own, None: 1 - own} for k, own in enumerate(design.inclusion_probability())]
    elif isinstance(design, MultinomialDesign):
        rows = [dict(enumerate(sizes / sizes.sum()))] * design.cohort_size
    elif isinstance(design, RowDesign):
        rows = [dict(enumerate(row)) for row in design.plan.probabilities.toarray()]
    else:
        raise TooManyError
    outcomes = {none: 1.0}
    for row in rows:
        following = dict[tuple[bool, ...], float]()
        for drawn, chance in outcomes.items():
            for k, own in row.items():
                if own > 0:
                    after = drawn if k is None else (*drawn[:k], True, *drawn[k + 1 :])
                    following[after] = following.get(after, 0.0) + chance * float(own)
        if len(following) > MOST_COHORTS:
            raise TooManyError
        outcomes = following
    return {np.array(drawn).tobytes(): chance for drawn, chance in outcomes.items()}


def _bounded(subsets: Iterator[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    for number, subset in enumerate(subsets):
        if number >= MOST_COHORTS:
            raise TooManyError
        yield subset


def _mask(n: int, clients: tuple[int, ...]) -> bytes:
    mask = np.zeros(n, dtype=bool)
    mask[list(clients)] = True
    return mask.tobytes()
