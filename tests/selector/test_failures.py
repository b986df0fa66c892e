"""Drawn clients that do not answer: what becomes of their weight, and the law that is left."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedcohort import (
    Cohort,
    Difference,
    Multinomial,
    Poisson,
    Population,
    Recipe,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Uniform,
)
from fedcohort.cohort import NOBODY
from fedcohort.designs import MultinomialDesign, SizeClusteredDesign
from fedcohort.errors import SelectorError
from fedcohort.selector.open_round import NOBODY_LEFT, Draws
from fedcohort.selector.settings import SelectorSettings
from fedcohort.streams import Stream, stream
from laws import Law, law
from populations import rng
from selectors_for_tests import SIZES, updates_for

ALIVE = {"a", "c", "e"}
FOUR = {"a": 4, "b": 3, "c": 2, "d": 1}


def reached(selector: Selector, reachable: set[str]) -> Cohort:
    """Play a round in which only these answer; return the settled cohort."""
    selector.draw()
    while selector.redraw(each for each in selector.asked if each not in reachable):
        pass
    settled = selector.settle([each for each in selector.asked if each in reachable])
    selector.skip()
    return settled


@pytest.mark.parametrize("recipe", [SizeClustered(4), Multinomial(4), Poisson(3)], ids=repr)
def test_kept_weight_stays_on_the_model(recipe: Recipe) -> None:
    selector = Selector(recipe, SIZES, seed=0)
    for _ in range(20):
        cohort = selector.draw()
        settled = selector.settle(each for each in cohort.ids if each in ALIVE)

        weights = dict(zip(cohort.ids, cohort.weights.tolist(), strict=True))
        expected = {each: weights[each] for each in cohort.ids if each in ALIVE}
        assert dict(zip(settled.ids, settled.weights.tolist(), strict=True)) == expected
        assert settled.residual == pytest.approx(1 - sum(expected.values()), abs=1e-15)
        selector.skip()


def test_renormalising_divides_by_what_is_left() -> None:
    selector = Selector(SizeClustered(4), SIZES, seed=0, on_failure="renormalise")
    for _ in range(20):
        cohort = selector.draw()
        left = [k for k, each in enumerate(cohort.ids) if each in ALIVE]
        settled = selector.settle([cohort.ids[k] for k in left])

        weights = cohort.weights[left]
        assert settled.weights.tolist() == (weights / weights.sum()).tolist()
        assert settled.residual == (0.0 if left else 1.0)
        selector.skip()


@pytest.mark.parametrize("rule", ["keep", "redraw", "renormalise"])
def test_where_all_answer_the_cohort_is_as_it_was_drawn(rule: Any) -> None:
    selector = Selector(SizeClustered(3), SIZES, seed=0, on_failure=rule)
    cohort = selector.draw()

    settled = selector.settle(reversed(cohort.ids))

    assert settled.ids == cohort.ids
    assert settled.weights.tolist() == cohort.weights.tolist()
    assert settled.counts.tolist() == cohort.counts.tolist()


@pytest.mark.parametrize("rule", ["keep", "redraw", "renormalise"])
def test_where_all_fail_the_model_stays(rule: Any) -> None:
    selector = Selector(SizeClustered(4), SIZES, seed=0, on_failure=rule, tries=3)

    settled = reached(selector, set())

    assert (len(settled), settled.residual) == (0, 1.0)


def test_settling_is_pure() -> None:
    selector = Selector(SizeClustered(4), SIZES, seed=0)
    cohort = selector.draw()

    alone = selector.settle(cohort.ids[:1])
    everyone = selector.settle(cohort.ids)

    assert alone.ids == cohort.ids[:1]
    assert everyone.weights.tolist() == cohort.weights.tolist()
    assert selector.settle(cohort.ids[:1]).weights.tolist() == alone.weights.tolist()


class Guide(np.random.Generator):
    """Follow a path of whole numbers, then take zeros; note the other paths and the own chance."""

    def __init__(self, path: list[int]) -> None:
        super().__init__(np.random.PCG64(0))
        self.path, self.others, self.place = path, list[list[int]](), 0
        self.chance = Fraction(1)

    def integers(self, total: Any, *, size: Any) -> Any:  # type: ignore[override]
        return np.array([self._number(total) for _ in range(size)], dtype=np.int64)

    def _number(self, total: int) -> int:
        if self.place == len(self.path):
            self.others += [[*self.path, number] for number in range(1, total)]
            self.path.append(0)
        self.place += 1
        self.chance /= total
        return self.path[self.place - 1]


def report_together(draws: Draws, alive: set[int]) -> None:
    """Report all clients that failed so far, until nobody is left to ask."""
    while draws.redraw(draws.asked.keys() - alive):
        pass


def report_one_by_one(draws: Draws, alive: set[int]) -> None:
    """Report each failure alone, in the order of asking."""
    failing = [each for each in draws.asked if each not in alive]
    for each in failing:
        failing += [new for new in draws.redraw([each]) if new not in alive]


def law_of_redrawing(
    drawn: Law, sizes: list[int], alive: set[int], tries: int, report: Any = report_together
) -> Law:
    """Play every round that the code can play: all cohorts, all numbers of all redraws."""
    rule = SelectorSettings(Multinomial(1), on_failure="redraw", tries=tries)
    outcomes = Law()
    for counts, chance in drawn.items():
        pending: list[list[int]] = [[]]
        while pending:
            guide = Guide(pending.pop())
            clients = np.flatnonzero(counts)
            cohort = Cohort.of_shares(clients, np.array(counts)[clients], sum(counts))
            draws = Draws(cohort, Population(sizes), sum(counts), guide, tries)
            report(draws, alive)
            answered = np.array(sorted(draws.asked.keys() & alive), dtype=np.int64)
            settled = draws.settle(rule, answered, cohort_size=sum(counts))
            final = [0] * len(sizes)
            for client, weight in zip(settled.clients, settled.weights, strict=True):
                final[client] = round(weight * sum(counts))
            key = tuple(final)
            outcomes[key] = outcomes.get(key, Fraction(0)) + chance * guide.chance
            pending += guide.others
    return outcomes


def expected_law_of_redrawing(drawn: Law, sizes: list[int], alive: set[int], tries: int) -> Law:
    """The slow twin, in fractions: every lost draw is drawn from p over those that may be there."""
    outcomes = Law()

    def play(counts: tuple[int, ...], failed: set[int], tries: int, chance: Fraction) -> None:
        failed = failed | {i for i, c in enumerate(counts) if c and i not in alive}
        lost = sum(counts[i] for i in failed)
        kept = tuple(0 if i in failed else c for i, c in enumerate(counts))
        line = [i for i, size in enumerate(sizes) for _ in range(size) if i not in failed]
        if not (lost and tries and line):
            outcomes[kept] = outcomes.get(kept, Fraction(0)) + chance
            return
        for places in product(line, repeat=lost):
            then = tuple(c + places.count(i) for i, c in enumerate(kept))
            play(then, failed, tries - 1, chance / len(line) ** lost)

    for counts, chance in drawn.items():
        play(counts, set(), tries, chance)
    return outcomes


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=3).filter(any),
    st.sampled_from([(1, 0), (1, 1), (1, 3), (2, 1), (2, 2), (3, 1)]),
    st.sets(st.integers(0, 2)),
    st.sampled_from([SizeClusteredDesign, MultinomialDesign]),
)
def test_the_law_of_redrawing_is_that_of_draws_until_one_answers(
    sizes: list[int], draws_and_tries: tuple[int, int], reachable: set[int], kind: type
) -> None:
    """All rounds are enumerated: E[w_i | R] is p_i / p(R), or all are smaller by one factor."""
    (m, tries), alive = draws_and_tries, set(range(len(sizes))) & reachable
    population = Population(sizes)
    design = kind(population, m) if kind is MultinomialDesign else kind(population, m, rng=rng())

    found = law_of_redrawing(law(design), sizes, alive, tries)

    assert found == expected_law_of_redrawing(law(design), sizes, alive, tries)
    within = sum(sizes[i] for i in alive)
    means = [sum(p * counts[i] for counts, p in found.items()) / m for i in range(len(sizes))]
    shares = [Fraction(n, within) if within and i in alive else 0 for i, n in enumerate(sizes)]
    assert means == [sum(means) * share for share in shares]
    if within and tries >= sum(n > 0 for i, n in enumerate(sizes) if i not in alive):
        assert means == shares


@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=4).filter(any),
    st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]),
    st.sets(st.integers(0, 3), max_size=2),
)
def test_failures_reported_one_by_one_give_the_same_law_as_together(
    sizes: list[int], draws_and_tries: tuple[int, int], alive: set[int]
) -> None:
    """All rounds are enumerated, also those in which the tries are used up."""
    m, tries = draws_and_tries
    drawn = law(MultinomialDesign(Population(sizes), m))

    one_by_one = law_of_redrawing(drawn, sizes, alive, tries, report_one_by_one)

    assert one_by_one == law_of_redrawing(drawn, sizes, alive, tries)


@pytest.mark.parametrize("newest_first", [False, True])
def test_reporting_each_failure_alone_loses_no_weight(newest_first: bool) -> None:
    """Half of 100 clients can be reached: a draw is lost ten more times in less than 1 of 1000."""
    left = []
    for seed in range(50):
        selector = Selector(Multinomial(10), [1] * 100, seed=seed, on_failure="redraw")
        failing = [each for each in selector.draw().ids if each % 2]
        while failing:
            lost = failing.pop(-1 if newest_first else 0)
            failing += [each for each in selector.redraw([lost]) if int(each) % 2]
        settled = selector.settle(each for each in selector.asked if not int(each) % 2)
        left.append(1 - settled.weights.sum())

    assert max(left) == pytest.approx(0, abs=1e-15)


def test_a_reader_who_asks_until_none_is_left_loses_no_weight() -> None:
    """Pass all that failed so far, or only the new ones: the weights sum to 1."""
    for seed in range(50):
        for everyone in (True, False):
            selector = Selector(Multinomial(4), SIZES, seed=seed, on_failure="redraw")
            failed = lost = {each for each in selector.draw().ids if each not in ALIVE}
            while more := selector.redraw(failed if everyone else lost):
                lost = {each for each in more if each not in ALIVE}
                failed = failed | lost

            settled = selector.settle(each for each in selector.asked if each in ALIVE)

            assert settled.weights.sum() == 1


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 9), min_size=2, max_size=6),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(0, 2**32 - 1),
    st.randoms(use_true_random=False),
)
def test_a_selector_redraws_by_the_numbers_of_the_rounds_own_stream(
    sizes: dict[int, int], m: int, tries: int, seed: int, chance: Random
) -> None:
    """A slow twin with the same numbers: every unit of p is one place on a line of clients."""
    line = [each for each in sorted(sizes) for _ in range(sizes[each])]
    reachable = {each for each in sizes if chance.random() < 0.5}
    selector = Selector(Multinomial(m), sizes, seed=seed, on_failure="redraw", tries=tries)
    for round_ in range(3):
        numbers = stream(seed, round_=round_, use=Stream.REDRAW)
        counts = dict(zip(*drawn_by(selector, reachable), strict=True))
        failed: set[int] = set()
        for left in range(tries, -1, -1):
            failed |= (dead := set(counts) - reachable)
            lost = sum(counts.pop(each) for each in dead)
            those = [each for each in line if each not in failed]
            if not (lost and left and those):
                break
            for place in numbers.integers(len(those), size=lost).tolist():
                counts[those[place]] = counts.get(those[place], 0) + 1

        settled = selector.settle(each for each in selector.asked if each in reachable)

        assert dict(zip(settled.ids, settled.counts.tolist(), strict=True)) == counts
        assert settled.weights.tolist() == [counts[each] / m for each in settled.ids]
        assert settled.residual == pytest.approx(lost / m, abs=1e-15)
        selector.skip()


def drawn_by(selector: Selector, reachable: set[int]) -> tuple[Any, list[int]]:
    """Draw and redraw a round in which only these answer; return the cohort as first drawn."""
    cohort = selector.draw()
    while selector.redraw(each for each in selector.asked if each not in reachable):
        pass
    return cohort.ids, cohort.counts.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [SizeClustered(3), Multinomial(3)], ids=repr)
def test_redrawing_is_unbiased_for_every_set_of_clients_that_can_be_reached(recipe: Recipe) -> None:
    """All 14 sets but none and all, 400 rounds each; false alarm 1e-6 over all clients and sets.

    A bias of 0.12 in any weight is seen with a chance above 99 %. 200 tries miss the smallest
    client in less than 1e-9 of its lost draws.
    """
    subsets = [set(r) for size in (1, 2, 3) for r in combinations(FOUR, size)]
    quantile = norm.isf(1e-6 / 2 / (4 * len(subsets)))
    for reachable in subsets:
        selector = Selector(recipe, FOUR, seed=1, on_failure="redraw", tries=200)
        seen = np.zeros((400, 4))
        for weights in seen:
            settled = reached(selector, reachable)
            weights[settled.clients] = settled.weights
        within = sum(FOUR[each] for each in reachable)
        expected = [FOUR[each] / within if each in reachable else 0.0 for each in FOUR]

        spread = seen.std(axis=0, ddof=1) / np.sqrt(len(seen))
        assert (np.abs(seen.mean(axis=0) - expected) <= quantile * spread + 1e-6).all()
        assert (seen[:, [each not in reachable for each in FOUR]] == 0).all()


def test_a_redraw_asks_nobody_twice() -> None:
    selector = Selector(Multinomial(6), SIZES, seed=3, on_failure="redraw", tries=50)
    asked = list(selector.draw().ids)

    while new := selector.redraw(each for each in selector.asked if each != "a"):
        asked += new

    assert len(set(asked)) == len(asked)
    assert len(asked) > 3
    assert sorted(map(str, asked)) == selector.asked
    settled = selector.settle(["a"])
    assert settled.counts.tolist() == [6]
    assert (settled.weights.tolist(), settled.residual) == ([1.0], 0.0)


def test_a_redraw_is_the_same_again_after_the_same_draw() -> None:
    def replacements(seed: int) -> list[object]:
        selector = Selector(Multinomial(4), SIZES, seed=seed, on_failure="redraw")
        return [selector.draw().ids, selector.redraw(selector.asked[:2]), selector.asked]

    assert replacements(3) == replacements(3)
    assert replacements(3) != replacements(4)


def test_what_is_still_lost_after_the_tries_stays_lost() -> None:
    draws = Draws(
        Cohort.of_shares(np.array([0]), np.array([2]), 2), Population([1, 1]), 2, rng(), tries=3
    )

    rule = SelectorSettings(Multinomial(2), on_failure="redraw", tries=3)

    new = draws.redraw([0])

    assert new == [1]
    assert draws.redraw([1]) == []
    assert draws.drawn.tolist() == [NOBODY_LEFT, NOBODY_LEFT]
    assert len(draws.settle(rule, NOBODY, cohort_size=2)) == 0


def test_other_rules_redraw_nobody() -> None:
    selector = Selector(SizeClustered(3), SIZES, seed=0, on_failure="keep")
    cohort = selector.draw()

    assert selector.redraw(cohort.ids) == []
    assert selector.settle(cohort.ids).weights.tolist() == cohort.weights.tolist()


def test_replacements_are_aggregated_and_remembered() -> None:
    selector = Selector(SimilarityClustered(3), SIZES, seed=0, on_failure="redraw")
    lost = selector.draw().ids[0]
    selector.redraw([lost])
    answering = [each for each in selector.asked if each != lost]
    rows = np.array([[8.0 * ord(str(each))] for each in answering])
    settled = selector.settle(answering)

    step = selector.aggregate(rows, answering)

    weights = dict(zip(settled.ids, settled.weights.tolist(), strict=True))
    expected = sum(w * 8.0 * ord(str(each)) for each, w in weights.items())
    assert step.tolist() == pytest.approx([expected], rel=1e-12)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert selector.memory is not None
    assert selector.memory.updates.ravel().tolist() == [
        8.0 * ord(each) if each in answering else 0.0 for each in SIZES
    ]


@pytest.mark.parametrize(
    "estimator", ["difference", Difference(keep="rank"), "regression"], ids=str
)
def test_redraws_with_an_estimator_that_remembers_are_refused(estimator: Any) -> None:
    """Its mean runs over all available clients, the redrawn weights over those in reach."""
    with pytest.raises(
        SelectorError, match=r"'redraw' biases every estimator but the plain.*'keep'"
    ):
        Selector(Multinomial(2), FOUR, on_failure="redraw", estimator=estimator)


@given(st.sets(st.integers(0, 3), min_size=1), st.integers(1, 3))
def test_with_keep_the_difference_estimator_takes_what_it_remembers_of_the_lost(
    reachable: set[int], m: int
) -> None:
    """E[v] = sum over R of p D + sum over the others of p h, over all cohorts of the law."""
    sizes, updates = [4, 3, 2, 1], np.array([8.0, -4.0, 2.0, 16.0])
    remembered = np.array([1.0, 5.0, -3.0, 7.0])
    law_of = law(MultinomialDesign(Population(sizes), m))
    mean = Fraction(0)
    for counts, chance in law_of.items():
        memory = Difference().memory(Population(sizes).importance, np.zeros(1))
        memory.record(range(4), remembered[:, None])
        cohort = Cohort.of_shares(np.flatnonzero(counts), [c for c in counts if c], m)
        answered = [i for i in cohort.ids if i in reachable]
        draws = Draws(cohort, Population(sizes), m, rng(), 0)
        arrived = np.array(answered, dtype=np.int64)
        kept = draws.settle(SelectorSettings(Multinomial(1)), arrived, cohort_size=m)
        step = memory.aggregate(kept.clients, kept.weights, updates[kept.clients][:, None])
        mean += chance * Fraction(float(step[0]))

    p = np.array(sizes) / 10
    expected = sum(p[i] * (updates[i] if i in reachable else remembered[i]) for i in range(4))
    assert float(mean) == pytest.approx(expected, rel=1e-12)


def test_over_selection_takes_the_first_answers() -> None:
    """Two draws of four count, whatever the order of ids."""
    selector = Selector(SizeClustered(2), SIZES, seed=0, extra=2)
    for round_ in range(20):
        cohort = selector.draw()
        counts = dict(zip(cohort.ids, cohort.counts.tolist(), strict=True))
        order = np.random.default_rng(round_).permutation(list(map(str, counts))).tolist()
        first: dict[object, int] = {}
        for each in order:
            if sum(first.values()) < 2:
                first[each] = counts[each]

        settled = selector.settle(order)

        assert sum(counts.values()) == 4
        expected = {each: c / sum(first.values()) for each, c in first.items()}
        assert dict(zip(settled.ids, settled.weights.tolist(), strict=True)) == expected
        updates = updates_for(cohort)
        step = selector.aggregate({each: updates[each] for each in order})
        assert step == pytest.approx(sum(w * updates[each] for each, w in expected.items()))


def test_over_selection_does_not_count_broken_answers() -> None:
    selector = Selector(SizeClustered(1), SIZES, seed=0, extra=5)
    first, second, *_ = selector.draw().ids

    step = selector.aggregate({first: [np.nan], second: [2.0]})

    assert step.tolist() == [2.0]


@pytest.mark.parametrize(("rule", "weights"), [("keep", [1 / 3]), ("renormalise", [1.0])])
def test_over_selection_with_too_few_answers_follows_the_rule(
    rule: Any, weights: list[float]
) -> None:
    selector = Selector(SizeClustered(3), [5] * 9, seed=0, extra=3, on_failure=rule)
    cohort = selector.draw()
    alone = cohort.ids[int(np.argmin(cohort.counts))]

    settled = selector.settle([alone])

    assert cohort.counts.min() == 1
    assert settled.weights.tolist() == weights


@pytest.mark.parametrize("limit", [1, 2])
def test_a_limit_of_draws_holds_in_every_round(limit: int) -> None:
    recipe: Recipe = SizeClustered(4) if limit == 2 else Uniform(4)
    selector = Selector(recipe, SIZES, seed=0, max_draws=limit)

    assert selector.next_design().max_count().max() <= limit
    for _ in range(20):
        assert selector.draw().counts.max() <= limit
        selector.skip()
