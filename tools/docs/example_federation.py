"""The federation that all pages about designs share: 20 clients, 5 draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedcohort import (
    CohortMean,
    Multinomial,
    Population,
    Recipe,
    Selector,
    UpdateMemory,
    diagnostics,
)
from fedcohort.designs import Design, Knowledge, make_recipe
from fedcohort.designs.signals import Signals

COHORT_SIZE = 5
SIZES = (600, 300, 240, 200, 160, 140, 120, 100, 90, 80, 70, 60, 50, 40, 35, 30, 25, 20, 15, 10)
#: Clients take turns in five kinds; the updates of a kind point the same way, but for noise.
KINDS = tuple("abcde"[client % 5] for client in range(len(SIZES)))
DIMENSION, NOISE = 16, 0.4
#: The round of the example, and the clients that were never drawn before it.
ROUND = 60
NEW = (3, 8, 12, 17)
#: Rounds of a scheme that chooses at random before it builds, and of a design without a formula
#: for V.
ROUNDS = 4_000


def _memory() -> UpdateMemory:
    """Return every client's last update, shape (20, 16)."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((5, DIMENSION))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    noise = NOISE / math.sqrt(DIMENSION) * rng.standard_normal((len(SIZES), DIMENSION))
    lengths = rng.uniform(0.5, 2.0, size=(len(SIZES), 1))
    return UpdateMemory.of(lengths * (np.tile(centres, (len(SIZES) // 5, 1)) + noise))


MEMORY = _memory()
POPULATION = Population(SIZES, groups=KINDS)


@cache
def signals() -> Signals:
    """Return what every client would answer, and what is known of earlier rounds."""
    rng = np.random.default_rng(1)
    loss = rng.uniform(0.5, 2.0, size=len(SIZES)).round(2)
    duration = np.exp(rng.normal(2.0, 0.8, size=len(SIZES))).round(2)
    rounds = rng.integers(ROUND, size=len(SIZES)).astype(np.float64)
    is_new = np.isin(np.arange(len(SIZES)), NEW)
    return {
        "update_norm": np.linalg.norm(MEMORY.updates, axis=1),
        "loss": loss,
        "duration": duration,
        "past_loss": np.where(is_new, np.nan, loss),
        "past_duration": np.where(is_new, np.nan, duration),
        "past_round": np.where(is_new, np.nan, rounds),
    }


def recipe_named(name: str) -> Recipe:
    """Return the recipe of this name with its defaults."""
    return make_recipe(name, COHORT_SIZE, {})


def takes_turns(recipe: Recipe) -> bool:
    """Whether the design depends on the round's number, and on nothing else that changes."""
    is_alone = not (recipe.learns or recipe.signals or recipe.keeps)
    return is_alone and _built(recipe, ROUND, _rng())[1].round_was_read


def changes(recipe: Recipe) -> bool:
    """Whether the design is built again in every round.

    >>> changes(CohortMean(2)), changes(Multinomial(2))
    (True, False)
    """
    design, known = _built(recipe, ROUND, _rng())
    changing = recipe.learns or recipe.signals or recipe.keeps or known.round_was_read
    return bool(changing or not design.lasts)


@dataclass(frozen=True, slots=True, eq=False)
class Behaviour:
    """The behaviour of a scheme in the example.

    Attributes
    ----------
    inclusion
        The chance of each client to be in the cohort.
    standard_error
        The largest one of these chances; 0 where they are exact.
    unbiased
        What the design claims.
    variance
        V, squared bias included, over multinomial sampling's.
    source
        Where the chances come from, in words.
    """

    inclusion: NDArray[np.float64]
    standard_error: float
    unbiased: bool
    variance: float
    source: str


@cache
def behaviour(name: str) -> Behaviour:
    """Look at a design, or at as many of its designs as its chances need."""
    recipe = recipe_named(name)
    chances, claims, variances = [], [], []
    for design in _designs(recipe):
        chances.append(design.inclusion_probability())
        claims.append(design.unbiased)
        variances.append(_variance(design))
    rounds = len(chances)
    is_measured = _chooses_before(recipe)
    deviation = np.std(chances, axis=0).max() / math.sqrt(rounds) if is_measured else 0.0
    base = _variance(Multinomial(COHORT_SIZE).build(POPULATION, rng=_rng()))
    return Behaviour(
        inclusion=np.mean(chances, axis=0),
        standard_error=float(deviation),
        unbiased=all(claims),
        variance=float(np.mean(variances)) / base,
        source=_source(recipe, rounds),
    )


def _designs(recipe: Recipe) -> Iterator[Design]:
    """Build the design of one round, or of all that its chances are averaged over."""
    if _chooses_before(recipe):
        rounds = range(ROUND, ROUND + ROUNDS)
    elif takes_turns(recipe):
        rounds = range(len(SIZES) // math.gcd(len(SIZES), COHORT_SIZE))
    else:
        rounds = range(ROUND, ROUND + 1)
    rng = _rng()
    for round_ in rounds:
        yield _built(recipe, round_, rng)[0]


def _built(recipe: Recipe, round_: int, rng: np.random.Generator) -> tuple[Design, Knowledge]:
    """Build the design of a round, from what only the asked clients answer."""
    request = recipe.ask(POPULATION, round_, rng)
    heard = dict(signals())
    if request is not None:
        answers = np.full(len(SIZES), np.nan)
        answers[request.clients] = heard[request.signal][request.clients]
        heard[request.signal] = answers
    kept = learned(recipe)
    known = Knowledge(recipe, memory=MEMORY, signals=heard, kept=kept, round_=round_, rng=rng)
    return recipe.build_from(POPULATION, known), known


@cache
def learned(recipe: Recipe) -> dict[str, NDArray[np.float64]]:
    """Return the arrays of its own that a recipe has after the rounds before the example's.

    In each of them, every client's update is that of the example; the last five numbers are the
    output layer's bias.
    """
    if not recipe.keeps:
        return {}
    selector = Selector(recipe, POPULATION, seed=2)
    for _ in range(ROUND):
        sent = MEMORY.updates[selector.draw().clients]
        selector.aggregate([[each[:-5], each[-5:]] for each in sent])
    state = selector.state()
    return {name: state[f"records.own.{name}"] for name in recipe.keeps}


def _asks_candidates(recipe: Recipe) -> bool:
    return type(recipe).ask is not Recipe.ask


def _chooses_before(recipe: Recipe) -> bool:
    """Whether a built design is one choice of many, so that only many rounds show the scheme."""
    return _asks_candidates(recipe) or isinstance(recipe, CohortMean)


def _variance(design: Design) -> float:
    if design.exact_moments:
        return design.aggregate_variance(MEMORY.updates)
    return diagnostics.estimated_aggregate_variance(
        design, MEMORY.updates, rng=_rng(), rounds=ROUNDS
    ).value


def _source(recipe: Recipe, rounds: int) -> str:
    if _asks_candidates(recipe):
        return f"measured on {rounds:,} rounds, each with candidates of its own"
    if _chooses_before(recipe):
        return f"measured on {rounds:,} rounds, each with a cohort of its own"
    if takes_turns(recipe):
        return f"exact, over a cycle of {rounds} rounds"
    if recipe.keeps:
        return f"exact, by formula, for what it has learned in {ROUND} rounds"
    if recipe.signals:
        return "exact, for what the clients answer in this round"
    return "exact, by formula"


def _rng() -> np.random.Generator:
    return np.random.default_rng(2)
