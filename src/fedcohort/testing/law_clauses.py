"""Clauses of the contract on the law: exact moments, and statistical tests with fixed seeds."""

from fractions import Fraction

import numpy as np
from scipy.stats import norm

import fedcohort.diagnostics as diagnostics
from fedcohort.designs import Design
from fedcohort.population import Population
from fedcohort.testing.laws import (
    FALSE_ALARM,
    ROUNDING,
    Candidate,
    Law,
    aggregate_variance,
    agree,
    close,
    follows_law,
    importance,
    moments,
    refuses,
)

rng = np.random.default_rng

#: The rounding error of V = 0: the square of a sum of five weighted updates of up to 9.
NOTHING = (45 * ROUNDING) ** 2
#: The paper's unbalanced federation: 100 clients.
UNBALANCED = [100] * 10 + [250] * 30 + [500] * 30 + [750] * 20 + [1000] * 10


def the_mean_weight_is_the_importance_where_the_design_claims_it(
    c: Candidate, population: Population, cohort_size: int, seed: int
) -> None:
    """Require E[w] = p in fractions if ``unbiased``, and that ``bias`` is E[w] - p."""
    design, law = _built(c, population, cohort_size, seed)
    exact, bias = moments(design, law), diagnostics.bias(design)

    c.demand_unbiased(design, exact.mean_weights)
    c.demand(not design.unbiased or bool((bias == 0).all()), "its bias must be 0.", design)
    weights = design.weight_per_draw() * design.expected_counts()
    c.demand_close(design, "weight_per_draw * expected_counts", weights, exact.mean_weights)
    shares = importance(population)
    off = [mean - share for mean, share in zip(exact.mean_weights, shares, strict=True)]
    c.demand_close(design, "bias", bias, off)


def the_moments_are_those_of_the_enumerated_law(
    c: Candidate, population: Population, cohort_size: int, seed: int
) -> None:
    """Compare expected counts, inclusion, largest counts, and the covariances of weights."""
    design, law = _built(c, population, cohort_size, seed)
    exact, clients = moments(design, law), range(population.n_clients)
    most = diagnostics.max_count(design)

    c.demand(
        most.tolist() == exact.max_count,
        f"max_count must be {exact.max_count}; got {most.tolist()}.",
        design,
    )
    variance = [exact.weight_covariance[i][i] for i in clients]
    c.demand_close(design, "expected_counts", design.expected_counts(), exact.expected_counts)
    c.demand_close(design, "weight_variance", diagnostics.weight_variance(design), variance)
    inclusion = diagnostics.inclusion_probability(design)
    c.demand_close(design, "inclusion_probability", inclusion, exact.inclusion)
    if design.exact_moments:
        covariance = diagnostics.weight_covariance(design)
        for i in clients:
            what = f"row {i} of weight_covariance"
            c.demand_close(design, what, covariance[i], exact.weight_covariance[i])


def the_aggregate_variance_is_that_of_the_enumerated_law(
    c: Candidate, population: Population, cohort_size: int, seed: int
) -> None:
    """Compare V on small updates; without a formula, require an error with an alternative."""
    design, law = _built(c, population, cohort_size, seed)
    n = population.n_clients
    updates = rng(seed).integers(-5, 6, size=(n, 2)).tolist()
    if not design.exact_moments:
        way_out = r"Use diagnostics.estimated_aggregate_variance"
        refuses(c, way_out, lambda: diagnostics.aggregate_variance(design, updates))
        way_out = r"Use weight_variance, or"
        refuses(c, way_out, lambda: diagnostics.weight_covariance(design))
        return
    variance = diagnostics.aggregate_variance(design, updates)

    # Weights are at most n (unbiased uniform), updates at most 5: this scale is large enough.
    exact = aggregate_variance(design, law, updates)
    c.demand(
        close(variance, exact, scale=50.0 * n * n),
        f"aggregate_variance of {updates} must be {float(exact):.6g}; got {variance:.6g}.",
        design,
    )


def sizes_may_differ_by_nine_orders_of_magnitude(c: Candidate) -> None:
    """Require that the law stays unbiased, and that its moments stay finite."""
    population = Population([1, 10**9, 1, 10**5])
    design, law = _built(c, population, 2, 0)

    c.demand_unbiased(design, moments(design, law).mean_weights)
    finite = np.isfinite(diagnostics.weight_variance(design)).all()
    if design.exact_moments:
        finite &= np.isfinite(diagnostics.weight_covariance(design)).all()
    c.demand(bool(finite), "its moments must be finite.", design)


def small_moments_keep_their_digits(c: Candidate) -> None:
    """Compare with relative errors, down to clients with a share of 1e-15."""
    for sizes in ([10**9, 1], [10**12, 1, 1], [2**60, 1], [10**15, 1, 1]):
        if c.distinct:
            continue
        design, law = _built(c, Population(sizes), 2, 0)
        exact = moments(design, law)
        variance = [row[i] for i, row in enumerate(exact.weight_covariance)]
        pairs = {
            "weight_variance": (diagnostics.weight_variance(design), variance),
            "inclusion_probability": (diagnostics.inclusion_probability(design), exact.inclusion),
        }
        for what, (found, right) in pairs.items():
            c.demand(
                np.allclose(found, list(map(float, right)), rtol=1e-12, atol=0),
                f"{what} must keep twelve digits where sizes differ; got {found.tolist()} for "
                f"{[float(each) for each in right]}. Subtract integers, not floats.",
                design,
            )


def _built(c: Candidate, population: Population, m: int, seed: int) -> tuple[Design, Law]:
    """Build the design, and enumerate and validate its law."""
    design = c.build(population, m, rng(seed))
    law, n = c.law(design), population.n_clients
    c.demand(bool(law), "its law must have a cohort; it has none.", design)
    shaped = all(len(counts) == n and min(counts) >= 0 for counts in law)
    c.demand(shaped, f"its law must have counts of {n} clients; got {next(iter(law))}.", design)
    total = sum(law.values(), Fraction(0))
    whole = close(float(total), Fraction(1)) if c.in_floats else total == 1
    positive = min(law.values()) > 0
    c.demand(
        whole and positive, f"its law must be positive and sum to 1; it sums to {total}.", design
    )
    return design, law


def cohorts_follow_the_enumerated_law(c: Candidate) -> None:
    """Test by chi-square; 1e-6 false alarms per design. Detects a 5 % bias in a client's size."""
    design = c.build(Population([7, 4, 4, 0, 1]), 3, rng(1))

    drawn = design.draw_many(100_000 // c.thinner, rng(2))
    c.demand(follows_law(drawn, c.law(design)), "draws must follow the law; they do not.", design)


def the_estimated_aggregate_variance_is_that_of_the_enumerated_law(c: Candidate) -> None:
    """Test by z, two-sided; 1e-6 false alarms per design. Detects an error of 10 % in V."""
    updates = [[3, 1], [-1, 2], [0, -4], [9, 9], [2, 0]]
    design = c.build(Population([7, 4, 4, 0, 1]), 3, rng(1))

    estimate = diagnostics.estimated_aggregate_variance(
        design, updates, rng=rng(2), rounds=60_000 // c.thinner
    )

    exact = float(aggregate_variance(design, c.law(design), updates))
    known = estimate.standard_error <= (0.1 * exact + NOTHING) / norm.isf(FALSE_ALARM / 2)
    c.demand(known, "thinner is too large: V is not known to 10 %. Lower it.", design)
    # If the cohort is certain, only rounding is left.
    bound = norm.isf(FALSE_ALARM / 2) * estimate.standard_error + ROUNDING * exact + NOTHING
    c.demand(
        abs(estimate.value - exact) <= bound,
        f"V of drawn cohorts must be {exact:.6g} ± {bound:.2g}; got {estimate.value:.6g}.",
        design,
    )


def a_hundred_clients_are_drawn_as_often_as_expected(c: Candidate) -> None:
    """Test by z, Bonferroni over the clients; 1e-6 false alarms per design.

    The bound is 5.7 standard deviations. The smallest client is drawn 0.0206 times per round, in
    all 14,430 times with a standard deviation of 119. This detects a bias of 4.7 % in it, and of
    1.4 % in the largest client. With ``thinner``, at least 1,750 rounds are drawn. The smallest
    client is then drawn 36 times; binomial tails are heavier, and false alarms 4e-6 per design.
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
    """Test by z, Bonferroni over the clients; 1e-6 false alarms per design.

    In 20,000 cohorts of 10 draws, multinomial sampling draws the smallest client 412 times. This
    detects a bias of 28 % in it, and of 9 % in the largest client.
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
