"""Clauses on errors: what a caller can get wrong is refused, in the shared words."""

import numpy as np

import fedcohort.diagnostics as diagnostics
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.testing.candidate import Candidate
from fedcohort.testing.refusal import refuses

rng = np.random.default_rng


def a_cohort_size_that_is_no_positive_whole_number_is_refused(c: Candidate) -> None:
    """Try zero, negative, fractional, text, nothing, a truth value."""
    for cohort_size in (0, -1, 1.5, "3", None, True):
        refuses(
            c,
            DesignError,
            r"cohort_size must be a whole number of at least 1; got",
            lambda m=cohort_size: c.build(Population([1, 2]), m, rng(0)),  # type: ignore[misc]
        )


def a_line_of_units_that_leaves_63_bits_is_refused(c: Candidate) -> None:
    """Try more units than a 64-bit integer holds."""
    population = Population([2**61, 2**60, 1, 1])

    refuses(
        c,
        DesignError,
        r"cohort_size \* total must be less than 2\^63; got 3",
        lambda: c.build(population, 3, rng(0)),
    )


def updates_that_do_not_fit_the_population_are_refused(c: Candidate) -> None:
    """Try a row too many, and a number that is none."""
    design = c.build(Population([1, 2]), 1, rng(0))

    for updates, sentence in (
        ([[1.0], [2.0], [3.0]], r"shape \(2, dimension\).*got float64 of shape \(3, 1\)"),
        ([[1.0], [np.nan]], r"client 1 sent 1 other values"),
    ):
        refuses(
            c,
            DesignError,
            sentence,
            lambda given=updates: diagnostics.aggregate_variance(design, given),  # type: ignore[misc]
        )


def draws_need_a_generator_or_a_seed_and_a_number_of_rounds(c: Candidate) -> None:
    """Try what is no generator, and rounds that are no whole number of at least 0."""
    design = c.build(Population([1, 2]), 1, rng(0))

    for generator in (-1, 1.5, "3", True):
        refuses(
            c,
            DesignError,
            r"rng must be an integer of at least 0, a numpy.random.Generator or None; got",
            lambda given=generator: design.draw(given),  # type: ignore[misc]
        )
    for rounds in (-1, 1.5, "3"):
        refuses(
            c,
            DesignError,
            r"rounds must be a whole number of at least 0; got",
            lambda given=rounds: design.draw_many(given, rng(0)),  # type: ignore[misc]
        )
