"""The arguments of a selector in its saved state, and the errors of an invalid one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort._archive import State, json_array, json_value
from fedcohort.designs import Recipe
from fedcohort.errors import SelectorError
from fedcohort.memory.difference import estimator_fields, estimator_from_fields
from fedcohort.selector.settings import KEYWORDS, SelectorSettings

#: What a selector's archive means, and its version.
KIND = "selector 5"


def head(settings: SelectorSettings, seed: int, round_: int) -> NDArray[np.uint8]:
    """Return the head of a state, as an array: the selector's arguments, and the round."""
    return json_array({**_plain(settings, seed), "round": round_})


def round_of(state: State, settings: SelectorSettings, seed: int) -> int:
    """Return the round of a state; refuse a state of another recipe or other settings."""
    found = head_of(state)
    for name, own in _plain(settings, seed).items():
        if found.get(name) != own:
            raise SelectorError(
                f"Selector: the state was written with another {name}, "
                f"{_shown(found.get(name))}; got {_shown(own)}. Use the same one."
            )
    return int(found["round"])


def _plain(settings: SelectorSettings, seed: int) -> dict[str, Any]:
    """Return all arguments as JSON values; a user's own recipe as text."""
    recipe, estimator = settings.recipe, settings.predictor
    is_ours = _catalogue().get(recipe.name) is type(recipe)
    values = {
        "recipe": {
            "name": recipe.name,
            "fields": asdict(recipe) if is_ours else None,
            "text": repr(recipe),
        },
        "seed": seed,
        **settings.keywords(),
        "estimator": estimator and estimator_fields(estimator),
    }
    plain: dict[str, Any] = json.loads(json.dumps(values, default=np.generic.item))
    return plain


def head_of(state: State) -> dict[str, Any]:
    """Return the head of a state; without a valid one, raise a ``ValueError``."""
    try:
        head: dict[str, Any] = json_value(state["head"])
        round_ = int(head["round"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError("it has no head") from error
    if round_ < 0:
        raise ValueError(f"its round is {round_}")
    return {**head, "round": round_}


@contextmanager
def refusing_states(path: Path | None = None) -> Iterator[None]:
    """Turn the errors of an invalid state into one sentence; ``path`` is the file it is from."""
    try:
        yield
    except SelectorError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = _why(error)
        if path is None:
            message = f"this is not the state of a selector ({why}). Pass what state() gave."
        else:
            message = (
                f"{path} cannot be used ({why}). Load another checkpoint, or start a new selector."
            )
        raise SelectorError(f"Selector: {message}") from error


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error).partition("\n")[0].rstrip(".")


def arguments_of(state: State, recipe: Recipe | None, path: Path | None) -> dict[str, Any]:
    """Return the arguments of the selector that wrote a state; ``recipe`` replaces the state's."""
    head = head_of(state)
    saved, saved_estimator = head["recipe"], head["estimator"]
    if recipe is None:
        recipes = _catalogue()
        if saved["fields"] is None or saved["name"] not in recipes:
            raise SelectorError(
                f"Selector: {path or 'the state'} was written with a recipe that is not the "
                f"library's, {saved['text']}. Pass it as recipe=."
            )
        recipe = recipes[saved["name"]](**saved["fields"])
    return {
        **{name: head[name] for name in ("seed", *KEYWORDS)},
        "recipe": recipe,
        "estimator": estimator_from_fields(saved_estimator) if saved_estimator else "plain",
        "chances": {} if head["presence"] == "known" else None,  # the state has them
    }


def _catalogue() -> Mapping[str, type[Recipe]]:
    """Import all recipes; only files need them."""
    from fedcohort.designs import RECIPES

    return RECIPES


def _shown(value: object) -> object:
    return value["text"] if isinstance(value, dict) and "text" in value else value
