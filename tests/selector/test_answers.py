"""Answers are read once: how often updates are scanned and copied, and who keeps them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedcohort import (
    Cohort,
    Difference,
    Multinomial,
    Recipe,
    Selector,
    SimilarityClustered,
    Tournament,
)
from fedcohort import _updates as update_checks
from fedcohort.errors import SelectorError
from fedcohort.selector import Answers
from fedcohort.selector.open_round import Draws
from fedcohort.similarity import measures

CLIENTS, DRAWS, DIMENSION, SKETCH = 12, 4, 50, 10
SIMILARITY = SimilarityClustered(DRAWS)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many numbers each scan for finite ones reads."""
    sizes: list[int] = []

    def noting(function: Any, callers: tuple[str, ...] = ()) -> Any:
        def call(array: Any) -> Any:
            if not callers or sys._getframe(1).f_code.co_name in callers:
                sizes.append(int(np.size(array)))
            return function(array)

        return call

    # Measures also scale by the largest entry: only their check looks for finite numbers.
    of_checks = noting(update_checks.largest_entries, callers=("checked_updates",))
    monkeypatch.setattr(measures, "largest_entries", of_checks)
    monkeypatch.setattr(update_checks, "largest_entries", noting(update_checks.largest_entries))
    monkeypatch.setattr(np, "isfinite", noting(np.isfinite))
    return sizes


def rows_for(selector: Selector, n: int) -> np.ndarray:
    rows = np.random.default_rng(selector.round_).normal(size=(n, DIMENSION))
    return rows.astype(np.float32)


def play(selector: Selector) -> None:
    cohort = selector.draw()
    selector.aggregate(rows_for(selector, len(cohort)))


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (Multinomial(DRAWS), {}),
        (Multinomial(DRAWS), {"estimator": "difference"}),
        (Multinomial(DRAWS), {"estimator": Difference(keep="int8")}),
        (SIMILARITY, {}),
        (SIMILARITY, {"estimator": "difference"}),
        (SIMILARITY, {"estimator": "difference", "overlap": True}),
        (SIMILARITY, {"estimator": "difference", "rebuild_every": 2}),
    ],
    ids=str,
)
def test_an_answer_is_scanned_once_and_so_is_the_step(
    recipe: Recipe, options: dict[str, Any], scanned: list[int]
) -> None:
    selector = Selector(recipe, [5] * CLIENTS, seed=0, **options)
    for _ in range(3):
        play(selector)
    cohort = selector.draw()
    scanned.clear()

    selector.aggregate(rows_for(selector, len(cohort)))

    assert sum(size for size in scanned if size >= DIMENSION) == (len(cohort) + 1) * DIMENSION


def test_a_sketch_is_scanned_too_since_its_sums_can_overflow(scanned: list[int]) -> None:
    selector = Selector(SIMILARITY, [5] * CLIENTS, seed=0, sketch=SKETCH, estimator="difference")
    for _ in range(3):
        play(selector)
    cohort = selector.draw()
    scanned.clear()

    selector.aggregate(rows_for(selector, len(cohort)))

    n = len(cohort)
    assert sum(size for size in scanned if size >= SKETCH) == (n + 1) * DIMENSION + n * SKETCH


def test_a_design_scans_what_is_remembered_once(scanned: list[int]) -> None:
    """Together with its answer, an update of a similarity round is scanned twice."""
    selector = Selector(SIMILARITY, [5] * CLIENTS, seed=0, estimator="difference")
    for _ in range(3):
        play(selector)
    scanned.clear()

    selector.draw()

    assert scanned.count(CLIENTS * DIMENSION) == 1
    assert max(size for size in scanned if size != CLIENTS * DIMENSION) <= CLIENTS**2


@pytest.mark.parametrize("options", [{"overlap": True}, {"rebuild_every": 2}], ids=str)
def test_the_memory_keeps_what_a_client_sent_if_the_caller_reuses_its_array(
    options: dict[str, Any],
) -> None:
    selector = Selector(Tournament(DRAWS), [5] * CLIENTS, seed=0, **options)
    cohort = selector.draw()
    buffer = rows_for(selector, len(cohort))
    sent = buffer.copy()
    selector.aggregate(buffer)
    buffer[:] = -1.0
    selector.draw()
    selector.skip()
    selector.draw()

    assert selector.memory is not None
    assert (selector.memory.updates[cohort.clients] == sent).all()


def arrays(*lengths: int) -> Any:
    return [np.ones(n) for n in lengths]


WRONG_PARTS: dict[str, tuple[Callable[[Selector], Any], str]] = {
    "none": (lambda s: [], r"at least one Answers; got \[\]"),
    "a number": (lambda s: 5, "at least one Answers; got 5"),
    "others": (lambda s: ["x", "y"], "at least one Answers; got"),
    "the same client": (lambda s: [s.receive({0: arrays(2)})] * 2, "position 0 is in two of them"),
    "other sizes": (
        lambda s: [s.receive({0: arrays(2)}), s.receive({1: arrays(3)})],
        r"the same arrays, \[\(2,\)\]; got \[\(3,\)\]",
    ),
    "other shapes": (
        lambda s: [s.receive({0: arrays(2)}), s.receive({1: arrays(1, 1)})],
        r"the same arrays, \[\(2,\)\]; got \[\(1,\), \(1,\)\]",
    ),
    "one not whole": (
        lambda s: [s.receive({0: arrays(2)}), s.receive({1: arrays(2)}, whole=False)],
        "only some have layout, rows",
    ),
    "one without a loss": (
        lambda s: [s.receive({0: arrays(2)}), s.receive({1: arrays(2)}, losses={1: 1.0})],
        "only some have past_loss",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_parts_that_cannot_be_joined_are_refused(wrong: str) -> None:
    selector = Selector(Multinomial(6), [1, 1], seed=0)
    assert selector.draw().ids == [0, 1]
    parts, sentence = WRONG_PARTS[wrong]

    with pytest.raises(SelectorError, match=sentence):
        Answers.joined(parts(selector))


def test_parts_of_two_rounds_are_refused() -> None:
    selector = Selector(Multinomial(6), [1, 1], seed=0)
    selector.draw()
    first = selector.receive({0: arrays(2)})
    selector.skip()
    selector.draw()

    with pytest.raises(SelectorError, match=r"must be of one round; got those of rounds \[0, 1\]"):
        Answers.joined([first, selector.receive({1: arrays(2)})])


def test_parts_without_a_usable_update_are_joined() -> None:
    selector = Selector(Multinomial(6), [1, 1], seed=0)
    selector.draw()
    bad, none = selector.receive({0: np.full(2, np.nan)}), selector.receive({})

    assert len(Answers.joined([bad, none])) == 0
    assert len(Answers.joined([none, bad, selector.receive({1: np.ones(2)})])) == 1


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("on_failure", ["keep", "renormalise", "redraw"])
def test_a_round_is_settled_once_and_its_cohort_validated_once(
    on_failure: Any, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    selector = Selector(Multinomial(DRAWS), [5] * CLIENTS, seed=0, on_failure=on_failure)
    play(selector)
    calls: list[str] = []

    def noted(kind: Any, name: str) -> None:
        function = getattr(kind, name)

        def call(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return function(*args, **options)

        monkeypatch.setattr(kind, name, call)

    noted(Draws, "settle")
    noted(Cohort, "__post_init__")
    cohort = selector.draw()
    if lost:
        selector.redraw(cohort.ids[:1])
    there = [each for each in selector.asked if not lost or each != cohort.ids[0]]
    selector.aggregate(rows_for(selector, len(there)), there)

    assert sorted(calls) == ["__post_init__", "settle"]


def test_answers_are_settled_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, settled = list[int](), Draws.settle

    def counting(*given: Any, **more: Any) -> Cohort:
        calls.append(1)
        return settled(*given, **more)

    monkeypatch.setattr(Draws, "settle", counting)
    selector = Selector(Multinomial(2), [1, 1, 1], seed=0, on_failure="redraw")
    cohort = selector.draw()
    answers = selector.receive({each: [1.0] for each in cohort.ids})

    first = selector.settle(answers)
    selector.step(answers)
    assert len(calls) == 1
    selector.redraw(cohort.ids[:1])
    assert selector.settle(answers).ids == first.ids[1:]
    selector.remember(answers)
    assert len(calls) == 2
