"""What the shell offers after TAB: designs, run folders, and what an experiment file has."""

import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from fedcohort.cli.runs_folder import RUNS
from fedcohort.designs import RECIPES

Offer = Callable[[str], list[str]]


def one_of(choices: Iterable[str]) -> Offer:
    """Offer fixed words."""
    words = list(choices)
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def some_of(choices: Iterable[str]) -> Offer:
    """Offer fixed words for the last place of a list with commas, each once."""
    words = list(choices)
    return lambda incomplete: _next_of(words, incomplete)


#: Offers for an option that takes a design, and for one that takes several.
a_design, some_designs = one_of(RECIPES), some_of(RECIPES)


def a_run_folder(incomplete: str) -> list[str]:
    """Offer the runs under ``./runs``; where none fits, the folders that do."""
    runs = sorted(str(path.parent) for path in RUNS.glob("*/run.json"))
    fitting = [run for run in runs if run.startswith(incomplete)]
    if fitting:
        return fitting
    typed = Path(incomplete)
    parent, start = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    try:
        folders = [path for path in parent.iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(str(path) for path in folders if path.name.startswith(start))


def designs_of_file(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the designs of the experiment file that was typed, by label or recipe."""
    designs = _content(context).get("design")
    tables = designs if isinstance(designs, list) else []
    tables = [each for each in tables if isinstance(each, dict)]
    names = [str(each.get("label", each.get("recipe", ""))) for each in tables]
    words = [name for name in dict.fromkeys(names) if name and " " not in name]
    return _next_of(words, incomplete)


def keys_of_file(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the values of the experiment file that was typed, as ``training.lr=``."""
    return [f"{key}=" for key in _keys(_content(context)) if key.startswith(incomplete)]


def _next_of(words: list[str], incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [before + comma + w for w in words if w.startswith(last) and w not in given]


def _content(context: typer.Context) -> dict[str, Any]:
    """Read the file as it is; one that cannot be read has nothing to offer."""
    # Where an option still lacks its value, click leaves the arguments before it unassigned.
    typed = [context.params.get("file"), *context.args]
    try:
        return tomllib.loads(Path(next(filter(None, typed))).read_text(encoding="utf-8"))
    except (StopIteration, OSError, ValueError):
        return {}


def _keys(table: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values that are not lists of tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{before}{key}.")
        elif not (isinstance(value, list) and value and isinstance(value[0], dict)):
            yield before + key
