"""Recipes by name."""

import numpy as np
import pytest

from fedcohort import Deadline, Population, UpdateMemory
from fedcohort.designs import RECIPES, Recipe, make_recipe
from fedcohort.errors import DesignError
from populations import rng


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_the_design_of_its_name(name: str) -> None:
    recipe = make_recipe(name, 2, {})
    signals = {str(signal): np.arange(4.0) for signal in recipe.signals}
    population = Population([4, 3, 2, 1], groups=["a", "b", "a", "b"])

    design = recipe.build(population, signals=signals, rng=rng())

    assert design.cohort_size == 2
    assert type(design).__name__ == f"{type(recipe).__name__}Design"


@pytest.mark.parametrize("name", [name for name, kind in RECIPES.items() if kind.signals])
def test_a_recipe_that_needs_signals_says_so_where_there_are_none(name: str) -> None:
    with pytest.raises(DesignError, match=r": needs the signal '.*', but it was not collected"):
        make_recipe(name, 2, {}).build(Population([4, 3, 2, 1]), rng=rng())


def test_the_similarity_recipe_reads_the_memory() -> None:
    recipe = make_recipe("similarity", 2, {"measure": "l2"})
    memory = UpdateMemory.of(np.repeat(np.eye(2), 2, axis=0))

    design = recipe.build(Population([1] * 4), memory=memory, round_=5, rng=rng())

    rows = design.plan.units.toarray().tolist()  # type: ignore[attr-defined]
    assert sorted(rows) == [[0, 0, 2, 2], [2, 2, 0, 0]]


def test_a_recipe_cannot_be_changed() -> None:
    recipe: Recipe = make_recipe("size", 2, {})

    with pytest.raises(AttributeError):
        recipe.cohort_size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("siz", {}, r"unknown design 'siz'; known are uniform, .*Did you mean 'size'\?"),
        ("size", {"whole_row_first": True}, r"unknown key .*Did you mean 'whole_rows_first'\?"),
        ("multinomial", {"x": 1}, r"design 'multinomial': unknown key 'x'; it has none"),
        (
            "size",
            {"whole_rows_first": "yes"},
            r"SizeClustered: whole_rows_first must be True or False; got 'yes'",
        ),
        ("size", {"cohort_size": 3}, r"unknown key 'cohort_size'"),
    ],
)
def test_unknown_names_and_keys_are_refused_with_a_suggestion(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(DesignError, match=message):
        make_recipe(name, 2, options)


def test_a_whole_number_is_a_number_of_seconds() -> None:
    assert make_recipe("deadline", 2, {"deadline": 4}) == Deadline(2, deadline=4)
