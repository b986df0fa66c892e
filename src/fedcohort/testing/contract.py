"""The contract of all designs: lists of its clauses, those on recipes, and a check of them all."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs import Design, Recipe, recipe_of
from fedcohort.designs.signals import ASKED
from fedcohort.errors import DesignError
from fedcohort.memory import UpdateMemory
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.testing import clauses
from fedcohort.testing.laws import Candidate, Law, law_of_rows

rng = np.random.default_rng

#: Clauses for a design on any small population and cohort size.
EVERYWHERE: tuple[Callable[[Candidate, Population, int, int], None], ...] = (
    clauses.the_mean_weight_is_the_importance_where_the_design_claims_it,
    clauses.the_moments_are_those_of_the_enumerated_law,
    clauses.the_aggregate_variance_is_that_of_the_enumerated_law,
    clauses.a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula,
)
#: Clauses that are checked once per design.
ONCE: tuple[Callable[[Candidate], None], ...] = (
    clauses.sizes_may_differ_by_nine_orders_of_magnitude,
    clauses.small_moments_keep_their_digits,
    clauses.the_weight_per_draw_is_zero_exactly_where_the_size_is,
    clauses.the_same_generator_gives_the_same_cohort_and_many_draws_are_draws,
    clauses.no_round_gives_an_empty_matrix,
    clauses.building_and_drawing_leave_global_state_and_arguments_alone,
    clauses.cohorts_may_be_one_client_all_clients_or_more_draws_than_clients,
    clauses.a_single_client_is_always_the_cohort,
    clauses.a_cohort_size_that_is_no_positive_whole_number_is_refused,
    clauses.a_line_of_units_that_leaves_63_bits_is_refused,
    clauses.updates_that_do_not_fit_the_population_are_refused,
    clauses.draws_need_a_generator_or_a_seed_and_a_number_of_rounds,
    clauses.cohorts_follow_the_enumerated_law,
    clauses.the_estimated_aggregate_variance_is_that_of_the_enumerated_law,
    clauses.a_hundred_clients_are_drawn_as_often_as_expected,
)
#: Clauses for a design whose moments are estimated, such as one made from a function.
ESTIMATED: tuple[Callable[[Candidate], None], ...] = (
    clauses.the_same_generator_gives_the_same_cohort_and_many_draws_are_draws,
    clauses.no_round_gives_an_empty_matrix,
    clauses.building_and_drawing_leave_global_state_and_arguments_alone,
    clauses.draws_need_a_generator_or_a_seed_and_a_number_of_rounds,
    clauses.drawn_weights_average_to_the_importance_where_the_design_claims_it,
)


def build_from_recipe(
    recipe: Recipe, population: Population, cohort_size: int, generator: np.random.Generator
) -> Design:
    """Build a recipe's design with made-up knowledge: groups, updates and signals.

    Updates are small integers: identical, proportional and zero updates all occur. Signals and
    own arrays are small positive numbers, NaN for clients that were not asked or never drawn.
    """
    n, own = population.n_clients, replace(recipe, cohort_size=cohort_size)
    labels = generator.integers(cohort_size if cohort_size in (1, 2) else 3, size=n).tolist()
    labelled = Population.of_checked(population.sizes, population.ids, tuple(labels))
    memory = UpdateMemory.of(generator.integers(-1, 2, size=(n, 2)).astype(np.float32))
    signals: dict[str, NDArray[np.float64]] = {
        name: generator.integers(1, 5, size=n).astype(float) for name in own.signals
    }
    is_new = generator.random(n) < 0.5
    for name in set(signals) - set(ASKED):
        signals[name][is_new] = np.nan
    request = own.ask(labelled, round_=5, rng=generator)
    if request is not None:
        silent = np.setdiff1d(np.arange(n), request.clients)
        signals[request.signal][silent] = np.nan
    kept = {name: generator.integers(1, 5, size=n).astype(float) for name in own.keeps}
    for values in kept.values():
        values[is_new] = np.nan
    return own.build(labelled, memory=memory, signals=signals, kept=kept, round_=5, rng=generator)


def an_experiment_file_can_make_it(c: Candidate, recipe: Recipe) -> None:
    """Require a name, and a default for every hyper-parameter except the cohort size."""
    name = getattr(type(recipe), "name", None)
    c.demand(bool(name) and isinstance(name, str), f"needs a name: ClassVar[str]; got {name!r}.")
    try:
        recipe_of(type(recipe), recipe.cohort_size, {})
    except DesignError as error:
        c.demand(False, str(error))


def it_builds_before_anything_was_sent(c: Candidate, recipe: Recipe) -> None:
    """Make a selector before any client has sent an update or a past signal."""
    population = Population([5, 3, 2, 2, 7], groups=[0, 1, 2, 0, 1])
    try:
        Selector(replace(recipe, cohort_size=3), population, seed=0)
    except Exception as error:
        c.demand(
            False,
            f"must build before anything was sent; got {type(error).__name__} {error}. Take "
            f"updates for zero then, and past signals for NaN.",
        )


def the_same_knowledge_gives_the_same_design(c: Candidate, recipe: Recipe) -> None:
    """Require that two builds from equal generators draw the same cohorts."""
    population = Population([5, 3, 2, 2, 7])
    drawn = [
        build_from_recipe(recipe, population, 3, rng(0)).draw_many(20, rng(1)).toarray().tolist()
        for _ in range(2)
    ]

    c.demand(drawn[0] == drawn[1], "two builds must draw alike; they do not. Keep no state.")


def it_declares_what_it_reads(c: Candidate, recipe: Recipe) -> None:
    """Require that the recipe fills its own arrays, and reads only what it declares.

    The round needs no declaration: a recipe that reads it is rebuilt in every round.
    """
    c.demand(
        not recipe.keeps or type(recipe).observe is not Recipe.observe,
        f"keeps {', '.join(recipe.keeps)}, and no observe fills it. Define observe.",
    )
    try:
        build_from_recipe(recipe, Population([5, 3, 2, 2, 7]), 3, rng(0))
    except Exception as error:
        c.demand(False, f"must build from what it declares; got {type(error).__name__} {error}")


#: Clauses that are checked once per recipe.
OF_RECIPES: tuple[Callable[[Candidate, Recipe], None], ...] = (
    an_experiment_file_can_make_it,
    it_declares_what_it_reads,
    it_builds_before_anything_was_sent,
    the_same_knowledge_gives_the_same_design,
)
#: The number of small populations that :func:`check_design` tries.
POPULATIONS = 60


def check_design(
    recipe: Recipe,
    *,
    law: Callable[[Any], Law] = law_of_rows,
    distinct: bool = False,
    fixed_size: bool = True,
    in_floats: bool = False,
    thinner: int = 1,
) -> None:
    """Check a recipe and its designs against the contract; raise :class:`ContractError` if broken.

    Use it in tests of your own design. Every design of the library passes the same clauses. Takes
    a few seconds.

    Parameters
    ----------
    recipe
        The recipe, with the hyper-parameters to test; any cohort size.
    law
        Returns the probability of every cohort of a small design, in fractions. Row
        designs do not need it, and neither do recipes made from a function, for which only
        draws are checked.
    distinct, fixed_size, in_floats, thinner
        Properties of the design: see :class:`Candidate`.

    Examples
    --------
    >>> from fedcohort import SizeClustered
    >>> check_design(SizeClustered(cohort_size=10))
    """
    name = type(recipe).__name__
    candidate = Candidate(
        name,
        lambda population, m, rng: build_from_recipe(recipe, population, m, rng),
        law,
        distinct,
        fixed_size,
        in_floats,
        thinner,
    )
    for of_recipe in OF_RECIPES:
        of_recipe(candidate, recipe)
    if not candidate.build(Population([5, 3, 2, 2, 7]), 3, np.random.default_rng(0)).exact_weights:
        for estimated in ESTIMATED:
            estimated(candidate)
        return
    for seed, (population, cohort_size) in enumerate(_small_cases()):
        if candidate.fits(population, cohort_size):
            for everywhere in EVERYWHERE:
                everywhere(candidate, population, cohort_size, seed)
    for once in ONCE:
        once(candidate)


def _small_cases() -> Iterator[tuple[Population, int]]:
    """Yield small populations: clients of equal size, of size 0, and nine orders apart."""
    rng = np.random.default_rng(0)
    for _ in range(POPULATIONS):
        n = int(rng.integers(1, 5))
        far = rng.choice([1, 10**9], size=n)
        sizes = np.where(rng.random(n) < 1 / 3, far, rng.integers(0, 10, size=n))
        sizes[rng.integers(n)] += not sizes.any()
        yield Population(sizes), int(rng.integers(1, 4))
