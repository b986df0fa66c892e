"""Calls that cannot be made: each is refused in a sentence, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fedcohort import (
    Multinomial,
    NormOptimal,
    Poisson,
    PowerOfChoice,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Uniform,
)
from fedcohort.errors import FedcohortError, SelectorError
from selectors_for_tests import SIZES, experienced, frozen, updates_for

NAN = np.full(3, np.nan)


@pytest.fixture
def selector() -> Selector:
    return experienced()


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("aggregate", lambda s: s.aggregate({})),
        ("remember", lambda s: s.remember({})),
        ("skip", lambda s: s.skip()),
        ("settle", lambda s: s.settle([])),
        ("redraw", lambda s: s.redraw([])),
        ("step", lambda s: s.step({})),
        ("recall", lambda s: s.recall([])),
        ("for_average", lambda s: s.for_average({})),
        ("asked", lambda s: s.asked),
        ("prepare", lambda s: s.prepare(ThreadPoolExecutor(1))),
    ],
)
def test_without_a_draw_there_is_nothing_to_end(
    selector: Selector, method: str, call: Callable[[Selector], object]
) -> None:
    before = frozen(selector)

    with pytest.raises(SelectorError, match=f"Selector: {method} needs an open round; none is "):
        call(selector)
    assert frozen(selector) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("seed", -1), ("estimator", "best"), ("sketch", 0), ("on_failure", "retry")),
        *(("tries", -1), ("extra", 0.5), ("max_draws", 0), ("overlap", "no")),
    ],
)
def test_every_setting_is_refused_with_the_same_kind_of_error(name: str, value: object) -> None:
    settings: dict[str, Any] = {name: value}

    with pytest.raises(SelectorError, match=f"Selector: {name} must be "):
        Selector(SizeClustered(2), SIZES, **settings)


def test_a_biased_estimator_is_refused_with_the_same_kind_of_error() -> None:
    with pytest.raises(SelectorError, match=r"norm-optimal is biased .* Pass estimator='plain'"):
        Selector(NormOptimal(2), SIZES, estimator="difference")


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.draw(),
        lambda s: s.ask(),
        lambda s: s.forget(["a"]),
        lambda s: setattr(s, "clients", SIZES),
        lambda s: setattr(s, "memory", s.memory),
    ],
)
def test_an_open_round_must_end_first(
    selector: Selector, call: Callable[[Selector], object]
) -> None:
    cohort = selector.draw()

    with pytest.raises(SelectorError, match=r"round 3 is open; it must end before .* or skip\."):
        call(selector)
    assert selector.cohort is cohort


def absent(selector: Selector) -> str:
    """A client that was not drawn."""
    assert selector.cohort is not None
    return next(each for each in SIZES if each not in selector.cohort.ids)


BAD_ENDS: dict[str, tuple[Callable[[Selector, dict[Any, Any]], object], str]] = {
    "unknown id": (lambda s, u: s.aggregate({**u, "zoe": NAN}), "'zoe' is not the id of a client"),
    "not drawn": (lambda s, u: s.aggregate({**u, absent(s): NAN}), "was not drawn in round 3"),
    "bool id": (lambda s, u: s.aggregate({True: NAN}), "must be strings or integers; got True"),
    "shape": (lambda s, u: s.aggregate({**u, [*u][-1]: np.ones(2)}), "the arrays of the others"),
    "width": (lambda s, u: s.aggregate({k: np.ones(4) for k in u}), "had 3 numbers.*; got 4"),
    "rows": (
        lambda s, u: s.aggregate(np.ones((9, 3))),
        "one per client and all of the same arrays",
    ),
    "rows' ids": (lambda s, u: s.aggregate(np.ones((1, 3)), ids=["zoe"]), "'zoe' is not the id"),
    "ids twice": (
        lambda s, u: s.aggregate(np.ones((2, 3)), [*u][:1] * 2),
        "is listed twice. Pass each id once",
    ),
    "both": (lambda s, u: s.aggregate(u, ids=list(u)), "Leave ids out"),
    "text": (lambda s, u: s.aggregate(dict.fromkeys(u, "hello")), "must be real numbers"),
    "complex": (lambda s, u: s.aggregate(dict.fromkeys(u, NAN * 1j)), "must be real numbers"),
    "nothing": (lambda s, u: s.aggregate({key: {} for key in u}), "at least one number"),
    "model": (lambda s, u: s.aggregate(u, model=np.ones(4)), "the arrays of the model"),
    "losses": (lambda s, u: s.aggregate(u, losses=[1.0] * 9), "one for each of the"),
    "losses' ids": (lambda s, u: s.aggregate(u, losses={"zoe": 1.0}), "'zoe' is not the id"),
    "reasons": (lambda s, u: s.remember(u, failed={"zoe": "late"}), "'zoe' is not the id"),
    "skipped": (lambda s, u: s.skip({absent(s): "late"}), "was not drawn in round 3"),
    "one id": (lambda s, u: s.settle("a"), "needs a list of ids; got 'a'"),
    "lost": (lambda s, u: s.redraw(["zoe"]), "'zoe' is not the id"),
    "average": (lambda s, u: s.for_average({"zoe": NAN}), "'zoe' is not the id"),
    "average's width": (lambda s, u: s.for_average({k: np.ones(4) for k in u}), "had 3 numbers"),
}


@pytest.mark.parametrize("name", BAD_ENDS)
def test_a_call_that_cannot_be_made_changes_nothing(selector: Selector, name: str) -> None:
    call, message = BAD_ENDS[name]
    cohort = selector.draw()
    updates, before = updates_for(cohort), frozen(selector)

    with pytest.raises(FedcohortError, match=message):
        call(selector, updates)
    assert frozen(selector) == before
    assert selector.cohort is cohort
    selector.aggregate(updates)
    assert selector.round_ == 4


def test_a_failed_first_round_leaves_no_memory_behind() -> None:
    selector = Selector(SimilarityClustered(3), SIZES, seed=0, estimator="difference")
    cohort = selector.draw()
    before = frozen(selector)

    with pytest.raises(FedcohortError, match="the arrays of the model"):
        selector.aggregate(updates_for(cohort), model=np.ones(7))
    selector.step(updates_for(cohort))
    assert frozen(selector) == before
    selector.aggregate({each: np.ones(7) for each in cohort.ids})  # the first model may be another


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "size"}, "recipe must be a Recipe; got 'size'"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0"),
        ({"seed": True}, "seed must be a whole number of at least 0"),
        ({"sketch": 0}, "sketch must be a whole number of at least 1; got 0"),
        ({"sketch": "2"}, "sketch must be a whole number of at least 1; got '2'"),
        ({"estimator": "best"}, "estimator must be one of plain, difference, mifa, fedvarp"),
        ({"on_failure": "cry"}, "on_failure must be one of keep, redraw, renormalise"),
        ({"tries": -1}, "tries must be a whole number of at least 0; got -1"),
        ({"extra": 0.5}, "extra must be a whole number of at least 0; got 0.5"),
        ({"max_draws": 0}, "max_draws must be a whole number of at least 1; got 0"),
        ({"extra": 1, "on_failure": "redraw"}, "extra must be 0 with on_failure='redraw'"),
        ({"recipe": Uniform(7)}, "at most the 6 clients of positive size; got 7"),
        ({"recipe": Poisson(5), "on_failure": "redraw"}, "equal weight per draw; Poisson's"),
        ({"recipe": Poisson(4), "extra": 1}, "equal weight per draw; Poisson's"),
        ({"recipe": Multinomial(3), "max_draws": 2}, "can draw client 'a' 3 times in a round"),
        ({"clients": {"a": -1}}, "sizes must not be negative"),
        ({"clients": {"a": 0}}, "sizes must not all be 0"),
        ({"clients": {1.5: 2}}, "ids must be strings or integers; got 1.5"),
        ({"importance": [0.5, 0.5]}, "one share for each of the 6 clients; got 2"),
        ({"importance": {"a": 1.0}}, "importance has no entry for client 'b'"),
        ({"groups": ["x"]}, "groups must be one label per client, 6; got 1"),
        ({"clients": {}, "groups": ["x"]}, "needs clients; got none. Pass it by id"),
    ],
    ids=str,
)
def test_everything_is_checked_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(FedcohortError, match=message):
        Selector(**{"recipe": SizeClustered(2), "clients": SIZES, "seed": 0, **arguments})


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ([1.0], "numbers by id, or one for each of the 6 clients; got list"),
        ({"zoe": 1.0}, "'zoe' is not the id of a client"),
        ({"a": "low"}, "numbers by id, or one for each of the 6 clients; got dict"),
        ({"a": -1.0}, "must be finite and at least 0"),
        (None, "needs the signal 'loss', but it was not collected"),
    ],
)
def test_signals_that_cannot_be_used_open_no_round(loss: Any, message: str) -> None:
    selector = Selector(PowerOfChoice(2, candidates=6), SIZES, seed=0)
    before = frozen(selector)

    with pytest.raises(FedcohortError, match=message):
        selector.draw(signals=None if loss is None else {"loss": loss})
    assert selector.cohort is None
    assert frozen(selector) == before


def test_masked_ids_and_long_texts_are_refused_in_a_short_sentence() -> None:
    selector = Selector(Multinomial(1), [1, 2, 3], seed=0)
    masked = np.ma.masked_array([0, 1, 7], mask=[False, False, True])

    with pytest.raises(FedcohortError, match="ids must be strings or integers"):
        selector.draw(available=masked)
    cohort = selector.draw()
    with pytest.raises(FedcohortError, match="'past_loss' must be numbers by id") as refused:
        selector.aggregate({each: np.ones(2) for each in cohort.ids}, losses="x" * 10_000)
    assert len(str(refused.value)) < 300
