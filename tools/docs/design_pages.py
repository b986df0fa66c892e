"""Write the made parts of the pages of designs: facts, the plot, the class, the recipe."""

from __future__ import annotations

from dataclasses import MISSING, fields

import numpy as np

import fedcohort
from api_pages import section
from docstrings import entries
from example_federation import (
    COHORT_SIZE,
    KINDS,
    POPULATION,
    ROUND,
    SIZES,
    behaviour,
    changes,
    recipe_named,
    signals,
)
from fedcohort import CohortMean, Recipe
from fedcohort.designs import RECIPES
from inclusion_plot import inclusion_plot

#: The meaning of asking for a signal, as the simulator counts it.
ASKING = {
    "update_norm": "they get the model, train and send one number; those drawn then send their "
    "updates",
    "loss": "they get the model, evaluate it on all their samples and send one number",
    "duration": "they get one number and send one",
}


def facts(name: str) -> str:
    """Return the table of facts and the plot of a design."""
    recipe, seen = recipe_named(name), behaviour(name)
    kind = RECIPES[name].__name__
    rows = {
        "in files and commands": f"`{name}`",
        "in Python": f"[`{kind}`](name:fedcohort.{kind}), "
        f"[`{kind}Design`](name:fedcohort.designs.{kind}Design)",
        "unbiased": "yes" if seen.unbiased else "no",
        "needs": needs(recipe),
        "asks before the draw": asked(recipe),
        "is built": "in every round" if changes(recipe) else "once",
        "V in the example": f"{seen.variance:.3g} of multinomial sampling's",
        "distinct clients in it": f"{seen.inclusion.sum():.3g} in {COHORT_SIZE} draws",
    }
    table = [f"| {key} | {value} |" for key, value in rows.items()]
    return "\n".join(["| fact | value |", "| --- | --- |", *table, "", figure(name)])


def figure(name: str) -> str:
    """Return the plot with its caption."""
    seen = behaviour(name)
    error = f", standard errors up to {seen.standard_error:.3f}" if seen.standard_error else ""
    return (
        f"![The chance of each of {len(SIZES)} clients to be in the cohort under {name}]"
        f"(figures/{name}.svg)\n\n"
        f"*The chance of each client to be in the cohort, {seen.source}{error}. Lines: multinomial "
        f"sampling. {len(SIZES)} clients, {COHORT_SIZE} draws: "
        f"[the example](index.md#the-example).*"
    )


def pictures() -> dict[str, str]:
    """Return the plot of every design, by its path below docs/."""
    base = behaviour("multinomial").inclusion
    return {
        f"reference/designs/figures/{name}.svg": inclusion_plot(
            name, behaviour(name).inclusion, base, SIZES
        )
        for name in RECIPES
    }


def needs(recipe: Recipe) -> str:
    """Say what a recipe's design is built from.

    >>> needs(fedcohort.PowerOfChoice(2))
    'sizes, `loss`'
    >>> needs(fedcohort.CohortMean(2))
    'the sizes of the drawn clients'
    >>> needs(fedcohort.KVib(2))
    "sizes, norms of the drawn clients' past updates"
    """
    found = ["the sizes of the drawn clients" if isinstance(recipe, CohortMean) else "sizes"]
    if recipe.grouped:
        found.append("every client's group")
    if recipe.learns:
        found.append("the clients' last updates")
    if recipe.learns_output:
        found.append("past updates of the output layer's bias")
    elif recipe.keeps:
        found.append("norms of the drawn clients' past updates")
    found.extend(f"`{signal}`" for signal in recipe.signals)
    return ", ".join(found)


def asked(recipe: Recipe) -> str:
    """Say who is asked for what, and what that means."""
    request = recipe.ask(POPULATION, ROUND, np.random.default_rng(0))
    if request is None:
        return "no client"
    number = len(request.clients)
    who = "every client" if number == len(SIZES) else f"some candidates (here {number})"
    means = ASKING[request.signal]
    if recipe.overselects:
        means = "all get the model and train; the server sees who answers first"
    return f"{who} for `{request.signal}`: {means}"


def the_class(name: str) -> str:
    """Return the class with its docstring."""
    return section(f"fedcohort.designs.{RECIPES[name].__name__}Design", level=3)


def the_recipe(name: str) -> str:
    """Return how a file names the recipe, and a table of its own keys."""
    kind = RECIPES[name]
    lines = [
        f'```toml\n[[design]]\nrecipe = "{name}"\n```\n',
        section(f"fedcohort.{kind.__name__}", level=3) + "\n",
    ]
    own = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    if own:
        lines += ["| key | default | meaning |", "| --- | --- | --- |"]
    for key, default in own.items():
        shown = repr(default).replace("'", '"')
        lines.append(f"| `{key}` | `{shown}` | {meaning(name, key)} |")
    return "\n".join(lines)


def meaning(name: str, key: str) -> str:
    """Return what a docstring says of a hyper-parameter: the recipe's, or its design's.

    >>> meaning("deadline", "deadline")
    'In seconds, positive.'
    """
    design = getattr(fedcohort.designs, f"{RECIPES[name].__name__}Design")
    for owner in (*RECIPES[name].__mro__, design):
        if key in entries(owner):
            return entries(owner)[key]
    raise LookupError(f"no docstring says what {key} of {name} is")


def all_designs() -> str:
    """Return the table of all designs."""
    lines = ["| design | unbiased | needs | V | distinct |", "| --- | --- | --- | --- | --- |"]
    for name in RECIPES:
        seen = behaviour(name)
        lines.append(
            f"| [`{name}`]({name}.md) | {'yes' if seen.unbiased else 'no'} "
            f"| {needs(recipe_named(name))} | {seen.variance:.3g} | {seen.inclusion.sum():.3g} |"
        )
    return "\n".join(lines)


def the_example() -> str:
    """Return the table of the example's clients."""
    known = signals()
    lines = [
        "| client | size | kind | `update_norm` | `loss` | `duration` | last drawn |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for client, size in enumerate(SIZES):
        last = known["past_round"][client]
        lines.append(
            f"| {client + 1} | {size} | {KINDS[client]} | {known['update_norm'][client]:.2f} "
            f"| {known['loss'][client]:.2f} | {known['duration'][client]:.2f} s "
            f"| {'never' if np.isnan(last) else f'round {last:.0f}'} |"
        )
    return "\n".join(lines)
