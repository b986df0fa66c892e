"""Designs over the clients that are available: never another client, and exactly unbiased."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import laws
from fedcohort import (
    Auto,
    Balanced,
    Multinomial,
    Poisson,
    Population,
    Recipe,
    SimilarityClustered,
    SizeClustered,
    Target,
    Tournament,
    Uniform,
)
from fedcohort.memory import UpdateMemory
from populations import rng

N = 5
#: Fewer than a thousand roundings of 2^-53 stand between a float chance and its fraction.
ROUNDING = 1000 * 2.0**-53

RECIPES: list[Recipe] = [
    Uniform(2, unbiased=True),
    Multinomial(2),
    Poisson(2),
    SizeClustered(2),
    SizeClustered(3, whole_rows_first=True),
    SimilarityClustered(2),
    Target(2),
    Tournament(3),
    Auto(2),
    Balanced(2),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=N, max_size=N),
    flags=st.lists(st.booleans(), min_size=N, max_size=N),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_restricted_design_is_exactly_unbiased_over_the_available(
    recipe: Recipe, sizes: list[int], flags: list[bool], seed: int
) -> None:
    """By enumeration: E[w_i] = p_i / p(A) for the available, no outcome draws another."""
    there = [size if flag else 0 for size, flag in zip(sizes, flags, strict=True)]
    assume(sum(map(bool, there)) >= recipe.cohort_size)
    labelled = Population(sizes, groups=[0, 1, 0, 1, 2])
    population = labelled.restricted(np.array(flags))
    memory = UpdateMemory(N, 2)
    memory.record(np.arange(N), rng(seed).integers(-1, 2, size=(N, 2)).astype(float), round_=0)

    design = recipe.build(population, memory=memory, round_=1, rng=rng(seed))

    assert design.unbiased
    outcomes = laws.law(design)
    assert all(not counts[i] for counts in outcomes for i in range(N) if not there[i])
    for mean, size in zip(laws.moments(design).mean_weights, there, strict=True):
        off = abs(mean - Fraction(size, sum(there)))
        assert off == 0 or (isinstance(recipe, Balanced) and off <= ROUNDING)
