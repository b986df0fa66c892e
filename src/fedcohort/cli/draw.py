"""``fedcohort draw``: print the cohorts of some rounds, for rounds that are run by hand."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from fedcohort._archive import json_array, json_value, read_archive, write_archive
from fedcohort._display import counted, plain_table
from fedcohort._lock import locked
from fedcohort.cli.options import (
    AsJson,
    Sizes,
    a_design,
    one_of,
    option,
    plain_console,
    read_clients,
    reads_clients,
)
from fedcohort.client_files.table import Reading
from fedcohort.cohort import Cohort
from fedcohort.designs import Recipe
from fedcohort.designs.catalogue import named_recipe, text_of
from fedcohort.errors import InputError
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.selector.files import KIND, head_of, refusing_states
from fedcohort.selector.settings import OnFailure

#: The array of a state that names the clients of its round that have failed.
FAILED = "draw.failed"
HEADINGS = ("round", "client", "draws", "weight")


@reads_clients
def draw(
    sizes: Sizes,
    cohort_size: Annotated[
        int | None, option("--cohort-size -m", "M", "Draws in a round. Needed without a state.")
    ] = None,
    rounds: Annotated[
        int | None, option("--rounds -r", "N", "Rounds to draw. Default: 1.", least=1)
    ] = None,
    design: Annotated[
        str | None,
        option(
            "--design -d",
            "DESIGN",
            "Which design; they are listed below. Default: size.",
            complete=a_design,
        ),
    ] = None,
    seed: Annotated[
        int | None, option("--seed", "N", "Seed of the draws. Default: 0.", least=0)
    ] = None,
    state: Annotated[
        Path | None,
        option("--state", "FILE", "Go on after the last round in this file, and keep it there."),
    ] = None,
    failed: Annotated[
        list[str] | None,
        option(
            "--failed",
            "CLIENT,...",
            "Clients of the last round that did not answer. Prints that round again, and who is "
            "asked instead.",
        ),
    ] = None,
    on_failure: Annotated[
        str | None,
        option(
            "--on-failure",
            "RULE",
            "What becomes of the weight of a client that fails: keep (it stays on the model), "
            "redraw (others are asked) or renormalise (the others share it). Default: keep.",
            complete=one_of(get_args(OnFailure)),
        ),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for programs.")] = False,
    *,
    reading: Reading,
) -> None:
    """Draw the cohorts of the next rounds, with their weights.

    For rounds that are run by hand or from another language: train the clients of a round, add
    each weight times its client's update to the model, and draw again.

    With --state, a later call goes on with the rounds that one call would have had. The clients
    are those of FILE now: they may come, go and change size.
    """
    if as_json and as_csv:
        raise InputError("draw: needs one of --json and --csv; got both. Drop one.")
    if failed and (state is None or rounds is not None):
        raise InputError(
            "draw: --failed needs --state, and draws no new round; got "
            f"{'no --state' if state is None else '--rounds'}. Write fedcohort draw FILE --state "
            f"STATE --failed CLIENT."
        )
    population = read_clients(sizes, reading).population
    asked = {"cohort_size": cohort_size, "design": design, "seed": seed, "on_failure": on_failure}
    with ExitStack() as stack:
        if state is not None:
            lock = state.with_name(f".{state.name}.lock")
            stack.enter_context(locked(lock, str(state), error=InputError, keep=False))
        begun = state if state is not None and state.exists() else None
        now = _new(population, asked) if begun is None else _load(begun, asked)
        shown = [_settled(now, failed)] if failed else _rounds(now, population, rounds or 1)
        _print(shown, now, as_json=as_json, as_csv=as_csv)
        sys.stdout.flush()
        if state is not None:  # only now: rounds that were not printed are drawn again
            arrays = now.selector.state() | {FAILED: json_array(shown[-1].failed)}
            write_archive(state, KIND, arrays)


@dataclass(frozen=True)
class _Draws:
    """A selector, what it was made with, and who failed in its open round.

    ``failed`` is None if no round is open.
    """

    selector: Selector
    settings: dict[str, Any]
    failed: list[Any] | None = None


@dataclass(frozen=True)
class _Round:
    """A round to print: its cohort, who failed in it, and who is asked instead."""

    cohort: Cohort
    failed: Sequence[object] = ()
    ask: Sequence[object] = ()


def _new(population: Population, asked: dict[str, Any]) -> _Draws:
    """Make a selector of what was asked, or of the defaults."""
    if asked["cohort_size"] is None:
        raise InputError(
            "draw: needs --cohort-size, the number of draws in a round; got none. Add "
            "--cohort-size 10."
        )
    recipe = named_recipe(asked["design"] or "size", asked["cohort_size"])
    settings: dict[str, Any] = {
        "cohort_size": recipe.cohort_size,
        "design": text_of(recipe),
        "seed": asked["seed"] or 0,
        "on_failure": asked["on_failure"] or "keep",
    }
    _refuse_learners(recipe)
    keywords = {"seed": settings["seed"], "on_failure": settings["on_failure"]}
    selector = Selector(recipe, population, **keywords)
    return _Draws(selector, settings)


def _refuse_learners(recipe: Recipe) -> None:
    if recipe.learns or recipe.signals:
        what = "updates" if recipe.learns else "signals"
        raise InputError(
            f"draw: design {recipe.name!r} needs the clients' {what}, which this command does not "
            f"get. Use a Selector in Python, or a design such as size."
        )


def _load(path: Path, asked: dict[str, Any]) -> _Draws:
    """Return the selector of a state; its last round is open if this command drew it."""
    selector = Selector.load(path)
    _refuse_learners(selector.recipe)
    with refusing_states(path):
        state = read_archive(path, KIND)
        failed = json_value(state[FAILED]) if FAILED in state else None
        on_failure = head_of(state)["on_failure"]
    recipe = selector.recipe
    settings = {
        "cohort_size": recipe.cohort_size,
        "design": text_of(recipe),
        "seed": selector.seed,
        "on_failure": on_failure,
    }
    if asked["design"] is not None:
        asked = asked | {"design": text_of(named_recipe(asked["design"], recipe.cohort_size))}
    other = {k: value for k, value in asked.items() if value not in (None, settings[k])}
    if other:
        raise InputError(
            f"draw: {path} was begun with {_options(settings)}; got {_options(other)}. Leave it "
            f"out, or begin another state."
        )
    if failed is not None:
        selector.draw()
        for each in failed:
            selector.redraw([each])
    return _Draws(selector, settings, failed)


def _options(settings: dict[str, Any]) -> str:
    return " ".join(
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in settings.items()
    )


def _rounds(now: _Draws, population: Population, n_rounds: int) -> list[_Round]:
    """Return the next rounds. The last one stays open, so that its clients may fail."""
    selector = now.selector
    if now.failed is not None:
        selector.skip()
    _change(selector, population)
    found = [_Round(selector.draw())]
    for _ in range(n_rounds - 1):
        selector.skip()
        found.append(_Round(selector.draw()))
    return found


def _change(selector: Selector, population: Population) -> None:
    """Give the selector the clients of the file, and say who came and went."""
    before, after = _members(selector.population), _members(population)
    before = {each: before[each] for each in selector.clients}
    if after == before:
        return  # a new law would break ties in another way
    selector.clients = population
    came, went = after.keys() - before.keys(), before.keys() - after.keys()
    other = sum(after[each] != before[each] for each in after.keys() & before.keys())
    print(
        f"draw: since the last round {counted(len(came), 'client')} came, {len(went)} went and "
        f"{other} changed size or group.",
        file=sys.stderr,
    )


def _members(population: Population) -> dict[Any, tuple[int, object]]:
    """Return the clients' sizes and groups by id."""
    groups = population.groups or [None] * population.n_clients
    pairs = zip(population.sizes.tolist(), groups, strict=True)
    return dict(zip(population.ids, pairs, strict=True))


def _settled(now: _Draws, more: list[str]) -> _Round:
    """Return the open round without those that failed, and with those asked instead."""
    selector, gone = now.selector, list(now.failed or ())
    if selector.cohort is None:
        raise InputError("draw: --failed needs a round; none was drawn yet. Draw one first.")
    names = {str(each): each for each in selector.asked}
    for text in more:
        for name in [text] if text in names else [part.strip() for part in text.split(",")]:
            if name not in names:
                raise InputError(
                    f"draw: --failed must name clients of round {selector.round_}; got {name!r}. "
                    f"They are {', '.join(names)}."
                )
            if names[name] not in gone:
                gone.append(names[name])
                selector.redraw([names[name]])
    left = [each for each in selector.asked if each not in gone]
    drawn = set(selector.cohort.ids)
    return _Round(selector.settle(left), gone, [each for each in left if each not in drawn])


def _print(shown: Sequence[_Round], now: _Draws, *, as_json: bool, as_csv: bool) -> None:
    lines = [(each, *line) for each in shown for line in _lines(each.cohort)]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(HEADINGS)
        writer.writerows((each.cohort.round_, *line) for each, *line in lines)
    elif as_json:
        print(json.dumps({**now.settings, "rounds": list(map(_content, shown))}, indent=2))
    else:
        plain_console().print(_table(shown))


def _lines(cohort: Cohort) -> Iterator[tuple[object, int, float]]:
    return zip(cohort.ids, cohort.counts.tolist(), cohort.weights.tolist(), strict=True)


def _content(each: _Round) -> dict[str, object]:
    clients = [dict(zip(HEADINGS[1:], line, strict=True)) for line in _lines(each.cohort)]
    content = {"round": each.cohort.round_, "clients": clients, "residual": each.cohort.residual}
    return content | ({"failed": each.failed, "ask": each.ask} if each.failed else {})


def _table(shown: Sequence[_Round]) -> Table:
    """Return a table with a line for each client of each round."""
    table = plain_table(*HEADINGS, left=("client",))
    for each in shown:
        cohort, round_ = each.cohort, str(each.cohort.round_)
        for client, draws, weight in _lines(cohort):
            new = " (ask now)" if client in each.ask else ""
            table.add_row(round_, f"{client}{new}", str(draws), f"{weight:.6g}")
            round_ = ""
        for client in each.failed:
            table.add_row(round_, f"{client} (failed)", "", "0")
            round_ = ""
        if not cohort.sums_to_one:
            table.add_row(round_, "(the current model)", "", f"{cohort.residual:.6g}")
    return table
