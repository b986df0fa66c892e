"""Clauses of the contract on recipes, draws and refused arguments."""

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedcohort.diagnostics as diagnostics
from fedcohort.designs import Design, Recipe, recipe_of
from fedcohort.designs.recipe import GivenUpdates
from fedcohort.designs.signals import ASKED, PAST
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.testing.laws import ROUNDING, Candidate, moments, refuses

rng = np.random.default_rng


def a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula(
    c: Candidate, population: Population, cohort_size: int, seed: int
) -> None:
    """Require counts of at least 1, and weights equal to count times weight per draw."""
    design = c.build(population, cohort_size, rng(seed))

    cohort = design.draw(rng(seed))

    clients, counts = cohort.clients, cohort.counts
    c.demand(bool((np.diff(clients) > 0).all()), "clients must be sorted, each once.", design)
    c.demand(bool((counts >= 1).all()), "counts must be at least 1.", design)
    c.demand(bool((population.sizes[clients] > 0).all()), "size 0 must not be drawn.", design)
    c.demand(
        not c.fixed_size or counts.sum() == cohort_size,
        f"fixed_size is True, so {cohort_size} draws must be made; got {counts.sum()}.",
        design,
    )
    weights = design.weight_per_draw()[clients] * counts
    c.demand(
        np.allclose(cohort.weights, weights, rtol=ROUNDING, atol=0),
        f"weights must be counts * weight_per_draw, {weights.tolist()}; got "
        f"{cohort.weights.tolist()}. Override weigh.",
        design,
    )
    off = abs(cohort.residual - (1 - weights.sum()))
    c.demand(
        bool(off <= ROUNDING * population.n_clients),
        f"the residual must be 1 - sum of weights; got {cohort.residual}.",
        design,
    )


def the_weight_per_draw_is_zero_exactly_where_the_size_is(c: Candidate) -> None:
    """Require a positive weight for every client with samples, and 0 for the others."""
    design = c.build(Population([3, 0, 2, 0]), 2, rng(0))

    found = (design.weight_per_draw() > 0).tolist()
    c.demand(found == [True, False, True, False], "weight_per_draw must be 0 there only.", design)


def the_same_generator_gives_the_same_cohort_and_many_draws_are_draws(c: Candidate) -> None:
    """Require that ``draw_many`` equals repeated ``draw``, and that a design keeps no state."""
    design = c.build(Population([5, 3, 2, 2, 7]), 3, rng(0))
    generator = rng(5)

    many = design.draw_many(6, 5)
    cohorts = [design.draw(generator) for _ in range(6)]

    c.demand(many.shape == (6, 5), f"draw_many must be (6, 5); got {many.shape}.", design)
    c.demand(many.dtype.kind == "i", f"counts must be integers; got {many.dtype}.", design)
    for round_, cohort in enumerate(cohorts):
        counts = np.zeros(5, dtype=int)
        counts[cohort.clients] = cohort.counts
        c.demand(
            many.toarray()[round_].tolist() == counts.tolist(),
            f"draw and draw_many must agree; in round {round_} they do not. Take random numbers "
            f"round by round, and keep nothing between draws.",
            design,
        )


def no_round_gives_an_empty_matrix(c: Candidate) -> None:
    """Require the shape (0, n_clients)."""
    design = c.build(Population([5, 3, 2]), 2, rng(0))

    shape = design.draw_many(0, rng(0)).shape
    c.demand(shape == (0, 3), f"draw_many(0, rng) must be (0, 3); got {shape}.", design)


def building_and_drawing_leave_global_state_and_arguments_alone(c: Candidate) -> None:
    """Require that no global generator is used, and that sizes are not changed."""
    sizes = np.array([5, 3, 2, 2])
    population = Population(sizes)
    before = pickle.dumps((np.random.get_state(), random.getstate()))

    c.build(population, 2, rng(0)).draw_many(10, rng(0))

    after = pickle.dumps((np.random.get_state(), random.getstate()))
    c.demand(before == after, "a global generator was used. Use the rng that is given.")
    same = sizes.tolist() == population.sizes.tolist() == [5, 3, 2, 2]
    c.demand(same, "the sizes were changed. Copy them first.")


def cohorts_may_be_one_client_all_clients_or_more_draws_than_clients(c: Candidate) -> None:
    """Require support for more draws than clients, or a refusal if clients are distinct."""
    population = Population([5, 3, 0, 2])
    for cohort_size in (1, 3, 4, 7):
        if c.distinct and cohort_size > 3:
            sentence = "at most the 3 clients of positive size; got"
            refuses(c, sentence, lambda m=cohort_size: c.build(population, m, rng(0)))  # type: ignore[misc]
            continue
        design = c.build(population, cohort_size, rng(0))

        draws = design.draw_many(50, rng(0)).sum(axis=1)

        exact = not c.fixed_size or bool((draws == cohort_size).all())
        c.demand(exact, f"must draw {cohort_size} times; got {draws.tolist()}.", design)
        c.demand_unbiased(design, moments(design, c.law(design)).mean_weights)


def a_single_client_is_always_the_cohort(c: Candidate) -> None:
    """Require weight 1 and variance 0."""
    design = c.build(Population([4]), 1, rng(0))

    cohort = design.draw(rng(0))

    drawn = (cohort.clients.tolist(), cohort.weights.tolist())
    c.demand(drawn == ([0], [1.0]), f"must draw client 0 with weight 1; got {drawn}.", design)
    variance = diagnostics.weight_variance(design).tolist()
    c.demand(variance == [0.0], f"weight_variance must be [0.0]; got {variance}.", design)
    updates = [[3.0, -2.0]]
    nothing = diagnostics.estimated_aggregate_variance(design, updates, rng=rng(0), rounds=2)
    c.demand(nothing == diagnostics.Estimate(0.0, 0.0), "V must be 0 where it is measured.", design)
    exact = diagnostics.aggregate_variance(design, updates) if design.exact_moments else 0.0
    c.demand(exact == 0.0, f"aggregate_variance must be 0; got {exact}.", design)


def a_cohort_size_that_is_no_positive_whole_number_is_refused(c: Candidate) -> None:
    """Try zero, a negative number, a fraction, text, None and a boolean."""
    population, sentence = Population([1, 2]), "cohort_size must be a whole number of at least 1"
    for cohort_size in (0, -1, 1.5, "3", None, True):
        refuses(c, sentence, lambda m=cohort_size: c.build(population, m, rng(0)))  # type: ignore[misc]


def a_line_of_units_that_leaves_63_bits_is_refused(c: Candidate) -> None:
    """Try more units than a 64-bit integer holds."""
    population = Population([2**61, 2**60, 1, 1])
    sentence = r"cohort_size \* total must be less than 2\^63; got 3"

    refuses(c, sentence, lambda: c.build(population, 3, rng(0)))


def updates_that_do_not_fit_the_population_are_refused(c: Candidate) -> None:
    """Try one row too many, and NaN."""
    design = c.build(Population([1, 2]), 1, rng(0))

    for updates, sentence in (
        ([[1.0], [2.0], [3.0]], r"shape \(2, dimension\).*got float64 of shape \(3, 1\)"),
        ([[1.0], [np.nan]], r"client 1 sent 1 other values"),
    ):
        refuses(c, sentence, lambda rows=updates: diagnostics.aggregate_variance(design, rows))  # type: ignore[misc]


def draws_need_a_generator_or_a_seed_and_a_number_of_rounds(c: Candidate) -> None:
    """Try invalid generators, and rounds that are not integers of at least 0."""
    design = c.build(Population([1, 2]), 1, rng(0))

    sentence = "rng must be an integer of at least 0, a numpy.random.Generator or None; got"
    for generator in (-1, 1.5, "3", True):
        refuses(c, sentence, lambda given=generator: design.draw(given))  # type: ignore[misc]
    sentence = "rounds must be a whole number of at least 0; got"
    for rounds in (-1, 1.5, "3"):
        refuses(c, sentence, lambda given=rounds: design.draw_many(given, rng(0)))  # type: ignore[misc]


def build_from_recipe(
    recipe: Recipe, population: Population, cohort_size: int, generator: np.random.Generator
) -> Design:
    """Build a recipe's design with made-up knowledge: groups, updates and signals.

    Updates are small integers: identical, proportional and zero updates all occur. Signals are
    small positive numbers, NaN for clients that were not asked or never drawn.
    """
    n, own = population.n_clients, replace(recipe, cohort_size=cohort_size)
    labels = generator.integers(cohort_size if cohort_size in (1, 2) else 3, size=n).tolist()
    labelled = Population.of_checked(population.sizes, population.ids, tuple(labels))
    memory = GivenUpdates(generator.integers(-1, 2, size=(n, 2)).astype(np.float32))
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
    return own.build(labelled, memory=memory, signals=signals, round_=5, rng=generator)


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
            f"must build before anything was sent; got {_shown(error)}. Take updates for zero "
            f"then, and past signals for NaN.",
        )


def the_same_knowledge_gives_the_same_design(c: Candidate, recipe: Recipe) -> None:
    """Require that two builds from equal generators draw the same cohorts."""
    population = Population([5, 3, 2, 2, 7])
    drawn: Sequence[Any] = [
        build_from_recipe(recipe, population, 3, rng(0)).draw_many(20, rng(1)).toarray().tolist()
        for _ in range(2)
    ]

    c.demand(drawn[0] == drawn[1], "two builds must draw alike; they do not. Keep no state.")


def it_declares_what_it_reads(c: Candidate, recipe: Recipe) -> None:
    """Require known or self-filled signals, and that the recipe reads only what it declares.

    The round needs no declaration: a recipe that reads it is rebuilt in every round.
    """
    known = (*ASKED, *PAST)
    strange = [str(name) for name in recipe.signals if name not in known]
    c.demand(
        not strange or type(recipe).observe is not Recipe.observe,
        f"signals must be among {', '.join(known)}, or filled by observe; got "
        f"{', '.join(strange)}, which nobody sends.",
    )
    try:
        build_from_recipe(recipe, Population([5, 3, 2, 2, 7]), 3, rng(0))
    except Exception as error:
        c.demand(False, f"must build from what it declares; got {_shown(error)}")


def _shown(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
