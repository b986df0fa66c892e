"""What another failure rule or design would have given on the same presences: rounds replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs import Recipe, SizeClustered
from fedcohort.designs.catalogue import text_of
from fedcohort.errors import FedcohortError, InputError
from fedcohort.participation.law import Floats, Law, population_of
from fedcohort.participation.table import Participation
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.selector.settings import OnFailure

#: Replays of each case, and the most rounds of all of them together.
REPLAYS, FEWEST, MOST_ROUNDS = 20, 3, 4000
#: The rules that draw on their own; "renormalise" has the draws of "keep".
RULES: tuple[OnFailure, ...] = ("keep", "redraw")


@final
@dataclass(frozen=True)
class Outcome:
    """A number of each replay: its mean, and the range of 95 % of replays; all equal if exact."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Outcome:
        """Return the mean and the range of numbers."""
        low, high = np.quantile(values, [0.025, 0.975])
        return cls(float(np.mean(values)), float(low), float(high))


@final
@dataclass(frozen=True)
class Replay:
    """A case that was replayed.

    Attributes
    ----------
    name
        The design, and the rule for failures.
    is_same_draw
        Whether the clients that were drawn are those of the log: only the weights differ.
    bias
        The sum over clients of ``|realised share - share of samples|``.
    effective
        The effective number of clients.
    kept
        The share of the weight that stayed on the model, since clients failed.
    repeats
        How often the rounds were replayed; 1 if the result is exact.
    """

    name: str
    is_same_draw: bool
    bias: Outcome
    effective: Outcome
    kept: Outcome
    repeats: int


def shares_of(weights: Floats) -> Floats:
    """Return shares of a total weight; all 0 if it is 0."""
    total = weights.sum()
    return weights / total if total > 0 else weights


def effective_number(shares: Floats) -> float:
    """Return the number of equal clients whose average varies as much: 1 / sum of squares."""
    squares = float((shares**2).sum())
    return 1 / squares if squares > 0 else 0.0


def answers_if_asked(own: Participation, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return who would answer in which round, shape (n_rounds, n_clients).

    What the log shows is kept: who was asked answered or failed. Others answer as at the nearest
    round in which they were asked: at an equal distance, either by chance. Those never asked answer
    with the chance of all.
    """
    known = own.dense(own.answered.astype(np.int8), -1)
    n_rounds, here = own.n_rounds, np.arange(own.n_rounds, dtype=np.int32)[:, None]
    far = np.int32(10 * n_rounds + 10)
    before = np.maximum.accumulate(np.where(known >= 0, here, -far), axis=0)
    after = np.minimum.accumulate(np.where(known >= 0, here, far)[::-1], axis=0)[::-1]
    nearer = (here - before) - (after - here)  # below 0: the one before
    nearer = np.where(nearer == 0, rng.integers(0, 2, nearer.shape, dtype=np.int8) * 2 - 1, nearer)
    source = np.clip(np.where(nearer < 0, before, after), 0, max(0, n_rounds - 1))
    found: NDArray[np.bool_] = np.take_along_axis(known, source, axis=0) > 0
    never = np.flatnonzero(~(known >= 0).any(axis=0))
    rate = float(own.answered.mean()) if len(own.row) else 1.0
    found[:, never] = rng.random((n_rounds, len(never))) < rate
    return found


def replayed_weights(
    own: Participation,
    recipe: Recipe,
    *,
    on_failure: OnFailure = "keep",
    answers: NDArray[np.bool_],
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Play the rounds with a selector on given presences.

    The same seed gives the same cohorts, and with the same presences the same weights, as in a
    simulation and in a deployment.

    Returns
    -------
    The final weights, shape (n_rounds, n_clients), and the sum of each round's weights as drawn.
    """
    known = population_of(own)
    clients = Population.of_checked(known.sizes, range(own.n_clients), known.groups)
    selector = Selector(recipe, clients, seed=seed, on_failure=on_failure)
    found, drawn = np.zeros((own.n_rounds, own.n_clients)), np.zeros(own.n_rounds)
    for k in range(own.n_rounds):
        cohort = selector.draw(None if own.available is None else own.available[k])
        asked, drawn[k] = np.array(selector.asked, dtype=np.int64), cohort.weights.sum()
        while selector.redraw(asked[~answers[k, asked]]):
            asked = np.array(selector.asked, dtype=np.int64)
        if len(cohort):
            settled = selector.settle(asked[answers[k, asked]])
            found[k, settled.clients] = settled.weights
        selector.skip()
    return found, drawn


def replays_of(
    own: Participation,
    law: Law,
    intended: Floats,
    *,
    designs: Sequence[Recipe] = (),
    seed: int = 0,
) -> list[Replay]:
    """Replay the log under other rules and designs; ``size`` if none is named."""
    if own.counts is not None or not own.n_rounds or not len(own.row):
        return []
    found = [_same_draws(own, law, intended, rule) for rule in ("keep", "renormalise")]
    claimed = [] if law.recipe is None else [law.recipe]
    if claimed and not designs and claimed[0].cohort_size < own.n_clients:
        designs = [SizeClustered(claimed[0].cohort_size)]
    repeats = max(FEWEST, min(REPLAYS, MOST_ROUNDS // own.n_rounds))
    known = {text_of(each): each for each in (*claimed, *designs)}
    for name, recipe in known.items():
        if recipe.learns or recipe.signals or recipe.keeps:
            if recipe not in claimed:
                raise InputError(
                    f"audit: {name} cannot be replayed: it draws by what clients answered in "
                    "training. Choose another design, or simulate it."
                )
            continue
        found += _replayed(own, recipe, repeats, seed)
    return found


def _same_draws(own: Participation, law: Law, intended: Floats, rule: str) -> Replay:
    """Weigh the drawn clients that answered by another rule: exact."""
    kept = np.where(own.answered & (own.count > 0), intended, 0.0)
    if rule == "renormalise":
        sums = own.per_round(kept)
        full = own.per_round(intended)
        kept = kept * np.where(sums > 0, full / np.where(sums > 0, sums, 1.0), 0.0)[own.row]
    weights = own.per_client(kept) / own.n_rounds
    lost = 1 - kept.sum() / max(float(intended.sum()), 1e-300)
    return _summary(
        f"same draws, {rule}", True, [(weights, float(lost))], population_of(own).importance
    )


def _replayed(own: Participation, recipe: Recipe, repeats: int, seed: int) -> list[Replay]:
    """Replay a design under the three rules; leave out rules that it cannot take."""
    results: dict[str, list[tuple[Floats, float]]] = {}
    for k in range(repeats):
        answers = answers_if_asked(own, np.random.default_rng([seed, k]))
        for rule in RULES:
            try:
                weights, drawn = replayed_weights(
                    own, recipe, on_failure=rule, answers=answers, seed=seed + k
                )
            except FedcohortError:  # a rule, or a number of clients, that the design cannot take
                continue
            lost = 1 - float(weights.sum()) / max(float(drawn.sum()), 1e-300)
            results.setdefault(rule, []).append((weights.mean(axis=0), lost))
            if rule == "keep":  # the same draws
                weights = renormalised(weights, drawn)
                results.setdefault("renormalise", []).append((weights.mean(axis=0), 0.0))
    p = population_of(own).importance
    return [
        _summary(f"{text_of(recipe)}, {rule}", False, each, p)
        for rule, each in results.items()
        if len(each) == repeats
    ]


def renormalised(weights: Floats, drawn: Floats) -> Floats:
    """Return what the rule "renormalise" makes of the weights of "keep".

    Where weight was lost, that of the answers becomes 1.
    """
    sums = weights.sum(axis=1)
    has_lost = (sums < drawn - 1e-12) & (sums > 0)
    return weights / np.where(has_lost, np.where(sums > 0, sums, 1.0), 1.0)[:, None]


def _summary(
    name: str, is_same: bool, results: Sequence[tuple[Floats, float]], p: Floats
) -> Replay:
    shares = [shares_of(weights) for weights, _ in results]
    return Replay(
        name,
        is_same,
        Outcome.of([float(np.abs(each - p).sum()) for each in shares]),
        Outcome.of([effective_number(each) for each in shares]),
        Outcome.of([lost for _, lost in results]),
        len(results),
    )
