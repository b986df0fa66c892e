"""The contract of all designs: its clauses, those on recipes, and a check of them all."""

import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

import fedcohort.diagnostics as diagnostics
from fedcohort.designs import Design, Recipe, recipe_of
from fedcohort.designs.signals import ASKED
from fedcohort.errors import DesignError
from fedcohort.memory import UpdateMemory
from fedcohort.population import Population
from fedcohort.selector import Selector
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
    law_of_rows,
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
    """Compare counts, inclusion, the deviation of the size, and the covariances of weights."""
    design, law = _built(c, population, cohort_size, seed)
    exact, clients = moments(design, law), range(population.n_clients)

    most = diagnostics.max_count(design).tolist()
    c.demand_equal(design, "max_count", most, exact.max_count)
    variance = [exact.weight_covariance[i][i] for i in clients]
    c.demand_close(design, "expected_counts", design.expected_counts(), exact.expected_counts)
    c.demand_close(design, "weight_variance", diagnostics.weight_variance(design), variance)
    inclusion = diagnostics.inclusion_probability(design)
    c.demand_close(design, "inclusion_probability", inclusion, exact.inclusion)
    draws = sum(p * sum(counts) for counts, p in law.items())
    spread = sum(p * (sum(counts) - draws) ** 2 for counts, p in law.items()) + Fraction(0)
    c.demand_close(design, "size_deviation ** 2", [design.size_deviation() ** 2], [spread])
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
    A design whose counts are estimated has nothing to compare with.
    """
    design = c.build(Population(UNBALANCED), 10, rng(3))
    if not design.exact_counts:
        return
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
        f"{mean[client]:.4g}, give or take {deviation[client]:.2g}. Fix the weights, or leave "
        f"unbiased out.",
        design,
    )


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

    c.demand_equal(design, "the shape of draw_many", many.shape, (6, 5))
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

    c.demand_equal(design, "the shape of draw_many(0)", design.draw_many(0, rng(0)).shape, (0, 3))


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

    c.demand_equal(design, "clients", cohort.clients.tolist(), [0])
    c.demand_equal(design, "weights", cohort.weights.tolist(), [1.0])
    variance = diagnostics.weight_variance(design).tolist()
    c.demand_equal(design, "weight_variance", variance, [0.0])
    updates = [[3.0, -2.0]]
    nothing = diagnostics.estimated_aggregate_variance(design, updates, rng=rng(0), rounds=2)
    c.demand(nothing == diagnostics.Estimate(0.0, 0.0), "V must be 0 where it is measured.", design)
    exact = diagnostics.aggregate_variance(design, updates) if design.exact_moments else 0.0
    c.demand_equal(design, "aggregate_variance", exact, 0.0)


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


#: Clauses for a design on any small population and cohort size.
EVERYWHERE: tuple[Callable[[Candidate, Population, int, int], None], ...] = (
    the_mean_weight_is_the_importance_where_the_design_claims_it,
    the_moments_are_those_of_the_enumerated_law,
    the_aggregate_variance_is_that_of_the_enumerated_law,
    a_cohort_is_sorted_distinct_and_weighed_by_the_one_formula,
)
#: Clauses that are checked once per design.
ONCE: tuple[Callable[[Candidate], None], ...] = (
    sizes_may_differ_by_nine_orders_of_magnitude,
    small_moments_keep_their_digits,
    the_weight_per_draw_is_zero_exactly_where_the_size_is,
    the_same_generator_gives_the_same_cohort_and_many_draws_are_draws,
    no_round_gives_an_empty_matrix,
    building_and_drawing_leave_global_state_and_arguments_alone,
    cohorts_may_be_one_client_all_clients_or_more_draws_than_clients,
    a_single_client_is_always_the_cohort,
    a_cohort_size_that_is_no_positive_whole_number_is_refused,
    a_line_of_units_that_leaves_63_bits_is_refused,
    updates_that_do_not_fit_the_population_are_refused,
    draws_need_a_generator_or_a_seed_and_a_number_of_rounds,
    cohorts_follow_the_enumerated_law,
    the_estimated_aggregate_variance_is_that_of_the_enumerated_law,
    a_hundred_clients_are_drawn_as_often_as_expected,
)
#: Clauses for a design whose moments are estimated, such as one made from a function.
ESTIMATED: tuple[Callable[[Candidate], None], ...] = (
    the_same_generator_gives_the_same_cohort_and_many_draws_are_draws,
    no_round_gives_an_empty_matrix,
    building_and_drawing_leave_global_state_and_arguments_alone,
    draws_need_a_generator_or_a_seed_and_a_number_of_rounds,
    drawn_weights_average_to_the_importance_where_the_design_claims_it,
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
