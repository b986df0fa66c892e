"""The recipes by name, for files and the command line."""

from collections.abc import Mapping
from dataclasses import MISSING, fields

from fedcohort._arguments import brief, did_you_mean
from fedcohort.baselines.cohort_mean import CohortMean
from fedcohort.baselines.deadline import Deadline
from fedcohort.baselines.divfl import DivFL
from fedcohort.baselines.first_responders import FirstResponders
from fedcohort.baselines.hics import HiCS
from fedcohort.baselines.norm_optimal import NormOptimal
from fedcohort.baselines.oort import Oort
from fedcohort.baselines.power_of_choice import PowerOfChoice
from fedcohort.baselines.round_robin import RoundRobin
from fedcohort.baselines.shuffled import Shuffled
from fedcohort.baselines.uniform import Uniform
from fedcohort.designs.auto import Auto
from fedcohort.designs.balanced import Balanced
from fedcohort.designs.k_vib import KVib
from fedcohort.designs.multinomial import Multinomial
from fedcohort.designs.osmd import OSMD
from fedcohort.designs.poisson import Poisson
from fedcohort.designs.recipe import Recipe
from fedcohort.designs.similarity_clustered import SimilarityClustered
from fedcohort.designs.size_clustered import SizeClustered
from fedcohort.designs.stratified import Stratified
from fedcohort.designs.target import Target
from fedcohort.designs.tournament import Tournament
from fedcohort.errors import DesignError

#: Every recipe of the library, by its name.
RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Uniform,
        CohortMean,
        Multinomial,
        Poisson,
        SizeClustered,
        SimilarityClustered,
        Target,
        Tournament,
        Auto,
        Balanced,
        Stratified,
        OSMD,
        KVib,
        RoundRobin,
        Shuffled,
        NormOptimal,
        FirstResponders,
        Deadline,
        PowerOfChoice,
        Oort,
        DivFL,
        HiCS,
    )
}


def make_recipe(name: str, cohort_size: int, options: Mapping[str, object]) -> Recipe:
    """Make the recipe ``name`` with hyper-parameters from a file or the command line.

    Examples
    --------
    >>> make_recipe("size", 10, {"whole_rows_first": True})
    SizeClustered(cohort_size=10, whole_rows_first=True)
    """
    if not isinstance(name, str):
        raise DesignError(
            f"make_recipe: name must be a design's name; got {brief(name)}. Try 'size'."
        )
    if name not in RECIPES:
        raise DesignError(
            f"unknown design {brief(name)}; known are {', '.join(RECIPES)}."
            f"{did_you_mean(name, RECIPES)}"
        )
    return recipe_of(RECIPES[name], cohort_size, options)


def recipe_of(kind: type[Recipe], cohort_size: int, options: Mapping[str, object]) -> Recipe:
    """Make a recipe of this kind; raise if an option is not one of its hyper-parameters."""
    if not (isinstance(kind, type) and issubclass(kind, Recipe) and hasattr(kind, "name")):
        raise DesignError(
            f"recipe_of: kind must be a class of recipes; got {brief(kind)}. Pass for example "
            f"SizeClustered."
        )
    if not isinstance(options, Mapping):
        raise DesignError(
            f"design {kind.name!r}: options must be a mapping; got {brief(options)}. Pass a dict."
        )
    settings = [field for field in fields(kind) if field.name != "cohort_size"]
    own = [field.name for field in settings if field.default is not MISSING]
    for key in options:
        if key not in own:
            known = f"known are {', '.join(own)}" if own else "it has none of its own"
            raise DesignError(
                f"design {kind.name!r}: unknown key {brief(key)}; {known}.{did_you_mean(key, own)}"
            )
    bare = [each.name for each in settings if each.default is each.default_factory is MISSING]
    if bare:
        raise DesignError(
            f"design {kind.name!r}: hyper-parameters need defaults; {', '.join(bare)} has none. "
            f"Give it one."
        )
    return kind(cohort_size, **options)


def named_recipe(text: str, cohort_size: int) -> Recipe:
    """Parse ``name[:key[=value]]...`` into a recipe; a key without a value means True.

    Examples
    --------
    >>> named_recipe("size:whole_rows_first", 10)
    SizeClustered(cohort_size=10, whole_rows_first=True)
    """
    name, *pairs = text.strip().split(":")
    options: dict[str, object] = {}
    for pair in pairs:
        key, given, value = pair.partition("=")
        options[key.strip()] = _value(value.strip()) if given else True
    return make_recipe(name, cohort_size, options)


def text_of(recipe: Recipe) -> str:
    """Write a recipe in the format of :func:`named_recipe`, without the cohort size.

    Examples
    --------
    >>> text_of(SizeClustered(10, whole_rows_first=True))
    'size:whole_rows_first'
    """
    parts = [recipe.name]
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name != "cohort_size" and value != field.default:
            parts.append(field.name if value is True else f"{field.name}={value}")
    return ":".join(parts)


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
