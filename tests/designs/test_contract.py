"""The contract of all designs: a new design joins it by adding one row to DESIGNS."""

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

import laws
from fedcohort import (
    AutoDesign,
    BalancedDesign,
    CohortMeanDesign,
    DeadlineDesign,
    Design,
    DivFLDesign,
    FirstRespondersDesign,
    MultinomialDesign,
    NormOptimalDesign,
    OortDesign,
    PoissonDesign,
    Population,
    PowerOfChoiceDesign,
    RoundRobinDesign,
    RowDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    StratifiedDesign,
    TargetDesign,
    TournamentDesign,
    UniformDesign,
    diagnostics,
)
from fedcohort.errors import DesignError
from fedcohort.similarity import MergeTree
from frequencies import FALSE_ALARM, agree, follows_law
from populations import CIFAR_SIZES, cohort_sizes, populations, random_merges, rng


@dataclass(frozen=True)
class Row:
    """One design of the contract."""

    name: str
    build: Callable[[Population, int, np.random.Generator], Design]
    #: Needs at least as many clients of positive size as draws.
    distinct: bool = False
    #: Draws exactly cohort_size times in every round.
    fixed_size: bool = True
    #: Chances are floats, so that the enumerated law's means hold up to rounding.
    in_floats: bool = False
    #: Draws slowly: statistical tests draw so many times fewer cohorts, and see biases that are
    #: larger by this number's root.
    thinner: int = 1


def some_updates(population: Population, generator: np.random.Generator) -> np.ndarray:
    """Small integers: identical, proportional and zero updates all come up."""
    return generator.integers(-1, 2, size=(population.n_clients, 2)).astype(np.float32)


def some_groups(population: Population, generator: np.random.Generator) -> list[int]:
    groups: list[int] = generator.integers(3, size=population.n_clients).tolist()
    return groups


def some_strata(population: Population, m: int, generator: np.random.Generator) -> list[int]:
    """Three groups, or as many as there are draws."""
    n_groups = int(m) if m in (1, 2) else 3
    return [group % n_groups for group in some_groups(population, generator)]


def some_signal(population: Population, generator: np.random.Generator) -> np.ndarray:
    """Small positive numbers of seconds, losses or norms: ties come up."""
    return generator.integers(1, 5, size=population.n_clients).astype(float)


def some_past(population: Population, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """About half of the clients were drawn before round 4."""
    names = ("past_loss", "past_duration", "past_round")
    past = {name: some_signal(population, generator) - (name == names[2]) for name in names}
    is_new = generator.random(population.n_clients) < 0.5
    return {name: np.where(is_new, np.nan, values) for name, values in past.items()}


def some_tree(population: Population, generator: np.random.Generator) -> MergeTree:
    n = population.n_clients
    return MergeTree(random_merges(n, generator), np.zeros(n - 1))


DESIGNS = [
    Row("uniform", lambda p, m, g: UniformDesign(p, m), distinct=True),
    Row("uniform, unbiased", lambda p, m, g: UniformDesign(p, m, unbiased=True), distinct=True),
    Row("multinomial", lambda p, m, g: MultinomialDesign(p, m)),
    Row("poisson", lambda p, m, g: PoissonDesign(p, m), distinct=True, fixed_size=False),
    Row("size", lambda p, m, g: SizeClusteredDesign(p, m, rng=g)),
    Row(
        "size, whole rows first",
        lambda p, m, g: SizeClusteredDesign(p, m, whole_rows_first=True, rng=g),
    ),
    Row(
        "similarity",
        lambda p, m, g: SimilarityClusteredDesign(p, m, some_updates(p, g), rng=g),
    ),
    Row(
        "similarity, published code",
        lambda p, m, g: SimilarityClusteredDesign(
            p, m, some_updates(p, g), reading="rows-as-points", rng=g
        ),
    ),
    Row("target", lambda p, m, g: TargetDesign(p, m, some_groups(p, g), rng=g)),
    Row("auto", lambda p, m, g: AutoDesign(p, m, some_updates(p, g), rng=g)),
    Row(
        "balanced",
        lambda p, m, g: BalancedDesign(p, m, some_updates(p, g), rng=g),
        in_floats=True,
        thinner=20,
    ),
    Row(
        "balanced, one representative a draw",
        lambda p, m, g: BalancedDesign(p, m, some_updates(p, g), representatives=1, rng=g),
        in_floats=True,
        thinner=10,
    ),
    Row(
        "tournament",
        lambda p, m, g: TournamentDesign(p, m, some_updates(p, g), rng=g),
    ),
    Row(
        "tournament, vector tree",
        lambda p, m, g: TournamentDesign(p, m, some_updates(p, g), tree="vector", rng=g),
    ),
    Row(
        "tournament, bisecting tree",
        lambda p, m, g: TournamentDesign(p, m, some_updates(p, g), tree="bisecting", rng=g),
    ),
    Row(
        "tournament, groups",
        lambda p, m, g: TournamentDesign(p, m, groups=some_groups(p, g), rng=g),
    ),
    Row(
        "tournament, given tree",
        lambda p, m, g: TournamentDesign(p, m, tree=some_tree(p, g), rng=g),
    ),
    Row(
        "norm-optimal",
        lambda p, m, g: NormOptimalDesign(p, m, some_signal(p, g)),
        distinct=True,
        fixed_size=False,
        in_floats=True,
    ),
    Row(
        "norm-optimal, approximate",
        lambda p, m, g: NormOptimalDesign(p, m, some_signal(p, g), approximate=True),
        distinct=True,
        fixed_size=False,
        in_floats=True,
    ),
    Row(
        "stratified",
        lambda p, m, g: StratifiedDesign(p, m, some_strata(p, m, g), rng=g),
    ),
    Row(
        "stratified, neyman",
        lambda p, m, g: StratifiedDesign(
            p, m, some_strata(p, m, g), allocation="neyman", updates=some_updates(p, g), rng=g
        ),
    ),
    Row("first", lambda p, m, g: FirstRespondersDesign(p, m, some_signal(p, g), rng=g), True),
    Row("deadline", lambda p, m, g: DeadlineDesign(p, m, some_signal(p, g), rng=g), True),
    Row(
        "power-of-choice",
        lambda p, m, g: PowerOfChoiceDesign(p, m, some_signal(p, g), rng=g),
        distinct=True,
    ),
    Row("divfl", lambda p, m, g: DivFLDesign(p, m, some_updates(p, g), rng=g), distinct=True),
    Row("cohort-mean", lambda p, m, g: CohortMeanDesign(p, m, rng=g), distinct=True),
    Row("round-robin", lambda p, m, g: RoundRobinDesign(p, m, round_=3), distinct=True),
    Row(
        "oort",
        lambda p, m, g: OortDesign(p, m, some_past(p, g), round_=4, rng=g),
        distinct=True,
    ),
]

every_design = pytest.mark.parametrize("row", DESIGNS, ids=lambda row: row.name)

#: Fewer than a thousand roundings of 2^-53 stand between any exact number below and its float.
ROUNDING = 1000 * 2.0**-53


def close(value: float, exact: Fraction, scale: float = 1.0) -> bool:
    return abs(value - float(exact)) <= ROUNDING * max(scale, abs(float(exact)))


def same(row: Row, means: list[Fraction], shares: list[Fraction]) -> bool:
    """Compare fractions: exactly, but where the design's chances are floats."""
    if not row.in_floats:
        return means == shares
    return all(close(float(mean), share) for mean, share in zip(means, shares, strict=True))


def build(row: Row, population: Population, cohort_size: int, seed: int = 0) -> Design:
    assume(not row.distinct or cohort_size <= np.count_nonzero(population.sizes))
    return row.build(population, cohort_size, rng(seed))


seeds = st.integers(0, 2**32 - 1)


@every_design
@given(population=populations(), cohort_size=cohort_sizes(), seed=seeds)
def test_the_mean_weight_is_the_importance_where_the_design_claims_it(
    row: Row, population: Population, cohort_size: int, seed: int
) -> None:
    design = build(row, population, cohort_size, seed)
    exact = laws.moments(design)
    shares = laws.importance(population)

    assert not design.unbiased or same(row, exact.mean_weights, shares)
    assert not design.unbiased or (diagnostics.bias(design) == 0).all()
    for bias, mean, share in zip(diagnostics.bias(design), exact.mean_weights, shares, strict=True):
        assert close(bias, mean - share)


@every_design
@given(population=populations(), cohort_size=cohort_sizes(), seed=seeds)
def test_the_moments_equal_those_of_the_enumerated_law(
    row: Row, population: Population, cohort_size: int, seed: int
) -> None:
    design = build(row, population, cohort_size, seed)
    exact = laws.moments(design)
    expected, variance = design.expected_counts, diagnostics.weight_variance(design)
    inclusion, most = diagnostics.inclusion_probability(design), diagnostics.max_count(design)

    assert most.tolist() == exact.max_count
    for i in range(population.n_clients):
        assert close(expected[i], exact.expected_counts[i])
        assert close(variance[i], exact.weight_covariance[i][i])
        assert close(inclusion[i], exact.inclusion[i])
    assert close(diagnostics.expected_distinct(design), sum(exact.inclusion, Fraction(0)))
    if not design.exact_moments:
        return
    covariance = diagnostics.weight_covariance(design)
    for i in range(population.n_clients):
        for j in range(population.n_clients):
            assert close(covariance[i, j], exact.weight_covariance[i][j])


@every_design
@given(population=populations(), cohort_size=cohort_sizes(), seed=seeds, data=st.data())
def test_the_aggregate_variance_equals_that_of_the_enumerated_law(
    row: Row, population: Population, cohort_size: int, seed: int, data: st.DataObject
) -> None:
    design = build(row, population, cohort_size, seed)
    n = population.n_clients
    column = st.lists(st.integers(-5, 5), min_size=n, max_size=n)
    updates = list(zip(data.draw(column), data.draw(column), strict=True))
    if not design.exact_moments:
        with pytest.raises(DesignError, match=r"Use diagnostics.estimated_aggregate_variance"):
            diagnostics.aggregate_variance(design, updates)
        with pytest.raises(DesignError, match=r"Use weight_variance, or"):
            diagnostics.weight_covariance(design)
        return

    variance = diagnostics.aggregate_variance(design, updates)

    # Weights reach n (unbiased uniform), updates 5: no intermediate number exceeds the scale.
    exact = laws.aggregate_variance(design, [list(update) for update in updates])
    assert close(variance, exact, scale=50.0 * n * n)


@every_design
def test_cohorts_follow_the_enumerated_law(row: Row) -> None:
    """False alarms: 1e-6 a design. Sees every bias of 5 % in a client's size; see below."""
    design = row.build(Population([7, 4, 4, 0, 1]), 3, rng(1))

    assert follows_law(design.draw_many(rng(2), 100_000 // row.thinner), laws.law(design))


@every_design
def test_the_estimated_aggregate_variance_is_that_of_the_enumerated_law(row: Row) -> None:
    """False alarms: 1e-6 a design, two-sided. Sees V that is 10 % off."""
    population, updates = Population([7, 4, 4, 0, 1]), [[3, 1], [-1, 2], [0, -4], [9, 9], [2, 0]]
    design = row.build(population, 3, rng(1))

    estimate = diagnostics.estimated_aggregate_variance(
        design, updates, rng=rng(2), rounds=60_000 // row.thinner
    )

    exact = float(laws.aggregate_variance(design, updates))
    assert estimate.standard_error < 0.1 * exact / norm.isf(FALSE_ALARM / 2)
    # Where the cohort is certain, only rounding is left.
    bound = norm.isf(FALSE_ALARM / 2) * estimate.standard_error + ROUNDING * exact
    assert abs(estimate.value - exact) <= bound


def test_the_statistical_test_sees_a_size_that_is_five_percent_off() -> None:
    right = MultinomialDesign(Population([700, 400, 400, 0, 100]), 3)
    off = MultinomialDesign(Population([735, 400, 400, 0, 100]), 3)

    assert not follows_law(off.draw_many(rng(2), 100_000), laws.law(right))


@every_design
def test_a_hundred_clients_are_drawn_as_often_as_expected(row: Row) -> None:
    """False alarms: 1e-6 a design, Bonferroni over the clients.

    The bound lies at 5.7 deviations. The smallest client comes 0.0206 times a round, 14,430 times
    in all, give or take 119: a bias of 4.7 % is seen in it, and one of 1.4 % in the largest.
    Where the design is thinned, 1,750 rounds are the fewest: the smallest client then comes 36
    times, and the binomial law's tails, heavier than the normal ones, make it 4e-6 a design.
    """
    design = row.build(Population(CIFAR_SIZES), 10, rng(3))
    rounds = 700_000 // row.thinner**2

    counts = design.draw_many(rng(4), rounds).sum(axis=0)

    weight = np.where(design.weight_per_draw > 0, design.weight_per_draw, np.inf)
    deviation = np.sqrt(rounds * diagnostics.weight_variance(design)) / weight
    assert agree(counts.astype(float), rounds * design.expected_counts, deviation)


@every_design
@given(population=populations(6), cohort_size=cohort_sizes(6), seed=seeds)
def test_a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula(
    row: Row, population: Population, cohort_size: int, seed: int
) -> None:
    design = build(row, population, cohort_size, seed)

    cohort = design.draw(rng(seed))

    assert (np.diff(cohort.clients) > 0).all()
    assert (cohort.counts >= 1).all()
    assert (population.sizes[cohort.clients] > 0).all()
    assert not row.fixed_size or cohort.counts.sum() == cohort_size
    weights = design.weight_per_draw[cohort.clients] * cohort.counts
    np.testing.assert_allclose(cohort.weights, weights, rtol=ROUNDING)
    assert cohort.residual == pytest.approx(1 - weights.sum(), abs=ROUNDING * population.n_clients)


@every_design
def test_the_weight_per_draw_is_zero_exactly_where_the_size_is(row: Row) -> None:
    design = row.build(Population([3, 0, 2, 0]), 2, rng())

    assert (design.weight_per_draw[[1, 3]] == 0).all()
    assert (design.weight_per_draw[[0, 2]] > 0).all()


@every_design
def test_the_same_generator_gives_the_same_cohort_and_many_draws_are_draws(row: Row) -> None:
    design = row.build(Population([5, 3, 2, 2, 7]), 3, rng())
    generator = rng(5)

    many = design.draw_many(rng(5), 6)
    cohorts = [design.draw(generator) for _ in range(6)]

    assert many.shape == (6, 5)
    assert many.dtype.kind == "i"
    for round_, cohort in enumerate(cohorts):
        counts = np.zeros(5, dtype=int)
        counts[cohort.clients] = cohort.counts
        assert many.toarray()[round_].tolist() == counts.tolist()


@every_design
def test_no_round_gives_an_empty_matrix(row: Row) -> None:
    design = row.build(Population([5, 3, 2]), 2, rng())

    assert design.draw_many(rng(), 0).shape == (0, 3)


@every_design
def test_building_and_drawing_leave_global_state_and_arguments_alone(row: Row) -> None:
    sizes = np.array([5, 3, 2, 2])
    population = Population(sizes)
    numpy_state, python_state = pickle.dumps(np.random.get_state()), random.getstate()

    row.build(population, 2, rng()).draw_many(rng(), 10)

    assert pickle.dumps(np.random.get_state()) == numpy_state
    assert random.getstate() == python_state
    assert sizes.tolist() == population.sizes.tolist() == [5, 3, 2, 2]


@every_design
@pytest.mark.parametrize("cohort_size", [1, 3, 4, 7])
def test_cohorts_may_be_one_client_all_clients_or_more_draws_than_clients(
    row: Row, cohort_size: int
) -> None:
    population = Population([5, 3, 0, 2])
    if row.distinct and cohort_size > 3:
        with pytest.raises(DesignError, match="at most the 3 clients of positive size; got"):
            row.build(population, cohort_size, rng())
        return
    design = row.build(population, cohort_size, rng())

    counts = design.draw_many(rng(), 50).sum(axis=1)

    assert not row.fixed_size or (counts == cohort_size).all()
    shares = laws.importance(population)
    assert not design.unbiased or same(row, laws.moments(design).mean_weights, shares)


@every_design
def test_sizes_may_differ_by_nine_orders_of_magnitude(row: Row) -> None:
    population = Population([1, 10**9, 1, 10**5])
    design = row.build(population, 2, rng())

    shares = laws.importance(population)
    assert not design.unbiased or same(row, laws.moments(design).mean_weights, shares)
    assert np.isfinite(diagnostics.weight_variance(design)).all()
    assert not design.exact_moments or np.isfinite(diagnostics.weight_covariance(design)).all()


@every_design
def test_a_single_client_is_always_the_cohort(row: Row) -> None:
    design = row.build(Population([4]), 1, rng())

    cohort = design.draw(rng())

    assert (cohort.clients.tolist(), cohort.weights.tolist()) == ([0], [1.0])
    assert diagnostics.weight_variance(design).tolist() == [0.0]
    updates = [[3.0, -2.0]]
    nothing = diagnostics.estimated_aggregate_variance(design, updates, rng=rng(), rounds=2)
    assert nothing == diagnostics.Estimate(0.0, 0.0)
    assert not design.exact_moments or diagnostics.aggregate_variance(design, updates) == 0.0


@every_design
@pytest.mark.parametrize("cohort_size", [0, -1, 1.5, "3", None, True])
def test_a_cohort_size_that_is_no_positive_whole_number_is_refused(
    row: Row, cohort_size: int
) -> None:
    with pytest.raises(DesignError, match=r"cohort_size must be a whole number of at least 1; got"):
        row.build(Population([1, 2]), cohort_size, rng())


@every_design
def test_a_line_of_units_that_leaves_63_bits_is_refused(row: Row) -> None:
    population = Population([2**61, 2**60, 1, 1])

    with pytest.raises(DesignError, match=r"cohort_size \* total must be less than 2\^63; got 3"):
        row.build(population, 3, rng())


def test_a_line_of_exactly_2_to_the_63_units_is_refused() -> None:
    with pytest.raises(DesignError, match=r"less than 2\^63; got 2 \* 4611686018427387904"):
        MultinomialDesign(Population([2**62]), 2)


def test_a_cohort_that_fits_no_memory_is_refused() -> None:
    with pytest.raises(DesignError, match=r"cohort_size must be at most 10000000; got 10000001"):
        MultinomialDesign(Population([1, 2]), 10_000_001)


def test_a_list_of_sizes_is_no_population() -> None:
    with pytest.raises(DesignError, match=r"population must be a Population; got list"):
        MultinomialDesign([1, 2], 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("cohort_size", [6, 7, 13])
def test_the_residual_of_equal_shares_is_exactly_zero(cohort_size: int) -> None:
    """1 - sum of 1/m is not zero in floats for these."""
    design = SizeClusteredDesign(Population([1] * cohort_size), cohort_size, rng=rng())

    assert design.draw(rng()).residual == 0.0


@pytest.mark.parametrize("sizes", [[10**9, 1], [10**12, 1, 1], [2**60, 1], [10**15, 1, 1]])
def test_small_moments_keep_their_digits(sizes: list[int]) -> None:
    """Relative to their own size, not to 1: a client of 1e-15 counts as well."""
    for row in DESIGNS:
        if row.distinct:
            continue
        design = row.build(Population(sizes), 2, rng())
        exact = laws.moments(design)
        variance = [float(row_[i]) for i, row_ in enumerate(exact.weight_covariance)]

        np.testing.assert_allclose(diagnostics.weight_variance(design), variance, rtol=1e-12)
        np.testing.assert_allclose(
            diagnostics.inclusion_probability(design), list(map(float, exact.inclusion)), rtol=1e-12
        )


@every_design
def test_updates_that_do_not_fit_the_population_are_refused(row: Row) -> None:
    design = row.build(Population([1, 2]), 1, rng())

    with pytest.raises(DesignError, match=r"shape \(2, dimension\).*got float64 of shape \(3, 1\)"):
        diagnostics.aggregate_variance(design, [[1.0], [2.0], [3.0]])
    with pytest.raises(DesignError, match=r"client 1 sent 1 other values"):
        diagnostics.aggregate_variance(design, [[1.0], [np.nan]])


@every_design
def test_draws_need_a_generator_and_a_number_of_rounds(row: Row) -> None:
    design = row.build(Population([1, 2]), 1, rng())

    with pytest.raises(DesignError, match=r"rng must be a numpy.random.Generator; got int"):
        design.draw(0)  # type: ignore[arg-type]
    for rounds in (-1, 1.5, "3"):
        with pytest.raises(DesignError, match=r"rounds must be a whole number of at least 0; got"):
            design.draw_many(rng(), rounds)  # type: ignore[arg-type]


TIED = [
    ("size", lambda p, g: SizeClusteredDesign(p, 2, rng=g)),
    ("similarity", lambda p, g: SimilarityClusteredDesign(p, 2, np.zeros((6, 3)), rng=g)),
    ("target", lambda p, g: TargetDesign(p, 2, [0] * 6, rng=g)),
]


@pytest.mark.parametrize(("name", "make"), TIED, ids=[name for name, _ in TIED])
def test_equal_clients_share_a_row_equally_often(
    name: str, make: Callable[[Population, np.random.Generator], RowDesign]
) -> None:
    """Relabelling leaves the law unchanged: six equal clients, all 15 pairs alike.

    In one row of three with a given client are 2 of the 5 others. False alarms: 1e-6; sees a pair
    whose chance is off by .04.
    """
    times = 5000
    together = np.zeros((6, 6))
    for seed in range(times):
        rows = make(Population([1] * 6), rng(seed)).plan.units.toarray() > 0
        together += rows.T.astype(float) @ rows
    pairs = together[np.triu_indices(6, 1)]

    deviation = np.full(15, np.sqrt(times * 0.4 * 0.6))
    assert agree(pairs, np.full(15, 0.4 * times), deviation)


ZEROS = np.zeros((6, 3))
TIED_TOURNAMENTS: list[tuple[str, Callable[[Population, np.random.Generator], Design]]] = [
    ("exact", lambda p, g: TournamentDesign(p, 2, ZEROS, rng=g)),
    ("vector", lambda p, g: TournamentDesign(p, 2, ZEROS, tree="vector", rng=g)),
    ("bisecting", lambda p, g: TournamentDesign(p, 2, ZEROS, tree="bisecting", rng=g)),
    ("groups", lambda p, g: TournamentDesign(p, 2, groups=[0] * 6, rng=g)),
]


@pytest.mark.parametrize(
    ("name", "make"), TIED_TOURNAMENTS, ids=[name for name, _ in TIED_TOURNAMENTS]
)
def test_equal_clients_come_together_equally_often(
    name: str, make: Callable[[Population, np.random.Generator], Design]
) -> None:
    """Six equal clients, two draws, a new tree each time: all 15 pairs alike.

    False alarms: 1e-6; sees a pair whose chance, 1/15, is off by .02.
    """
    times = 5000
    together = np.zeros((6, 6))
    for seed in range(times):
        generator = rng(seed)
        cohort = make(Population([1] * 6), generator).draw(generator)
        together[cohort.clients[0], cohort.clients[-1]] += 1
    pairs = together[np.triu_indices(6, 1)]

    assert pairs.sum() == times
    assert agree(pairs, np.full(15, times / 15), np.full(15, np.sqrt(times * 14) / 15))
