"""Clauses on frequencies: what is drawn is what the law says; the seeds are fixed."""

import numpy as np
from scipy.stats import norm

import fedcohort.diagnostics as diagnostics
from fedcohort.population import Population
from fedcohort.testing.candidate import ROUNDING, Candidate
from fedcohort.testing.frequencies import FALSE_ALARM, agree, follows_law
from fedcohort.testing.laws import aggregate_variance

rng = np.random.default_rng

#: What rounding leaves of V = 0: the square of a sum of five weighted updates of up to 9.
NOTHING = (45 * ROUNDING) ** 2
#: The paper's unbalanced federation: 100 clients.
UNBALANCED = [100] * 10 + [250] * 30 + [500] * 30 + [750] * 20 + [1000] * 10


def cohorts_follow_the_enumerated_law(c: Candidate) -> None:
    """Test by chi-square; false alarms: 1e-6 a design. Sees a bias of 5 % in a client's size."""
    design = c.build(Population([7, 4, 4, 0, 1]), 3, rng(1))

    drawn = design.draw_many(100_000 // c.thinner, rng(2))
    c.demand(follows_law(drawn, c.law(design)), "draws must follow the law; they do not.", design)


def the_estimated_aggregate_variance_is_that_of_the_enumerated_law(c: Candidate) -> None:
    """Test by z, two-sided; false alarms: 1e-6 a design. Sees V that is 10 % off."""
    updates = [[3, 1], [-1, 2], [0, -4], [9, 9], [2, 0]]
    design = c.build(Population([7, 4, 4, 0, 1]), 3, rng(1))

    estimate = diagnostics.estimated_aggregate_variance(
        design, updates, rng=rng(2), rounds=60_000 // c.thinner
    )

    exact = float(aggregate_variance(design, c.law(design), updates))
    known = estimate.standard_error <= (0.1 * exact + NOTHING) / norm.isf(FALSE_ALARM / 2)
    c.demand(known, "thinner is too large: V is not known to 10 %. Lower it.", design)
    # Where the cohort is certain, only rounding is left.
    bound = norm.isf(FALSE_ALARM / 2) * estimate.standard_error + ROUNDING * exact + NOTHING
    c.demand(
        abs(estimate.value - exact) <= bound,
        f"V of drawn cohorts must be {exact:.6g} ± {bound:.2g}; got {estimate.value:.6g}.",
        design,
    )


def a_hundred_clients_are_drawn_as_often_as_expected(c: Candidate) -> None:
    """Test by z, Bonferroni over the clients; false alarms: 1e-6 a design.

    The bound lies at 5.7 deviations. The smallest client comes 0.0206 times a round, 14,430 times
    in all, give or take 119: a bias of 4.7 % is seen in it, and one of 1.4 % in the largest.
    Where the design is thinned, 1,750 rounds are the fewest: the smallest client then comes 36
    times, and the binomial law's tails, heavier than the normal ones, make it 4e-6 a design.
    """
    design = c.build(Population(UNBALANCED), 10, rng(3))
    rounds = 700_000 // c.thinner**2

    counts = design.draw_many(rounds, rng(4)).sum(axis=0).astype(float)

    weight = np.where(design.weight_per_draw() > 0, design.weight_per_draw(), np.inf)
    deviation = np.sqrt(rounds * diagnostics.weight_variance(design)) / weight
    expected = rounds * design.expected_counts()
    client = int(np.argmax(np.abs(counts - expected) / np.maximum(deviation, 1e-300)))
    c.demand(
        agree(counts, expected, deviation),
        f"client {client} must be drawn {expected[client]:.0f} times in {rounds} rounds, give or "
        f"take {deviation[client]:.0f}; got {counts[client]:.0f}.",
        design,
    )


def drawn_weights_average_to_the_importance_where_the_design_claims_it(c: Candidate) -> None:
    """Test by z, Bonferroni over the clients; false alarms: 1e-6 a design.

    20,000 cohorts of 10 draws: the smallest client comes 412 times under multinomial sampling,
    and a bias of 28 % is seen in it, one of 9 % in the largest.
    """
    design = c.build(Population(UNBALANCED), 10, rng(3))
    rounds = 20_000 // c.thinner

    weights = design.draw_weights(rounds, rng(4))

    mean = np.asarray(weights.mean(axis=0))
    square = np.asarray(weights.multiply(weights).mean(axis=0))
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0) / rounds)
    importance = design.population.importance
    client = int(np.argmax(np.abs(mean - importance) / np.maximum(deviation, 1e-300)))
    c.demand(
        not design.unbiased or agree(mean, importance, deviation),
        f"unbiased is True, so client {client}'s mean weight must be {importance[client]:.4g}; got "
        f"{mean[client]:.4g}, give or take {deviation[client]:.2g}. Mend the weights, or leave "
        f"unbiased out.",
        design,
    )
