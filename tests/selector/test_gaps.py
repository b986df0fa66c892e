"""Rounds in which nobody is there, nobody is drawn or nobody answers; and restarts around them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fedcohort import (
    Design,
    NormOptimal,
    Poisson,
    Population,
    Recipe,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Stratified,
    Tournament,
)
from fedcohort.designs import RECIPES, Knowledge, MultinomialDesign, SizeClusteredDesign
from fedcohort.errors import SelectorError
from selectors_for_tests import SIZES, drawn, played, updates_for

GROUPS = dict(zip(SIZES, "xyxyxy", strict=True))


def reloaded(selector: Selector, path: Path, recipe: Recipe | None = None) -> Selector:
    selector.save(path)
    return Selector.load(path, recipe=recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_a_first_round_without_anybody_changes_no_later_cohort(name: str, tmp_path: Path) -> None:
    """The design that was tried at construction is round 0's, and no other round's."""
    recipe = RECIPES[name](3)
    asked = [name for name in ("update_norm", "loss", "duration") if name in recipe.signals]
    signals: dict[str, Any] = {name: np.arange(6.0) + 1 for name in asked}
    whole, broken = (Selector(recipe, SIZES, seed=4, groups=GROUPS) for _ in range(2))
    found: list[list[Any]] = [[], []]
    for selector, cohorts in zip((whole, broken), found, strict=True):
        selector.draw(available=[])
        selector.skip()
        if selector is broken:
            selector = reloaded(selector, tmp_path / "state")
        for _ in range(4):
            cohorts.append(selector.draw(signals=signals))
            updates = updates_for(cohorts[-1])
            selector.aggregate({i: [own[:1], own[1:]] for i, own in updates.items()})

    assert drawn(found[0]) == drawn(found[1])


@pytest.mark.parametrize("recipe", [SimilarityClustered(3), Tournament(3)], ids=repr)
def test_an_empty_round_after_preparing_changes_no_later_cohort(recipe: Recipe) -> None:
    """With and without the design that was built ahead for the round that nobody was there in."""
    found: list[list[Any]] = [[], []]
    with ThreadPoolExecutor(1) as pool:
        for prepares, cohorts in zip((True, False), found, strict=True):
            selector = Selector(recipe, SIZES, seed=2, overlap=True)
            for round_ in range(8):
                cohorts.append(selector.draw(available=[] if round_ in (3, 4) else None))
                if prepares and len(cohorts[-1]):
                    selector.prepare(pool)
                selector.aggregate(updates_for(cohorts[-1]))

    assert drawn(found[0]) == drawn(found[1])


def test_clients_that_come_late_are_drawn_as_after_a_restart(tmp_path: Path) -> None:
    early = Selector(RECIPES["round-robin"](2), {})
    for _ in range(2):
        early.draw()
        early.skip()
    again = reloaded(early, tmp_path / "state")
    early.clients = again.clients = [1] * 6

    assert early.draw().ids == again.draw().ids


@dataclass(frozen=True)
class Sometimes(Recipe):
    """Reads the round only while many clients are there."""

    name: ClassVar[str] = "sometimes"

    def design(self, population: Population, known: Knowledge) -> Design:
        if np.count_nonzero(population.sizes) > 4 and known.round_ >= 0:
            return MultinomialDesign(population, self.cohort_size)
        return SizeClusteredDesign(population, self.cohort_size, rng=known.rng)


def test_a_recipe_that_reads_the_round_at_times_keeps_its_ties_after_a_restart(
    tmp_path: Path,
) -> None:
    """Two selectors see the same availability; one is loaded again after every round."""
    sizes = dict.fromkeys("abcdef", 1)
    whole, broken = (Selector(Sometimes(3), sizes, seed=0) for _ in range(2))
    for round_ in range(8):
        available = None if round_ < 2 else list("abcd")
        one, other = whole.draw(available), broken.draw(available)
        assert drawn([one]) == drawn([other])
        whole.skip()
        broken.skip()
        broken = reloaded(broken, tmp_path / "state", Sometimes(3))

    assert whole.design is not None


def empty_round(selector: Selector) -> None:
    """Play until coins draw nobody; leave that round open."""
    while len(cohort := selector.draw()):
        selector.aggregate(updates_for(cohort))


@pytest.mark.parametrize("restarts", [False, True])
def test_an_empty_cohort_moves_any_model_by_what_is_remembered(
    restarts: bool, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    selector = Selector(Poisson(1), SIZES, seed=1, estimator="difference")
    played(selector, 2)
    empty_round(selector)
    recalled = selector.recall(["a"])
    assert recalled is not None
    if restarts:
        selector = reloaded(selector, tmp_path / "state")
        assert len(selector.draw()) == 0
    model = {"w": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}

    moved = selector.aggregate({}, model=model)

    assert [*moved["w"].tolist(), *moved["b"].tolist()] == recalled[1].tolist()


@pytest.mark.parametrize("estimator", ["plain", "difference"])
def test_where_nobody_answers_the_step_is_0_whatever_the_updates_are(estimator: Any) -> None:
    selector = Selector(SizeClustered(2), SIZES, seed=0, estimator=estimator)
    for _ in range(2):
        cohort = selector.draw()
        selector.aggregate({each: np.ones((2, 3)) for each in cohort.ids})
    selector.draw()

    assert np.zeros((2, 3)).tolist() == (np.zeros((2, 3)) + selector.aggregate({})).tolist()


def test_what_is_to_be_averaged_is_that_of_its_round() -> None:
    """The pairs are taken after the round has ended, when something else is remembered."""
    updates: dict[Any, Any] = {each: np.full(2, 8.0) for each in SIZES}
    early, late = (
        Selector(SizeClustered(6), SIZES, seed=0, estimator="difference") for _ in range(2)
    )
    for selector in (early, late):
        for value in (1.0, 2.0):
            cohort = selector.draw()
            selector.aggregate({each: np.full(2, value) for each in cohort.ids})
        selector.draw()
    at_once = list(early.for_average({each: updates[each] for each in early.asked}))

    pairs = late.for_average({each: updates[each] for each in late.asked})
    late.remember({each: updates[each] for each in late.asked})

    for (one, weight, update), (other, again, changed) in zip(at_once, pairs, strict=True):
        assert (one, weight, update.tolist()) == (other, again, changed.tolist())


def test_labels_that_are_given_at_a_restart_count_for_clients_that_come(tmp_path: Path) -> None:
    first = Selector(Stratified(3), SIZES, seed=0, groups=GROUPS)
    played(first, 2)
    state = first.state()
    again = Selector(Stratified(3), {}, seed=0, groups=GROUPS | {"g": "x", "a": "y"})
    again.restore(state)

    again.clients = {**SIZES, "g": 5}

    # What was saved stays: "a" is in "x".
    assert again.population.groups == (*GROUPS.values(), "x")


def test_labels_that_are_given_at_a_restart_count_for_clients_without_one() -> None:
    first = Selector(SizeClustered(3), SIZES, seed=0)
    again = Selector(SizeClustered(3), {}, seed=0, groups=GROUPS)

    again.restore(first.state())

    assert again.population.groups == tuple(GROUPS.values())


def test_draws_that_may_weigh_differently_are_refused_at_construction() -> None:
    """With equal norms the coins of these clients would weigh the same."""
    sizes = [17, 13, 10, 6, 6, 1, 2, 1, 4, 16, 13, 18]

    with pytest.raises(SelectorError, match="needs a design with equal weight per draw"):
        Selector(NormOptimal(2), sizes, seed=0, on_failure="redraw")


def test_before_the_first_draw_there_is_no_design() -> None:
    selector = Selector(SizeClustered(2), SIZES, seed=0)

    assert selector.design is None


def test_without_clients_there_is_no_next_design() -> None:
    with pytest.raises(SelectorError, match="there is no client with samples to draw from"):
        Selector(SizeClustered(2), {}, seed=0).next_design()


def test_the_log_says_whose_update_was_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    selector = Selector(SizeClustered(3), SIZES, seed=0, log=path)
    first, second, third = selector.draw().ids

    selector.aggregate({first: [1.0], second: [np.nan]})

    line = json.loads(path.read_text())
    assert line["failed"] == {second: "not finite, or too large", third: "no answer"}


@pytest.mark.parametrize("updates", [None, 5, 1.5])
def test_what_are_no_updates_is_refused(updates: Any) -> None:
    selector = Selector(SizeClustered(3), SIZES, seed=0)
    selector.draw()

    with pytest.raises(SelectorError, match="updates must be by id, or rows in the order of ids"):
        selector.aggregate(updates)
    assert selector.cohort is not None


@pytest.mark.parametrize("updates", [np.True_, np.float64(1.5), np.array(3.0)])
def test_what_are_no_updates_is_refused_where_nobody_was_drawn(updates: Any) -> None:
    selector = Selector(SizeClustered(3), SIZES, seed=0)
    selector.draw(available=[])

    with pytest.raises(SelectorError, match="updates must be 0, one per client"):
        selector.aggregate(updates, model=np.zeros(3))


@pytest.mark.parametrize("losses", [{"a": "x"}, ["x", "y", "z"], [1.0]])
def test_reports_that_are_no_numbers_are_refused(losses: Any) -> None:
    selector = Selector(SizeClustered(6), SIZES, seed=0)
    cohort = selector.draw()

    with pytest.raises(SelectorError, match="'past_loss' must be numbers by id, or one"):
        selector.aggregate(updates_for(cohort), losses=losses)
    assert selector.round_ == 0
