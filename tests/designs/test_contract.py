"""The contract of all designs: a new design joins it by adding one row to DESIGNS."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import laws
from fedcohort import Design, Population
from fedcohort.designs import (
    RECIPES,
    AutoDesign,
    BalancedDesign,
    CohortMeanDesign,
    DeadlineDesign,
    DivFLDesign,
    FirstRespondersDesign,
    HiCSDesign,
    KVibDesign,
    MultinomialDesign,
    NormOptimalDesign,
    OortDesign,
    OSMDDesign,
    PoissonDesign,
    PowerOfChoiceDesign,
    Recipe,
    RoundRobinDesign,
    RowDesign,
    ShuffledDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    StratifiedDesign,
    TargetDesign,
    TournamentDesign,
    UniformDesign,
)
from fedcohort.errors import DesignError
from fedcohort.similarity import MergeTree
from fedcohort.testing import EVERYWHERE, OF_RECIPES, ONCE, Candidate, agree, follows_law
from fedcohort.testing.contract import (
    a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula,
    a_hundred_clients_are_drawn_as_often_as_expected,
    build_from_recipe,
)
from fedcohort.testing.laws import Builder
from populations import cohort_sizes, populations, random_merges, rng


def row(
    name: str,
    build: Builder,
    distinct: bool = False,
    *,
    fixed_size: bool = True,
    in_floats: bool = False,
    thinner: int = 1,
) -> Candidate:
    """One design of the contract, with its law from ``laws``."""
    return Candidate(name, build, laws.law, distinct, fixed_size, in_floats, thinner)


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


def some_biases(population: Population, generator: np.random.Generator) -> np.ndarray:
    """Small numbers for three classes: identical and zero biases come up."""
    return generator.integers(-1, 2, size=(population.n_clients, 3)) / 100


def some_new(biases: np.ndarray) -> np.ndarray:
    """The same, but every other client was never heard."""
    is_new = np.arange(len(biases)) % 2 == 0
    return np.where(is_new[:, None], np.nan, biases)


def some_tree(population: Population, generator: np.random.Generator) -> MergeTree:
    n = population.n_clients
    return MergeTree(random_merges(n, generator), np.zeros(n - 1))


DESIGNS = [
    row("osmd", lambda p, m, g: OSMDDesign(p, m, some_signal(p, g))),
    row(
        "k-vib",
        lambda p, m, g: KVibDesign(p, m, some_signal(p, g), mix=0.25),
        distinct=True,
        fixed_size=False,
    ),
    row("hics", lambda p, m, g: HiCSDesign(p, m, some_biases(p, g)), distinct=True),
    row(
        "hics, warm-up",
        lambda p, m, g: HiCSDesign(p, m, some_new(some_biases(p, g))),
        distinct=True,
        fixed_size=False,
    ),
    row("uniform", lambda p, m, g: UniformDesign(p, m), distinct=True),
    row("uniform, unbiased", lambda p, m, g: UniformDesign(p, m, unbiased=True), distinct=True),
    row("multinomial", lambda p, m, g: MultinomialDesign(p, m)),
    row("poisson", lambda p, m, g: PoissonDesign(p, m), distinct=True, fixed_size=False),
    row("size", lambda p, m, g: SizeClusteredDesign(p, m, rng=g)),
    row(
        "size, whole rows first",
        lambda p, m, g: SizeClusteredDesign(p, m, whole_rows_first=True, rng=g),
    ),
    row(
        "similarity",
        lambda p, m, g: SimilarityClusteredDesign(p, m, some_updates(p, g), rng=g),
    ),
    row("target", lambda p, m, g: TargetDesign(p, m, some_groups(p, g), rng=g)),
    row("auto", lambda p, m, g: AutoDesign(p, m, some_updates(p, g), rng=g)),
    row(
        "balanced",
        lambda p, m, g: BalancedDesign(p, m, some_updates(p, g), rng=g),
        in_floats=True,
        thinner=20,
    ),
    row(
        "balanced, one representative a draw",
        lambda p, m, g: BalancedDesign(p, m, some_updates(p, g), representatives=1, rng=g),
        in_floats=True,
        thinner=10,
    ),
    row(
        "tournament",
        lambda p, m, g: TournamentDesign(p, m, some_updates(p, g), rng=g),
    ),
    row(
        "tournament, vector tree",
        lambda p, m, g: TournamentDesign(p, m, some_updates(p, g), tree="vector", rng=g),
    ),
    row(
        "tournament, bisecting tree",
        lambda p, m, g: TournamentDesign(p, m, some_updates(p, g), tree="bisecting", rng=g),
    ),
    row(
        "tournament, groups",
        lambda p, m, g: TournamentDesign(p, m, groups=some_groups(p, g), rng=g),
    ),
    row(
        "tournament, given tree",
        lambda p, m, g: TournamentDesign(p, m, tree=some_tree(p, g), rng=g),
    ),
    row(
        "norm-optimal",
        lambda p, m, g: NormOptimalDesign(p, m, some_signal(p, g)),
        distinct=True,
        fixed_size=False,
        in_floats=True,
    ),
    row(
        "norm-optimal, approximate",
        lambda p, m, g: NormOptimalDesign(p, m, some_signal(p, g), approximate=True),
        distinct=True,
        fixed_size=False,
        in_floats=True,
    ),
    row(
        "stratified",
        lambda p, m, g: StratifiedDesign(p, m, some_strata(p, m, g), rng=g),
    ),
    row(
        "stratified, neyman",
        lambda p, m, g: StratifiedDesign(
            p, m, some_strata(p, m, g), allocation="neyman", updates=some_updates(p, g), rng=g
        ),
    ),
    row("first", lambda p, m, g: FirstRespondersDesign(p, m, some_signal(p, g), rng=g), True),
    row("deadline", lambda p, m, g: DeadlineDesign(p, m, some_signal(p, g), rng=g), True),
    row(
        "power-of-choice",
        lambda p, m, g: PowerOfChoiceDesign(p, m, some_signal(p, g), rng=g),
        distinct=True,
    ),
    row("divfl", lambda p, m, g: DivFLDesign(p, m, some_updates(p, g), rng=g), distinct=True),
    row("cohort-mean", lambda p, m, g: CohortMeanDesign(p, m, rng=g), distinct=True),
    row("round-robin", lambda p, m, g: RoundRobinDesign(p, m, round_=3), distinct=True),
    row(
        "round-robin, over a cycle",
        lambda p, m, g: RoundRobinDesign(p, m, round_=3).over_rounds(),
        distinct=True,
    ),
    row(
        "shuffled",
        lambda p, m, g: ShuffledDesign(p, m, round_=3, seed=int(g.integers(9))),
        distinct=True,
        fixed_size=False,
    ),
    row(
        "shuffled, over orders",
        lambda p, m, g: ShuffledDesign(p, m, round_=3).over_rounds(),
        distinct=True,
        fixed_size=False,
    ),
    row(
        "oort",
        lambda p, m, g: OortDesign(p, m, some_past(p, g), round_=4, rng=g),
        distinct=True,
    ),
]

every_design = pytest.mark.parametrize("candidate", DESIGNS, ids=lambda each: each.name)


seeds = st.integers(0, 2**32 - 1)


#: Clauses of ``ONCE`` that take seconds for some designs.
SLOW = [a_hundred_clients_are_drawn_as_often_as_expected]


def name_of(clause: Callable[..., None]) -> str:
    return clause.__name__


@every_design
@pytest.mark.parametrize("clause", EVERYWHERE, ids=name_of)
@given(population=populations(), cohort_size=cohort_sizes(), seed=seeds)
def test_on_any_population(
    candidate: Candidate,
    clause: Callable[[Candidate, Population, int, int], None],
    population: Population,
    cohort_size: int,
    seed: int,
) -> None:
    assume(candidate.fits(population, cohort_size))

    clause(candidate, population, cohort_size, seed)


@every_design
@given(population=populations(6), cohort_size=cohort_sizes(6), seed=seeds)
def test_cohorts_of_more_clients(
    candidate: Candidate, population: Population, cohort_size: int, seed: int
) -> None:
    assume(candidate.fits(population, cohort_size))

    a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula(
        candidate, population, cohort_size, seed
    )


@every_design
@pytest.mark.parametrize(
    "clause",
    [pytest.param(clause, marks=pytest.mark.slow if clause in SLOW else ()) for clause in ONCE],
    ids=name_of,
)
def test_once(candidate: Candidate, clause: Callable[[Candidate], None]) -> None:
    clause(candidate)


@pytest.mark.parametrize("kind", RECIPES.values(), ids=list(RECIPES))
@pytest.mark.parametrize("clause", OF_RECIPES, ids=name_of)
def test_recipes(kind: type[Recipe], clause: Callable[[Candidate, Recipe], None]) -> None:
    recipe = kind(3)

    clause(row(recipe.name, lambda p, m, g: build_from_recipe(recipe, p, m, g)), recipe)


def test_the_statistical_test_sees_a_size_that_is_five_percent_off() -> None:
    right = MultinomialDesign(Population([700, 400, 400, 0, 100]), 3)
    off = MultinomialDesign(Population([735, 400, 400, 0, 100]), 3)

    assert not follows_law(off.draw_many(100_000, rng(2)), laws.law(right))


def test_a_line_of_exactly_2_to_the_63_units_is_refused() -> None:
    with pytest.raises(DesignError, match=r"less than 2\^63; got 2 \* 4611686018427387904"):
        MultinomialDesign(Population([2**62]), 2)


def test_a_cohort_that_fits_no_memory_is_refused() -> None:
    with pytest.raises(DesignError, match=r"cohort_size must be at most 10\^7; got 10000001"):
        MultinomialDesign(Population([1, 2]), 10_000_001)


def test_a_list_of_sizes_is_no_population() -> None:
    with pytest.raises(DesignError, match=r"population must be a Population; got "):
        MultinomialDesign([1, 2], 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("cohort_size", [6, 7, 13])
def test_the_residual_of_equal_shares_is_exactly_zero(cohort_size: int) -> None:
    """1 - sum of 1/m is not zero in floats for these."""
    design = SizeClusteredDesign(Population([1] * cohort_size), cohort_size, rng=rng())

    assert design.draw(rng()).residual == 0.0


TIED = [
    ("size", lambda p, g: SizeClusteredDesign(p, 2, rng=g)),
    ("similarity", lambda p, g: SimilarityClusteredDesign(p, 2, np.zeros((6, 3)), rng=g)),
    ("target", lambda p, g: TargetDesign(p, 2, [0] * 6, rng=g)),
]


@pytest.mark.slow
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


@pytest.mark.slow
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
