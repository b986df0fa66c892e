"""What a selector's saved state begins with: the recipe and the settings that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._failures import FailureRule
from fedcohort._whole_file import read_arrays
from fedcohort.designs import Recipe
from fedcohort.errors import SelectorError
from fedcohort.memory import Difference

FORMAT = "fedcohort selector 1"

State = Mapping[str, NDArray[Any]]


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """What a state belongs to: a selector's arguments, clients and log aside."""

    recipe: Recipe
    difference: Difference | None
    rule: FailureRule
    seed: int
    sketch: int | None
    overlap: bool

    def head(self, round_: int) -> NDArray[np.uint8]:
        """Return the head of a state, as an array."""
        return np.frombuffer(json.dumps({**self._plain(), "round": round_}).encode(), np.uint8)

    def round_of(self, state: State) -> int:
        """Return the round of a state; refuse a state of another recipe or other settings."""
        head = head_of(state)
        for name, own in self._plain().items():
            if head.get(name) != own:
                raise SelectorError(
                    f"Selector: the state was written with another {name}, "
                    f"{_shown(head.get(name))}; got {_shown(own)}. Use the same one."
                )
        return int(head["round"])

    def _plain(self) -> dict[str, Any]:
        """Return everything in plain values; a recipe that is not the library's as text."""
        recipe, difference = self.recipe, self.difference
        is_ours = _catalogue().get(recipe.name) is type(recipe)
        values = {
            "recipe": {
                "name": recipe.name,
                "fields": asdict(recipe) if is_ours else None,
                "text": repr(recipe),
            },
            "seed": self.seed,
            "estimator": None if difference is None else asdict(difference),
            "sketch": self.sketch,
            "failures": asdict(self.rule),
            "overlap": self.overlap,
        }
        plain: dict[str, Any] = json.loads(json.dumps(values, default=np.generic.item))
        return plain


def head_of(state: State) -> dict[str, Any]:
    """Return the head of a state; refuse what is no state."""
    try:
        head: dict[str, Any] = json.loads(state["head"].tobytes())
        round_ = int(head["round"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _no_state("it has no head") from error
    if round_ < 0:
        raise _no_state(f"its round is {round_}")
    return {**head, "round": round_}


@contextmanager
def refusing_states() -> Iterator[None]:
    """Turn what a state that is no state raises into one sentence."""
    try:
        yield
    except SelectorError:
        raise
    except KeyError as error:
        raise _no_state(f"{error} is missing") from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise _no_state(str(error).partition("\n")[0].rstrip(".")) from error


def _no_state(why: str) -> SelectorError:
    return SelectorError(
        f"Selector: this is not the state of a selector ({why}). Pass what state() gave."
    )


def read_state(path: Path) -> State:
    """Return the state in a file; refuse any other or damaged file."""
    try:
        return read_arrays(path, FORMAT)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SelectorError(
            f"Selector: {path} cannot be read ({reason.lower()}). Start without it."
        ) from error


def arguments_of(path: Path, state: State, recipe: Recipe | None) -> dict[str, Any]:
    """Return the arguments of the selector that wrote a state; ``recipe`` replaces its recipe."""
    head = head_of(state)
    with refusing_states():
        return _arguments(path, head, recipe)


def _arguments(path: Path, head: dict[str, Any], recipe: Recipe | None) -> dict[str, Any]:
    saved, difference = head["recipe"], head["estimator"]
    if recipe is None:
        recipes = _catalogue()
        if saved["fields"] is None or saved["name"] not in recipes:
            raise SelectorError(
                f"Selector: {path} was written with a recipe that is not the library's, "
                f"{saved['text']}. Pass it as recipe=."
            )
        recipe = recipes[saved["name"]](**saved["fields"])
    return {
        "recipe": recipe,
        "seed": head["seed"],
        "estimator": "plain" if difference is None else Difference(**difference),
        "sketch": head["sketch"],
        "overlap": head["overlap"],
        **head["failures"],
    }


def _catalogue() -> Mapping[str, type[Recipe]]:
    """Import all recipes, which only files need."""
    from fedcohort.designs import RECIPES

    return RECIPES


def _shown(value: object) -> object:
    return value["text"] if isinstance(value, dict) and "text" in value else value
