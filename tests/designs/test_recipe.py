"""Recipes are valid from the moment they exist; ``rng`` is a seed, a generator or None."""

from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pytest

from fedcohort import (
    Deadline,
    FedcohortError,
    Multinomial,
    Oort,
    Population,
    PowerOfChoice,
    Recipe,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Uniform,
)
from fedcohort.designs import RECIPES, Design, Knowledge, MultinomialDesign
from fedcohort.designs.signals import Request
from fedcohort.errors import DesignError
from fedcohort.testing.contract import build_from_recipe

#: What no setting of the catalogue is.
NONSENSE: tuple[object, ...] = (None, object(), [1], "nonsense", float("nan"), -7)


def whatever(value: object) -> Any:
    """Hide a value's type from the type checker."""
    return value


def settings() -> list[tuple[type[Recipe], Field[Any]]]:
    """Return every setting of every recipe, the cohort size included."""
    return [(kind, each) for kind in RECIPES.values() for each in fields(kind)]


@dataclass(frozen=True)
class Both(Recipe):
    name: ClassVar[str] = "both"
    signals: ClassVar[tuple[str, ...]] = ("duration", "loss")

    def design(self, population: Population, known: Knowledge) -> Design:
        return MultinomialDesign(population, self.cohort_size)


@dataclass(frozen=True)
class InTurn(Both):
    def ask(self, population: Population, round_: int, rng: np.random.Generator) -> Request:
        return Request("duration" if round_ % 2 else "loss", np.flatnonzero(population.sizes))


def test_a_recipe_that_asks_for_two_signals_must_say_when() -> None:
    with pytest.raises(DesignError, match=r"Both: a recipe may ask .* got loss and duration"):
        Both(2)

    request = Selector(InTurn(2), [1, 2, 3]).ask()
    assert request is not None
    assert request.signal == "loss"


@pytest.mark.parametrize(
    ("kind", "setting"), settings(), ids=[f"{k.name}.{f.name}" for k, f in settings()]
)
def test_a_setting_that_makes_no_sense_is_refused_when_the_recipe_is_made(
    kind: type[Recipe], setting: Field[Any]
) -> None:
    for value in NONSENSE:
        is_text = setting.name == "layer" and isinstance(value, str)  # any name of an array
        if is_text or (value is None and setting.default is None):
            continue
        given: dict[str, Any] = {"cohort_size": 3, setting.name: value}
        with pytest.raises(DesignError, match=rf"^{kind.__name__}: {setting.name} must be ") as got:
            kind(**given)

        assert "\n" not in str(got.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SizeClustered(whatever("ten")), "SizeClustered: cohort_size must be .* got 'ten'"),
        (lambda: Multinomial(-3), "Multinomial: cohort_size must be .* got -3"),
        (lambda: Multinomial(True), "Multinomial: cohort_size must be .* got True"),
        (lambda: Multinomial(whatever(2.0)), "Multinomial: cohort_size must be .* got 2.0"),
        (
            lambda: SimilarityClustered(4, measure=whatever("cosine")),
            "SimilarityClustered: measure must be one of arccos, l2, l1; got 'cosine'",
        ),
        (
            lambda: Uniform(2, unbiased=whatever("False")),
            "unbiased must be True or False; got 'False'",
        ),
        (
            lambda: Oort(2, exploration=whatever("x")),
            "Oort: exploration must be a number.* got 'x'",
        ),
        (lambda: Oort(2, clip=1.5), "Oort: clip must be a number from 0 to 1; got 1.5"),
        (lambda: PowerOfChoice(5, candidates=2), "candidates must be .* at least cohort_size, 5"),
        (lambda: Deadline(5, deadline=0), "deadline must be a number above 0; got 0"),
    ],
)
def test_each_refusal_says_who_what_and_got(make: Any, message: str) -> None:
    with pytest.raises(DesignError, match=message):
        make()


@pytest.mark.parametrize("kind", RECIPES.values(), ids=RECIPES)
def test_settings_of_numpy_become_pythons_own(kind: type[Recipe]) -> None:
    own = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    arrays = {key: np.asarray(value)[()] for key, value in own.items()}

    recipe = kind(whatever(np.int64(3)), **arrays)

    assert recipe == kind(3)
    assert all(type(getattr(recipe, key)) is type(value) for key, value in own.items())


@pytest.mark.parametrize("kind", RECIPES.values(), ids=RECIPES)
def test_a_seed_stands_for_its_generator(kind: type[Recipe]) -> None:
    population = Population([5, 3, 2, 2, 7], groups=[0, 1, 0, 1, 0])
    signals = {name: np.arange(1.0, 6.0) for name in kind.signals}
    by_seed = kind(2).build(population, signals=signals, rng=3)
    by_generator = kind(2).build(population, signals=signals, rng=np.random.default_rng(3))

    drawn = by_seed.draw_many(20, 4).toarray().tolist()

    assert drawn == by_generator.draw_many(20, np.random.default_rng(4)).toarray().tolist()


@pytest.mark.parametrize("kind", RECIPES.values(), ids=RECIPES)
def test_without_a_generator_designs_draw_at_random(kind: type[Recipe]) -> None:
    design = build_from_recipe(kind(3), Population([1] * 5), 3, np.random.default_rng(0))

    assert set(design.draw().clients.tolist()) <= set(range(5))


def test_a_population_is_needed() -> None:
    with pytest.raises(FedcohortError, match="Multinomial: population must be a Population; got "):
        Multinomial(2).build([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("round_", [0.5, -1, "1", None])
def test_rounds_are_whole_numbers(round_: object) -> None:
    with pytest.raises(FedcohortError, match="Multinomial: round_ must be a whole number of at le"):
        Multinomial(2).build(Population([1, 2]), round_=round_)  # type: ignore[arg-type]
