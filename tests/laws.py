"""Exact laws of small designs, by enumeration in fractions: the slow twin of every formula."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import singledispatch
from itertools import combinations, pairwise, permutations, product
from math import lcm

import numpy as np
from numpy.typing import NDArray

from fedcohort import Design, Population, testing
from fedcohort.baselines.norm_optimal import APPROXIMATE_PASSES
from fedcohort.baselines.oort import SystematicDraw
from fedcohort.baselines.round_robin import RoundRobinCycle
from fedcohort.baselines.shuffled import ShuffledRounds
from fedcohort.designs import (
    AutoDesign,
    BalancedDesign,
    ChosenDesign,
    HiCSDesign,
    KVibDesign,
    MultinomialDesign,
    NormOptimalDesign,
    OortDesign,
    OSMDDesign,
    PoissonDesign,
    RowDesign,
    StratifiedDesign,
    TournamentDesign,
    UniformDesign,
)
from fedcohort.designs.balanced import RIDGE, walk_points, walked
from fedcohort.similarity import GroupTree
from fedcohort.testing import Law as Law
from fedcohort.testing import importance as importance
from fedcohort.testing import independent_rows as independent_rows
from fedcohort.testing import law_of_rows

#: A group of clients, or two nodes that meet.
Node = list[int] | tuple["Node", "Node"]


@singledispatch
def law(design: Design) -> Law:
    """Return the probability of every vector of counts."""
    raise NotImplementedError(type(design).__name__)


law.register(RowDesign, law_of_rows)


@law.register
def _(design: MultinomialDesign) -> Law:
    sizes = design.population.sizes.tolist()
    return independent_rows([sizes] * design.cohort_size, design.population.total)


@law.register
def _(design: UniformDesign) -> Law:
    sizes = design.population.sizes.tolist()
    drawable = [i for i, size in enumerate(sizes) if size > 0]
    subsets = list(combinations(drawable, design.cohort_size))
    return {
        tuple(int(i in subset) for i in range(len(sizes))): Fraction(1, len(subsets))
        for subset in subsets
    }


@law.register
def _(design: PoissonDesign) -> Law:
    return coins(capped_chances(design.population.sizes.tolist(), design.cohort_size))


@law.register
def _(design: NormOptimalDesign) -> Law:
    """The chances in fractions, from the norms as they are."""
    norms = [Fraction(norm) for norm in np.nan_to_num(design.norms).tolist()]
    lengths = [s * norm for s, norm in zip(design.population.sizes.tolist(), norms, strict=True)]
    chances = iterated_chances if design.approximate else capped_chances
    return coins(chances(lengths, min(design.cohort_size, sum(length > 0 for length in lengths))))


@law.register
def _(design: OSMDDesign) -> Law:
    units = design.units.tolist()
    return independent_rows([units] * design.cohort_size, sum(units))


@law.register
def _(design: KVibDesign) -> Law:
    """Its coins; within 2^-40 of the mixture in fractions, from the lengths as they are."""
    sizes = design.population.sizes.tolist()
    there = [i for i, size in enumerate(sizes) if size]
    lengths = [Fraction(design.lengths[i]) * (i in there) for i in range(len(sizes))]
    own = capped_chances(lengths, design.cohort_size)
    equal, mix = Fraction(design.cohort_size, len(there)), Fraction(design.mix)
    exact = [(1 - mix) * own[i] + mix * equal * (i in there) for i in range(len(sizes))]
    tossed = [Fraction(chance) for chance in design.expected_counts().tolist()]
    assert all(abs(a - b) <= Fraction(1, 2**40) for a, b in zip(tossed, exact, strict=True))
    return coins(tossed)


@law.register
def _(design: HiCSDesign) -> Law:
    """One client after the other, in proportion to the chances of those that are left."""
    chances = [Fraction(chance) for chance in design.chances.tolist()]
    outcomes: Law = defaultdict(Fraction)
    for order in permutations([i for i, own in enumerate(chances) if own], design.cohort_size):
        probability, left = Fraction(1), sum(chances)
        for client in order:
            probability *= chances[client] / left
            left -= chances[client]
        outcomes[tuple(int(i in order) for i in range(len(chances)))] += probability
    return outcomes


def coins(chances: list[Fraction]) -> Law:
    """Toss independent coins."""
    outcomes: Law = {}
    for counts in product((0, 1), repeat=len(chances)):
        probability = Fraction(1)
        for count, chance in zip(counts, chances, strict=True):
            probability *= chance if count else 1 - chance
        if probability:
            outcomes[counts] = probability
    return outcomes


@law.register
def _(design: ChosenDesign) -> Law:
    return {tuple(int(i in design.chosen) for i in range(design.population.n_clients)): Fraction(1)}


@law.register
def _(design: RoundRobinCycle) -> Law:
    """All rounds of a cycle, drawn one after the other from the design's own order."""
    circle, m = design.circle.tolist(), design.cohort_size
    outcomes: Law = defaultdict(Fraction)
    rounds = lcm(len(circle), m) // m
    for round_ in range(rounds):
        turn = {circle[(round_ * m + k) % len(circle)] for k in range(m)}
        counts = tuple(int(i in turn) for i in range(design.population.n_clients))
        outcomes[counts] += Fraction(1, rounds)
    return dict(outcomes)


@law.register
def _(design: ShuffledRounds) -> Law:
    """All rounds of a pass, over all sets of clients that can have them."""
    sizes, m = design.population.sizes.tolist(), design.cohort_size
    drawable = [i for i, size in enumerate(sizes) if size > 0]
    turns = [drawable[k : k + m] for k in range(0, len(drawable), m)]
    outcomes: Law = defaultdict(Fraction)
    for turn in turns:
        subsets = list(combinations(drawable, len(turn)))
        for subset in subsets:
            counts = tuple(int(i in subset) for i in range(len(sizes)))
            outcomes[counts] += Fraction(1, len(subsets) * len(turns))
    return dict(outcomes)


@law.register
def _(design: StratifiedDesign) -> Law:
    """One row for every draw, over the clients of its stratum."""
    sizes, strata = design.population.sizes.tolist(), design.strata.tolist()
    outcomes: Law = {(0,) * len(sizes): Fraction(1)}
    for stratum, draws in enumerate(design.draws.tolist()):
        row = [size if h == stratum else 0 for size, h in zip(sizes, strata, strict=True)]
        if draws:
            outcomes = together(outcomes, independent_rows([row] * draws, sum(row)))
    return outcomes


@law.register
def _(design: OortDesign) -> Law:
    n = design.population.n_clients
    return together(comb(design.exploit, n), comb(design.explore, n))


def comb(lottery: SystematicDraw, n_clients: int) -> Law:
    """Let the comb fall between any two places where something changes."""
    ends, end = [], Fraction(0)
    for length in lottery.lengths.tolist():
        end += Fraction(length, lottery.step)
        ends.append(end)
    changes = sorted({Fraction(0), Fraction(1), *(end % 1 for end in ends)})
    outcomes: Law = defaultdict(Fraction)
    for start, stop in pairwise(changes):
        counts = [0] * n_clients
        for tooth in range(lottery.draws):
            place = (start + stop) / 2 + tooth
            counts[lottery.clients[sum(end <= place for end in ends)]] += 1
        outcomes[tuple(counts)] += stop - start
    return dict(outcomes)


def together(first: Law, second: Law) -> Law:
    """Draw from both, independently."""
    outcomes: Law = defaultdict(Fraction)
    for (a, p), (b, q) in product(first.items(), second.items()):
        outcomes[tuple(x + y for x, y in zip(a, b, strict=True))] += p * q
    return dict(outcomes)


@law.register
def _(design: BalancedDesign) -> Law:
    """Every choice of live clients, and every path of the walk; the walk's chances are floats."""
    total = design.population.total
    parts = [divmod(design.cohort_size * size, total) for size in design.population.sizes.tolist()]
    units = [rest for _, rest in parts]
    in_tree: dict[int, list[int]] = defaultdict(list)
    for client, group in zip(design.leaves.tolist(), design.tree.groups.tolist(), strict=True):
        in_tree[group].append(client)
    groups = [in_tree[group] for group in sorted(in_tree)]
    groups += [[i] for i, rest in enumerate(units) if rest and i not in set(design.leaves)]
    held = [sum(units[i] for i in group) for group in groups]
    low = np.array([each / total for each in held])
    high = np.array([(total - each) / total for each in held])
    outcomes: Law = defaultdict(Fraction)
    for live in product(*groups):
        chosen = Fraction(1)
        for client, mass in zip(live, held, strict=True):
            chosen *= Fraction(units[client], mass)
        points = walk_points(design.updates, np.array(live, dtype=np.int64), low)
        for selected, probability in paths(low, high, points, RIDGE):
            counts = [certain for certain, _ in parts]
            for client in np.array(live, dtype=np.int64)[selected]:
                counts[client] += 1
            outcomes[tuple(counts)] += chosen * probability
    return {counts: probability for counts, probability in outcomes.items() if probability}


def paths(
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    points: NDArray[np.float64],
    ridge: float,
) -> Iterator[tuple[NDArray[np.bool_], Fraction]]:
    """Walk along every path; say how each ends, and how likely it is."""
    pending: list[list[bool]] = [[]]
    while pending:
        guide = Guide(pending.pop())
        selected = walked(low, high, points, ridge, guide.goes_up)
        pending += guide.others
        yield selected, guide.probability


class Guide:
    """Follows a path, then goes up; notes the other ways, and how likely its own is."""

    def __init__(self, path: list[bool]) -> None:
        self.path, self.others, self.step = path, list[list[bool]](), 0
        self.probability = Fraction(1)

    def goes_up(self, chance: float) -> bool:
        if self.step == len(self.path):
            self.others.append([*self.path, False])
            self.path.append(True)
        is_up = self.path[self.step]
        self.step += 1
        self.probability *= Fraction(chance) if is_up else 1 - Fraction(chance)
        return is_up


@law.register
def _(design: AutoDesign) -> Law:
    return law(design.design)


@law.register
def _(design: TournamentDesign) -> Law:
    members = nodes_of(design.tree, design.leaves.tolist())
    return tournament(members, design.population, design.cohort_size)


def nodes_of(tree: GroupTree, clients: list[int]) -> Node:
    """Write a tree as nested pairs of groups; ``clients`` stand at its leaves."""
    nodes: list[Node] = [[] for _ in range(len(tree.merges) + 1)]
    for client, group in zip(clients, tree.groups.tolist(), strict=True):
        members = nodes[group]
        assert isinstance(members, list)
        members.append(client)
    for left, right in tree.merges.tolist():
        nodes.append((nodes[left], nodes[right]))
    return nodes[-1]


def tournament(root: Node, population: Population, cohort_size: int) -> Law:
    """Play every outcome of the pivotal duels up to the root; masses are fractions of M."""
    shares = [cohort_size * share for share in importance(population)]
    certain = [share.numerator // share.denominator for share in shares]
    mass, outcomes = _live(root, [s - c for s, c in zip(shares, certain, strict=True)])
    assert mass == 0
    law_: Law = defaultdict(Fraction)
    for (_, selected), probability in outcomes.items():
        counts = list(certain)
        for client in selected:
            counts[client] += 1
        law_[tuple(counts)] += probability
    return dict(law_)


#: The live client, if there is one, and the clients that were selected: how likely they are.
Outcomes = dict[tuple[int | None, tuple[int, ...]], Fraction]


def _live(node: Node, units: list[Fraction]) -> tuple[Fraction, Outcomes]:
    """Return the live mass of a node, and its outcomes."""
    if isinstance(node, list):
        mass = sum((units[i] for i in node), Fraction(0))
        if mass == 0:
            return mass, {(None, ()): Fraction(1)}
        if mass == 1:
            return Fraction(0), {(None, (i,)): units[i] for i in node if units[i]}
        return mass, {(i, ()): units[i] / mass for i in node if units[i]}
    (a, lefts), (b, rights) = (_live(child, units) for child in node)
    s = a + b
    outcomes: Outcomes = defaultdict(Fraction)
    for (left, chosen), p in lefts.items():
        for (right, others), q in rights.items():
            before = tuple(sorted(chosen + others))
            for live, new, chance in _met(left, right, a, b):
                outcomes[live, tuple(sorted(before + new))] += p * q * chance
    return (s if s < 1 else s - 1), dict(outcomes)


def _met(
    left: int | None, right: int | None, a: Fraction, b: Fraction
) -> list[tuple[int | None, tuple[int, ...], Fraction]]:
    """Return who goes on, who is selected, and how likely that is, when two live clients meet."""
    s = a + b
    if left is None or right is None:
        return [(right if left is None else left, (), Fraction(1))]
    if s < 1:
        return [(left, (), a / s), (right, (), b / s)]
    if s == 1:
        return [(None, (left,), a), (None, (right,), b)]
    return [(right, (left,), (1 - b) / (2 - s)), (left, (right,), (1 - a) / (2 - s))]


def capped_chances(sizes: Sequence[int | Fraction], cohort_size: int) -> list[Fraction]:
    """Return q_i = min(1, lambda n_i) with sum m: cap the largest, one after the other."""
    certain: set[int] = set()
    while True:
        rest = sum(
            (Fraction(size) for i, size in enumerate(sizes) if i not in certain), Fraction(0)
        )
        scale = (cohort_size - len(certain)) / rest if rest else Fraction(0)
        over = [i for i, size in enumerate(sizes) if i not in certain and scale * size > 1]
        if not over:
            return [Fraction(1) if i in certain else scale * size for i, size in enumerate(sizes)]
        certain.add(max(over, key=lambda i: sizes[i]))


def iterated_chances(lengths: Sequence[Fraction], draws: int) -> list[Fraction]:
    """Return what the approximate iteration arrives at."""
    total = sum(lengths, Fraction(0))
    chances = [min(Fraction(1), draws * length / total) for length in lengths]
    for _ in range(APPROXIMATE_PASSES):
        below = [chance for chance in chances if chance < 1]
        if not any(below):
            return chances
        scale = (draws - len(chances) + len(below)) / sum(below, Fraction(0))
        chances = [min(Fraction(1), scale * c) if c < 1 else c for c in chances]
        if scale <= 1:
            return chances
    return chances


def moments(design: Design) -> testing.Moments:
    return testing.moments(design, law(design))


def aggregate_variance(design: Design, updates: list[list[int]]) -> Fraction:
    return testing.aggregate_variance(design, law(design), updates)
