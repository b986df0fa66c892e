"""The contract of all designs: lists of its clauses, and a function that checks them all."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedcohort.designs import Recipe
from fedcohort.population import Population
from fedcohort.testing import draw_clauses, law_clauses
from fedcohort.testing.laws import Candidate, Law, law_of_rows

#: Clauses for a design on any small population and cohort size.
EVERYWHERE: tuple[Callable[[Candidate, Population, int, int], None], ...] = (
    law_clauses.the_mean_weight_is_the_importance_where_the_design_claims_it,
    law_clauses.the_moments_are_those_of_the_enumerated_law,
    law_clauses.the_aggregate_variance_is_that_of_the_enumerated_law,
    draw_clauses.a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula,
)
#: Clauses that are checked once per design.
ONCE: tuple[Callable[[Candidate], None], ...] = (
    law_clauses.sizes_may_differ_by_nine_orders_of_magnitude,
    law_clauses.small_moments_keep_their_digits,
    draw_clauses.the_weight_per_draw_is_zero_exactly_where_the_size_is,
    draw_clauses.the_same_generator_gives_the_same_cohort_and_many_draws_are_draws,
    draw_clauses.no_round_gives_an_empty_matrix,
    draw_clauses.building_and_drawing_leave_global_state_and_arguments_alone,
    draw_clauses.cohorts_may_be_one_client_all_clients_or_more_draws_than_clients,
    draw_clauses.a_single_client_is_always_the_cohort,
    draw_clauses.a_cohort_size_that_is_no_positive_whole_number_is_refused,
    draw_clauses.a_line_of_units_that_leaves_63_bits_is_refused,
    draw_clauses.updates_that_do_not_fit_the_population_are_refused,
    draw_clauses.draws_need_a_generator_or_a_seed_and_a_number_of_rounds,
    law_clauses.cohorts_follow_the_enumerated_law,
    law_clauses.the_estimated_aggregate_variance_is_that_of_the_enumerated_law,
    law_clauses.a_hundred_clients_are_drawn_as_often_as_expected,
)
#: Clauses for a design whose moments are estimated, such as one made from a function.
ESTIMATED: tuple[Callable[[Candidate], None], ...] = (
    draw_clauses.the_same_generator_gives_the_same_cohort_and_many_draws_are_draws,
    draw_clauses.no_round_gives_an_empty_matrix,
    draw_clauses.building_and_drawing_leave_global_state_and_arguments_alone,
    draw_clauses.draws_need_a_generator_or_a_seed_and_a_number_of_rounds,
    law_clauses.drawn_weights_average_to_the_importance_where_the_design_claims_it,
)
#: Clauses that are checked once per recipe.
OF_RECIPES: tuple[Callable[[Candidate, Recipe], None], ...] = (
    draw_clauses.an_experiment_file_can_make_it,
    draw_clauses.it_declares_what_it_reads,
    draw_clauses.it_builds_before_anything_was_sent,
    draw_clauses.the_same_knowledge_gives_the_same_design,
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
        Returns the probability of every cohort of a small design, in fractions. Not needed for
        row designs, nor for recipes made from a function: for these only draws are checked.
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
        lambda population, m, rng: draw_clauses.build_from_recipe(recipe, population, m, rng),
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
