"""The tournament: its law by enumeration, its draw number by number, and its promises."""

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedcohort.designs.tournament as duels
import laws
from fedcohort import Population, Tournament, UpdateMemory
from fedcohort.designs import (
    MultinomialDesign,
    SimilarityClusteredDesign,
    TargetDesign,
    TournamentDesign,
)
from fedcohort.similarity import GroupTree, MergeTree
from fedcohort.testing import Counts
from populations import CIFAR_SIZES, random_merges, rng
from trees import partition

#: Fewer than a thousand roundings of 2^-53 stand between any exact number below and its float.
ROUNDING = 1000 * 2.0**-53

Case = tuple[Population, int, np.ndarray]


@st.composite
def cases(draw: st.DrawFn, max_clients: int = 7, max_size: int = 9) -> Case:
    """Up to seven clients on any tree: empty ones, ones above a share, and up to n + 2 draws."""
    size = st.one_of(st.integers(0, 3), st.integers(0, max_size), st.just(4 * max_size))
    sizes = draw(st.lists(size, min_size=1, max_size=max_clients).filter(any))
    cohort_size = draw(st.integers(1, len(sizes) + 2))
    merges = random_merges(len(sizes), rng(draw(st.integers(0, 2**32 - 1))))
    return Population(sizes), cohort_size, merges


def on_tree(case: Case) -> TournamentDesign:
    population, cohort_size, merges = case
    tree = MergeTree(merges, np.zeros(len(merges)))
    return TournamentDesign(population, cohort_size, tree=tree, rng=rng())


def subtrees(merges: np.ndarray) -> list[list[int]]:
    """Return the leaves below every node, the leaves themselves included."""
    below = [[leaf] for leaf in range(len(merges) + 1)]
    for left, right in merges.tolist():
        below.append(below[left] + below[right])
    return below


# The law


@given(cases())
def test_clients_come_as_often_as_expected_and_every_subtree_gets_its_share(case: Case) -> None:
    population, cohort_size, merges = case
    outcomes = laws.law(on_tree(case))
    shares = [cohort_size * share for share in laws.importance(population)]

    assert sum(outcomes.values()) == 1
    for i, share in enumerate(shares):
        assert sum(p * counts[i] for counts, p in outcomes.items()) == share
    for counts, members in product(outcomes, subtrees(merges)):
        mass = sum(shares[i] for i in members)
        assert math.floor(mass) <= sum(counts[i] for i in members) <= math.ceil(mass)


@given(cases())
def test_the_tree_inside_a_group_makes_no_difference(case: Case) -> None:
    """Duels down to single clients give the law of the groups that the tree is cut into."""
    population, cohort_size, merges = case
    leaves = GroupTree(np.arange(population.n_clients), merges)
    root = laws.nodes_of(leaves, list(range(population.n_clients)))

    assert laws.tournament(root, population, cohort_size) == laws.law(on_tree(case))


@given(cases())
def test_the_covariance_is_that_of_the_enumerated_law_and_never_positive(case: Case) -> None:
    design = on_tree(case)
    covariance = design.weight_covariance()
    exact = laws.moments(design).weight_covariance

    n = case[0].n_clients
    for i, j in product(range(n), range(n)):
        assert abs(covariance[i, j] - float(exact[i][j])) <= ROUNDING
        assert i == j or exact[i][j] <= 0


@given(cases())
def test_the_weight_variance_is_the_smallest_that_whole_counts_can_have(case: Case) -> None:
    """f (1 - f) for a count whose expectation has the fractional part f."""
    population, cohort_size, _ = case
    variance = on_tree(case).weight_variance()

    for i, share in enumerate(laws.importance(population)):
        rest = cohort_size * share % 1
        assert abs(variance[i] * cohort_size**2 - float(rest * (1 - rest))) <= ROUNDING


# The draw


class EveryNumber(np.random.Generator):
    """Gives every combination of the numbers that are asked for, one after the other."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.highs = np.ones(0, dtype=np.int64)
        self.given = 0

    def integers(self, low: Any, *arguments: Any, size: Any = None, **options: Any) -> Any:
        self.highs = np.asarray(low)
        place = np.cumprod([1, *self.highs.tolist()])[:-1]
        combination = np.arange(self.given, self.given + size[0])
        self.given += size[0]
        return combination[:, None] // place % self.highs


def n_combinations(design: TournamentDesign) -> int:
    generator = EveryNumber()
    design.draw(generator)
    return math.prod(generator.highs.tolist())


def drawn_law(design: TournamentDesign) -> laws.Law:
    """Return how many of all combinations of random numbers give each outcome."""
    combinations = n_combinations(design)
    counts = design.draw_many(combinations, EveryNumber()).toarray().tolist()
    return {c: Fraction(n, combinations) for c, n in Counter(map(tuple, counts)).items()}


def meetings(case: Case) -> set[str]:
    """Name the kinds of merges of live masses that come up."""
    population, cohort_size, merges = case
    total = population.total
    mass = [cohort_size * size % total for size in population.sizes.tolist()]
    seen = {"a large client"} if (cohort_size * population.sizes > total).any() else set()
    seen |= {"an empty client"} if (population.sizes == 0).any() else set()
    for left, right in merges.tolist():
        s = mass[left] + mass[right]
        if mass[left] and mass[right]:
            seen.add("below" if s < total else "above" if s > total else "equal")
        mass.append(s % total)
    return seen


def small_cases() -> list[Case]:
    """Few units, so that all combinations of the random numbers can be played."""
    found = []
    for seed in range(400):
        generator = rng(seed)
        sizes = generator.integers(0, 4, size=generator.integers(2, 8))
        if sizes.any():
            m = int(generator.integers(1, len(sizes) + 3))
            case = Population(sizes), m, random_merges(len(sizes), generator)
            found += [case] if n_combinations(on_tree(case)) <= 40_000 else []
    return found


def test_the_draw_has_exactly_the_enumerated_law() -> None:
    """Every combination of random numbers is played once: integers, no statistics."""
    played = small_cases()
    seen = Counter(kind for case in played for kind in meetings(case))

    assert len(played) >= 200
    assert min(seen[kind] for kind in ("below", "equal", "above")) >= 40
    assert min(seen[kind] for kind in ("a large client", "an empty client")) >= 40
    for case in played:
        design = on_tree(case)
        assert drawn_law(design) == laws.law(design)


@pytest.mark.parametrize("entries", [1, 7, 64])
def test_the_size_of_a_block_does_not_change_the_draw(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = TournamentDesign(Population(CIFAR_SIZES), 10, rng(1).normal(size=(100, 3)), rng=rng())
    whole, variance = (
        design.draw_many(30, rng(2)),
        design.aggregate_variance(rng(3).random((100, 9))),
    )

    monkeypatch.setattr(duels, "BLOCK_ENTRIES", entries)

    assert (design.draw_many(30, rng(2)).toarray() == whole.toarray()).all()
    # A sum of nine columns, in one or in nine parts.
    blocks = design.aggregate_variance(rng(3).random((100, 9)))
    assert blocks == pytest.approx(variance, rel=ROUNDING)


def test_no_block_of_random_numbers_is_larger_than_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duels, "BLOCK_ENTRIES", 64)
    design = TournamentDesign(Population([1, 2, 3, 4]), 2, np.eye(4), rng=rng())
    asked = []

    class Watched(EveryNumber):
        def integers(self, low: Any, *arguments: Any, size: Any = None, **options: Any) -> Any:
            asked.append(math.prod(size))
            return super().integers(low, *arguments, size=size, **options)

    design.draw_many(100, Watched())

    assert len(asked) > 1
    assert max(asked) <= 64


# Never worse than multinomial sampling


@given(cases(max_clients=12))
def test_the_covariance_never_exceeds_multinomial_sampling_in_any_direction(case: Case) -> None:
    """Entries of at most 1 / m^2, few roundings each: eigenvalues are exact to n 2^-50."""
    population, cohort_size, _ = case
    multinomial = MultinomialDesign(population, cohort_size).weight_covariance()

    gained = multinomial - on_tree(case).weight_covariance()

    assert np.linalg.eigvalsh(gained).min() >= -1e-12


@given(cases(), st.data())
def test_the_aggregate_variance_never_exceeds_multinomial_sampling(
    case: Case, data: st.DataObject
) -> None:
    """In fractions, outcome by outcome: no tolerance."""
    population, cohort_size, _ = case
    n = population.n_clients
    updates = [[z] for z in data.draw(st.lists(st.integers(-5, 5), min_size=n, max_size=n))]
    shares = laws.importance(population)
    mean = sum(p * z[0] for p, z in zip(shares, updates, strict=True))
    multinomial = sum(p * (z[0] - mean) ** 2 for p, z in zip(shares, updates, strict=True))

    assert laws.aggregate_variance(on_tree(case), updates) <= multinomial / cohort_size


def random_fraction(generator: np.random.Generator, low: int, high: int) -> Fraction:
    return Fraction(int(generator.integers(low, high)), int(generator.integers(1, 10**6)))


def potential(phi: Fraction, mean: Fraction, variance: Fraction) -> Fraction:
    """g = phi E[L^2] - phi^2 Var(L)."""
    return phi * (variance + mean**2) - phi**2 * variance


def test_the_algebra_of_the_proof() -> None:
    """docs/explanation/tournament.md: what a merge takes from the potential, in fractions.

    Both sides are rational functions of degree below 12 in six numbers, each out of 10^6 values:
    two that differ agree on 300 random points with a chance below (12 / 10^6)^300.
    """
    generator = rng(11)
    for _ in range(300):
        a = Fraction(int(generator.integers(1, 10**6)), 10**6)
        b = Fraction(int(generator.integers(1, 10**6)), 10**6)
        mx, my = (random_fraction(generator, -(10**6), 10**6) for _ in range(2))
        vx, vy = (random_fraction(generator, 0, 10**6) for _ in range(2))
        s, big_a, big_b = a + b, 1 - a, 1 - b
        alpha = big_a / (big_a + big_b)
        stays = a / s if s <= 1 else alpha
        v = a * b if s <= 1 else big_a * big_b
        phi = s if s <= 1 else s - 1
        mean = stays * mx + (1 - stays) * my
        variance = stays * (vx + mx**2) + (1 - stays) * (vy + my**2) - mean**2
        apart = vx + vy + (mx - my) ** 2

        lost = potential(a, mx, vx) + potential(b, my, vy) - v * apart
        lost -= potential(phi, mean, variance)

        beta = 1 - alpha
        above = (beta * mx + alpha * my) ** 2 + 2 * phi * alpha * beta * (mx - my) ** 2
        assert lost == (0 if s <= 1 else above)


def test_the_example_of_the_page() -> None:
    """docs/explanation/tournament.md: sizes 3, 3, 2, 1, 1 on ((A, B), (C, (D, E)))."""
    merges = np.array([[0, 1], [3, 4], [2, 6], [5, 7]])
    design = on_tree((Population([3, 3, 2, 1, 1]), 2, merges))

    assert partition(design.tree.groups) == {frozenset([0]), frozenset([1]), frozenset([2, 3, 4])}
    assert design.inclusion_probability().tolist() == [0.6, 0.6, 0.4, 0.2, 0.2]
    assert {counts[0] + counts[1] for counts in laws.law(design)} == {1, 2}
    assert {counts[3] + counts[4] for counts in laws.law(design)} == {0, 1}


def test_a_smaller_variance_of_the_weights_is_not_a_smaller_variance_of_the_aggregate() -> None:
    """Strata {A, i}, {i, B}, updates -1, 0, 1: m^2 V is 1/2 with independent draws, 1 here."""
    population, updates = Population([1, 2, 1]), [[-1], [0], [1]]
    design = TournamentDesign(population, 2, updates, rng=rng())
    independent = laws.independent_rows([[1, 1, 0], [0, 1, 1]], 2)

    def variance(outcomes: laws.Law, of: Callable[[Counts], int]) -> Fraction:
        mean = sum(p * of(c) for c, p in outcomes.items())
        return sum((p * (of(c) - mean) ** 2 for c, p in outcomes.items()), Fraction(0))

    def total(counts: Counts) -> int:
        return counts[2] - counts[0]

    middle = (lambda counts: counts[1], lambda counts: counts[0])
    for of in middle:
        assert variance(laws.law(design), of) <= variance(independent, of)
    assert variance(laws.law(design), total) == 1
    assert variance(independent, total) == Fraction(1, 2)
    assert variance({(1, 0, 1): Fraction(1, 2), (0, 2, 0): Fraction(1, 2)}, total) == 0
    assert design.aggregate_variance(updates) * 4 == 1.0


def test_duels_chosen_from_outcomes_may_be_worse_than_multinomial_sampling() -> None:
    """Four clients at +1, four at -1, a quarter each, m = 2: multinomial sampling has m^2 V = 2.

    Opposites meet, then the four that are left meet an opposite where there is one.
    """
    second_moment = Fraction(0)
    for live in product((-1, 1), repeat=4):
        ups = live.count(1)
        opposites = min(ups, 4 - ups)  # pairs of opposites: a fair coin each
        certain = (live.count(1) - live.count(-1)) // 2  # pairs of equals: no choice
        for coins in product((-1, 1), repeat=opposites):
            second_moment += Fraction((certain + sum(coins)) ** 2, 16 * 2**opposites)

    assert second_moment == Fraction(9, 4)


# The aggregate's variance


@given(cases(), st.data())
def test_the_aggregate_variance_is_that_of_the_enumerated_law(
    case: Case, data: st.DataObject
) -> None:
    design, n = on_tree(case), case[0].n_clients
    update = st.lists(st.integers(-5, 5), min_size=2, max_size=2)
    updates = data.draw(st.lists(update, min_size=n, max_size=n))

    exact = float(laws.aggregate_variance(design, updates))

    # V is at most the largest squared distance, 200.
    assert abs(design.aggregate_variance(updates) - exact) <= 200 * ROUNDING


@pytest.mark.parametrize("tree", ["exact", "vector", "bisecting"])
@pytest.mark.parametrize("cohort_size", [3, 10, 60, 100])
def test_the_aggregate_variance_is_the_quadratic_form_of_the_covariance(
    tree: Any, cohort_size: int
) -> None:
    """Sums of n^2 d terms of both signs: an error of 2^-53 (n + d) of what they add up to."""
    updates = rng(5).normal(size=(100, 8))
    design = TournamentDesign(Population(CIFAR_SIZES), cohort_size, updates, tree=tree, rng=rng())
    others = rng(6).normal(size=(100, 8))

    covariance = design.weight_covariance()

    form = np.einsum("id,ij,jd->", others, covariance, others)
    size = np.einsum("id,ij,jd->", abs(others), abs(covariance), abs(others))
    assert abs(design.aggregate_variance(others) - form) <= 2.0**-53 * 200 * size


def test_equal_updates_have_no_variance() -> None:
    design = TournamentDesign(Population(CIFAR_SIZES), 10, rng(1).normal(size=(100, 3)), rng=rng())

    assert design.aggregate_variance(np.zeros((100, 5))) == 0.0
    # Means of ones are ones up to a hundred roundings, squared.
    assert design.aggregate_variance(np.ones((100, 5))) <= 5 * (100 * 2.0**-53) ** 2


@pytest.mark.parametrize("exponent", [-400, 400])
def test_the_aggregate_variance_scales_with_the_square_of_the_updates(exponent: int) -> None:
    """Powers of two: no digit may change."""
    updates = rng(1).normal(size=(100, 3))
    design = TournamentDesign(Population(CIFAR_SIZES), 10, updates, rng=rng())

    scaled = design.aggregate_variance(2.0**exponent * updates)

    assert scaled * 2.0**-exponent * 2.0**-exponent == design.aggregate_variance(updates)


@pytest.mark.parametrize("scale", [1e150, 1e-150, 1e-200])
@pytest.mark.parametrize("measure", ["arccos", "l2"])
@pytest.mark.parametrize("tree", ["exact", "vector", "bisecting"])
def test_the_unit_of_the_updates_changes_no_tree(tree: Any, measure: Any, scale: float) -> None:
    """Three directions, two clients each, told apart at any scale."""
    directions = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [-1, 0], [-1, 0.1]])

    design = TournamentDesign(
        Population([1] * 6), 3, scale * directions, tree=tree, measure=measure, rng=rng()
    )

    assert (design.draw_many(50, rng()).toarray().reshape(50, 3, 2).sum(axis=2) == 1).all()
    assert math.isfinite(design.aggregate_variance(scale * directions))


def test_a_common_shift_of_the_updates_costs_no_precision() -> None:
    """A shift by 2^30 leaves 22 binary digits behind the point of updates around 1."""
    updates = rng(1).normal(size=(100, 3)).astype(np.float32).astype(np.float64)
    design = TournamentDesign(Population(CIFAR_SIZES), 10, updates, rng=rng())
    variance = design.aggregate_variance(updates)

    shifted = design.aggregate_variance(updates + 2.0**30)

    assert shifted == pytest.approx(variance, rel=100 * 2.0**-22)


# Equal to other designs


def test_with_m_groups_of_one_share_each_it_is_algorithm_2_and_target() -> None:
    """Ten kinds of clients, two of each, equal sizes, ten draws: one of each kind."""
    kinds = rng(3).permutation(np.repeat(np.arange(10), 2))
    population, updates = Population([5] * 20), np.eye(10)[kinds]

    expected = laws.law(SimilarityClusteredDesign(population, 10, updates, rng=rng()))

    assert len(expected) == 2**10
    assert laws.law(TargetDesign(population, 10, kinds.tolist(), rng=rng())) == expected
    for tree in ("exact", "vector", "bisecting"):
        design = TournamentDesign(population, 10, updates, tree=tree, rng=rng())
        assert laws.law(design) == expected
    design = TournamentDesign(population, 10, groups=kinds.tolist(), rng=rng())
    assert laws.law(design) == expected


def test_all_clients_are_drawn_where_all_are_asked_for() -> None:
    design = TournamentDesign(Population([3] * 7), 7, rng(1).normal(size=(7, 2)), rng=rng())

    assert (design.draw_many(20, rng()).toarray() == 1).all()
    assert (design.weight_covariance() == 0).all()
    assert design.aggregate_variance(rng(2).normal(size=(7, 2))) == 0.0


def test_one_draw_is_a_multinomial_draw() -> None:
    population = Population([4, 0, 2, 1])
    design = TournamentDesign(population, 1, np.eye(4), rng=rng())

    assert laws.law(design) == laws.law(MultinomialDesign(population, 1))
    assert drawn_law(design) == laws.law(design)


@pytest.mark.parametrize(("sizes", "m"), [([2**62, 1, 1], 1), ([2**60, 2**60, 3, 5], 2)])
def test_totals_may_fill_63_bits(sizes: list[int], m: int) -> None:
    population = Population(sizes)
    design = TournamentDesign(population, m, np.eye(len(sizes)), rng=rng())

    assert design.draw(rng()).counts.sum() == m
    assert laws.moments(design).mean_weights == laws.importance(population)


def test_the_recipe_builds_it_from_the_memory() -> None:
    memory = UpdateMemory.of(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]]))
    recipe = Tournament(2, tree="bisecting", measure="l2")
    design = recipe.build(Population([1] * 4), memory=memory, rng=rng())

    assert isinstance(design, TournamentDesign)
    assert design.tree.whole is None
    # Without a memory all updates are zero.
    assert isinstance(recipe.build(Population([1] * 4), rng=rng()), TournamentDesign)
