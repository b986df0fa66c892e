"""Clauses on draws: cohorts are well formed, reproducible, and touch nothing else."""

import pickle
import random

import numpy as np

import fedcohort.diagnostics as diagnostics
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.testing.candidate import ROUNDING, Candidate
from fedcohort.testing.laws import moments
from fedcohort.testing.refusal import refuses

rng = np.random.default_rng


def a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula(
    c: Candidate, population: Population, cohort_size: int, seed: int
) -> None:
    """Demand counts of at least 1, and weights of count times weight per draw."""
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
    """Demand that nobody with samples weighs nothing."""
    design = c.build(Population([3, 0, 2, 0]), 2, rng(0))

    found = (design.weight_per_draw() > 0).tolist()
    c.demand(found == [True, False, True, False], "weight_per_draw must be 0 there only.", design)


def the_same_generator_gives_the_same_cohort_and_many_draws_are_draws(c: Candidate) -> None:
    """Demand that ``draw_many`` is ``draw`` over and over, and that a design keeps no state."""
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
    """Demand the shape (0, n_clients)."""
    design = c.build(Population([5, 3, 2]), 2, rng(0))

    shape = design.draw_many(0, rng(0)).shape
    c.demand(shape == (0, 3), f"draw_many(0, rng) must be (0, 3); got {shape}.", design)


def building_and_drawing_leave_global_state_and_arguments_alone(c: Candidate) -> None:
    """Demand that no global generator is used, and that sizes stay."""
    sizes = np.array([5, 3, 2, 2])
    population = Population(sizes)
    before = pickle.dumps((np.random.get_state(), random.getstate()))

    c.build(population, 2, rng(0)).draw_many(10, rng(0))

    after = pickle.dumps((np.random.get_state(), random.getstate()))
    c.demand(before == after, "a global generator was used. Use the rng that is given.")
    same = sizes.tolist() == population.sizes.tolist() == [5, 3, 2, 2]
    c.demand(same, "the sizes were changed. Copy them first.")


def cohorts_may_be_one_client_all_clients_or_more_draws_than_clients(c: Candidate) -> None:
    """Demand that more draws than clients are made, or refused where clients are distinct."""
    population = Population([5, 3, 0, 2])
    for cohort_size in (1, 3, 4, 7):
        if c.distinct and cohort_size > 3:
            sentence = "at most the 3 clients of positive size; got"
            build = lambda m=cohort_size: c.build(population, m, rng(0))  # noqa: E731
            refuses(c, DesignError, sentence, build)
            continue
        design = c.build(population, cohort_size, rng(0))

        draws = design.draw_many(50, rng(0)).sum(axis=1)

        exact = not c.fixed_size or bool((draws == cohort_size).all())
        c.demand(exact, f"must draw {cohort_size} times; got {draws.tolist()}.", design)
        c.demand_unbiased(design, moments(design, c.law(design)).mean_weights)


def a_single_client_is_always_the_cohort(c: Candidate) -> None:
    """Demand weight 1 and variance 0."""
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
