"""The server loop: one round after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fedcohort import (
    Difference,
    Multinomial,
    Oort,
    PowerOfChoice,
    Recipe,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Tournament,
    Uniform,
)
from fedcohort.memory.rows import KeptRows
from selectors_for_tests import (
    SIZES,
    Largest,
    Rotating,
    drawn,
    experienced,
    frozen,
    played,
    updates_for,
)


@pytest.fixture
def selector() -> Selector:
    return experienced()


def test_rounds_count_from_0_and_only_their_end_advances_them() -> None:
    selector = Selector(SizeClustered(2), SIZES, seed=0)

    assert selector.round_ == 0
    cohort = selector.draw()
    assert (selector.round_, cohort.round_, selector.cohort) == (0, 0, cohort)
    selector.settle(cohort.ids)
    selector.step(updates_for(cohort))
    assert selector.round_ == 0
    selector.aggregate(updates_for(cohort))
    assert (selector.round_, selector.cohort) == (1, None)
    selector.draw()
    selector.skip()
    assert selector.round_ == 2
    selector.remember(updates_for(selector.draw()))
    assert selector.round_ == 3


def test_the_step_is_the_weighted_sum_of_updates() -> None:
    selector = Selector(SizeClustered(4), SIZES, seed=0)
    cohort = selector.draw()
    updates = updates_for(cohort)

    step = selector.aggregate(updates)

    expected = sum(w * updates[each] for each, w in zip(cohort.ids, cohort.weights, strict=True))
    assert (step == expected).all()


def test_a_seed_is_a_number_a_generator_or_none() -> None:
    def rounds(seed: Any) -> list[Any]:
        return drawn(played(Selector(Multinomial(3), SIZES, seed=seed), 3))

    generator = np.random.default_rng(7)
    first = Selector(Multinomial(3), SIZES, seed=generator)
    second = Selector(Multinomial(3), SIZES, seed=generator)

    assert rounds(5) == rounds(np.int64(5))
    assert first.seed == np.random.default_rng(7).integers(2**63)
    assert first.seed != second.seed
    random = Selector(Multinomial(3), SIZES)
    assert drawn(played(random, 3)) == rounds(random.seed)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_counts_as_lost(selector: Selector, broken: float) -> None:
    cohort = selector.draw()
    lost, *others = cohort.ids
    updates = updates_for(cohort)
    without = selector.step({each: updates[each] for each in others})
    memory = selector.memory
    assert memory is not None
    before = memory.updates[cohort.clients[0]].copy()

    step = selector.aggregate({**updates, lost: np.array([0.0, 0.0, broken])})

    assert (step == without).all()
    assert selector.selections is not None
    assert selector.selections.failed.tolist() == [int(each == lost) for each in SIZES]
    assert (memory.updates[cohort.clients[0]] == before).all()


@pytest.mark.parametrize("sketch", [None, 2])
def test_an_update_that_the_memory_cannot_hold_counts_as_lost(sketch: int | None) -> None:
    """It is finite, and no longer so in the memory's float32."""
    selector = Selector(SimilarityClustered(3), SIZES, seed=0, sketch=sketch)
    cohort = selector.draw()
    lost, *others = cohort.ids
    good = {each: np.ones(2) for each in others}
    expected = selector.step(good)

    given = list(selector.for_average({**good, lost: np.full(2, 1e300)}))
    step = selector.aggregate({**good, lost: np.full(2, 1e300)})

    assert [each for each, _, _ in given] == others
    assert (step == expected).all()
    assert selector.memory is not None
    assert sorted(np.flatnonzero(selector.memory.seen)) == cohort.clients[1:].tolist()


def test_an_update_that_the_estimators_type_cannot_hold_counts_as_lost() -> None:
    selector = Selector(SizeClustered(3), SIZES, seed=0, estimator="difference")
    cohort = selector.draw()
    selector.aggregate({each: np.ones(2, np.float32) for each in cohort.ids})
    cohort = selector.draw()
    lost, *others = cohort.ids
    good = {each: np.ones(2, np.float32) for each in others}

    expected = selector.step(good)

    step = selector.aggregate({**good, lost: np.full(2, 1e300)})
    assert (step.astype(np.float32) == expected).all()


@pytest.mark.parametrize("estimator", ["plain", "difference", Difference(keep="rank", rank=2)])
def test_where_nobody_answers_the_step_is_0(estimator: Any) -> None:
    selector = Selector(SizeClustered(3), SIZES, seed=0, estimator=estimator)
    selector.draw()
    model = np.array([1.0, 2.0, 3.0])

    assert (selector.aggregate({}, model=model) == model).all()
    selector.draw()
    assert (model + selector.aggregate({}) == model).all()
    played(selector, 2)
    selector.draw()
    assert (model + selector.aggregate(np.empty((0, 3)), ids=[]) == model).all()


def test_with_nobody_available_the_cohort_is_empty_and_rounds_go_on() -> None:
    selector = Selector(SizeClustered(3), SIZES, seed=0, estimator="difference", log=True)
    played(selector, 2)
    before = played(Selector(SizeClustered(3), SIZES, seed=0), 4)[3]

    cohort = selector.draw(available=[])

    assert (len(cohort), cohort.residual, selector.design) == (0, 1.0, None)
    assert selector.recall([]) is None
    assert list(selector.for_average({})) == []
    assert selector.aggregate({}) == 0.0
    assert drawn([selector.draw()]) == drawn([before])


def test_too_few_available_clients_are_all_drawn_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    selector = Selector(Uniform(4), SIZES, seed=0)

    cohort = selector.draw(available=["a", "d"])

    assert cohort.ids == ["a", "d"]
    assert cohort.weights.tolist() == pytest.approx([4 / 6, 2 / 6])
    assert "draws all 2 available clients, not 4" in caplog.text
    selector.skip()
    assert len(selector.draw()) == 4


def test_signals_are_asked_of_those_that_are_there_and_only_their_answers_count() -> None:
    selector = Selector(PowerOfChoice(1, candidates=3), SIZES, seed=0)

    request = selector.ask(available=["b", "c", "d", "e"])

    assert request is not None
    assert request.signal == "loss"
    assert set(request.ids) < {"b", "c", "d", "e"}
    losses = {each: float(k) for k, each in enumerate(request.ids)}
    cohort = selector.draw(signals={"loss": {**losses, "a": 99.0, "f": 99.0}})
    assert cohort.ids == [request.ids[-1]]  # of those that were asked for draw() too


def test_signals_that_are_given_count_in_the_first_round_too() -> None:
    known = {"past_loss": [9.0, *[0.1] * 5], "past_duration": [1.0] * 6, "past_round": [0.0] * 6}
    selector = Selector(Oort(1), SIZES, seed=0)

    selector.draw(signals=known)

    assert selector.design is not None
    assert selector.design.expected_counts().tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan])
def test_a_report_that_is_no_loss_stops_nobody(value: float) -> None:
    selector = Selector(Oort(3), SIZES, seed=0)
    for _ in range(4):
        cohort = selector.draw()
        reported = dict.fromkeys(cohort.ids, value)
        selector.aggregate(updates_for(cohort), losses=reported, durations=reported)

    assert np.isnan(selector.state()["records.signal.past_loss"]).all()
    assert np.nanmax(selector.state()["records.signal.past_round"]) == 3


def test_reports_come_by_id_or_in_the_order_of_the_updates() -> None:
    def noted(by_id: bool) -> list[float]:
        selector = Selector(Oort(3), SIZES, seed=0)
        cohort = selector.draw()
        ids = list(reversed(cohort.ids))
        losses = [float(ord(str(each))) for each in ids]
        rows = np.ones((len(ids), 2))
        named = dict(zip(ids, losses, strict=True))
        selector.aggregate(rows, ids, losses=named if by_id else losses)
        values = selector.state()["records.signal.past_loss"]
        return [v for v in values.tolist() if not np.isnan(v)]

    assert noted(by_id=True) == noted(by_id=False)


def test_a_recipes_own_notes_follow_the_clients() -> None:
    selector = Selector(Largest(2), {"m": 1, "n": 1, "q": 1}, seed=0)
    selector.draw(available=["m", "q"])
    selector.aggregate(np.full((len(selector.asked), 1), 8.0))
    before = dict(zip("mnq", selector.state()["records.own.norm"].tolist(), strict=True))

    selector.clients = {"q": 1, "a": 1, "m": 1}

    after = dict(zip("amnq", selector.state()["records.own.norm"].tolist(), strict=True))
    assert after["m"] == pytest.approx(before["m"], nan_ok=True)
    assert after["q"] == pytest.approx(before["q"], nan_ok=True)
    assert 8.0 in after.values()
    assert np.isnan(after["a"])


def test_notes_that_fail_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Any, kept: Any, observed: Any) -> None:
        kept["norm"][:] = 7.0
        raise ZeroDivisionError

    selector = Selector(Largest(2), SIZES, seed=0)
    played(selector, 2)
    monkeypatch.setattr(Largest, "observe", careless)
    cohort, before = selector.draw(), frozen(selector)

    with pytest.raises(ZeroDivisionError):
        selector.aggregate(updates_for(cohort))
    assert frozen(selector) == before


def test_a_design_that_reads_the_round_is_built_in_every_round() -> None:
    cohorts = played(Selector(Rotating(1), SIZES, seed=0), 8)

    assert [each.ids for each in cohorts] == [[each] for each in "abcdefab"]


@pytest.mark.parametrize(
    "recipe", [SizeClustered(3), SimilarityClustered(3), Tournament(3), Rotating(1)], ids=repr
)
def test_the_next_design_is_what_the_next_round_draws_from(recipe: Recipe) -> None:
    selector = Selector(recipe, SIZES, seed=0)
    played(selector, 3)

    foreseen = selector.next_design()
    selector.draw()

    assert selector.design is not None
    assert (foreseen.weight_covariance() == selector.design.weight_covariance()).all()


@pytest.mark.parametrize("recipe", [SimilarityClustered(3), Tournament(3)], ids=repr)
def test_overlap_draws_the_same_with_and_without_preparing(recipe: Recipe) -> None:
    alone = Selector(recipe, SIZES, seed=2, overlap=True)
    ahead = Selector(recipe, SIZES, seed=2, overlap=True)
    expected, cohorts = played(alone, 9), []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(9):
            cohorts.append(ahead.draw())
            ahead.prepare(pool)
            foreseen = ahead.next_design()
            ahead.aggregate(updates_for(cohorts[-1]))

    assert drawn(cohorts) == drawn(expected)
    assert drawn([ahead.draw()]) == drawn([alone.draw()])
    assert frozen(ahead) == frozen(alone)
    assert ahead.design is not None
    assert (foreseen.weight_covariance() == ahead.design.weight_covariance()).all()


class Late(Executor):
    """Does its work when it is asked for the result, and no earlier."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        class Lazy(Future[Any]):
            def exception(self, timeout: float | None = None) -> BaseException | None:
                self.set_result(work(*args, **kwargs))
                return super().exception(timeout)

        return Lazy()


def test_a_design_that_is_built_late_knows_no_more() -> None:
    alone = Selector(Tournament(3), SIZES, seed=5, overlap=True)
    ahead = Selector(Tournament(3), SIZES, seed=5, overlap=True)
    expected, cohorts = played(alone, 7), []
    for _ in range(7):
        cohorts.append(ahead.draw())
        ahead.prepare(Late())
        ahead.aggregate(updates_for(cohorts[-1]))

    assert drawn(cohorts) == drawn(expected)


def test_overlap_knows_the_updates_up_to_the_round_before_the_last() -> None:
    selector = Selector(SimilarityClustered(3), SIZES, seed=0, overlap=True)
    first = selector.draw()
    selector.aggregate(updates_for(first))

    assert selector.memory is not None
    assert not selector.memory.seen.any()
    second = selector.draw()
    selector.aggregate(updates_for(second))
    assert sorted(np.flatnonzero(selector.memory.seen)) == first.clients.tolist()


def test_memory_in_use_is_counted() -> None:
    plain = Selector(SizeClustered(2), np.ones(100, dtype=int), seed=0)
    sketched = Selector(SimilarityClustered(2), np.ones(100, dtype=int), seed=0, sketch=8)
    whole = Selector(SizeClustered(2), np.ones(100, dtype=int), seed=0, estimator="difference")
    before = plain.nbytes
    for each in (plain, sketched, whole):
        played(each, 1, dimension=50)

    assert plain.nbytes == before
    assert sketched.nbytes - before >= 100 * 8 * 4
    assert isinstance(whole.estimator, KeptRows)
    assert whole.nbytes - before >= whole.estimator.n_remembered * 50 * 4 > 0
