"""Who may be drawn, and what those weigh that are not always there."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from fedcohort import Cohort, Multinomial, Poisson, Recipe, Selector, SizeClustered, Uniform
from fedcohort.errors import SelectorError
from fedcohort.selector.attendance import Attendance
from fedcohort.selector.settings import SelectorSettings
from laws import law
from populations import rng
from selectors_for_tests import SIZES, drawn, frozen, updates_for

FOUR = {"a": 4, "b": 3, "c": 2, "d": 1}
UNBIASED: list[Recipe] = [
    SizeClustered(2),
    Multinomial(2),
    Poisson(2),
    Uniform(2, unbiased=True),
]
EVERYONE = np.ones(4, dtype=bool)
#: The chance that a correct program fails one of the statistical tests with a random seed.
FALSE_ALARM = 1e-6


def relive(selector: Selector, history: list[tuple[int, ...]]) -> None:
    """Let these clients have been asked in past rounds, with everyone there and no failure."""
    for cohort in history:
        asked = np.array(cohort, dtype=np.int64)
        selector._attendance.record(
            selector.round_, members=EVERYONE, present=EVERYONE, asked=asked, failed=asked[:0]
        )
        selector.round_ += 1


def laws_of(
    recipe: Recipe, rounds: int, settings: dict[str, Any]
) -> Iterator[tuple[list[tuple[int, ...]], Fraction, Selector]]:
    """Yield each history of cohorts, its chance, and a selector that has drawn the next round."""
    histories = [(list[tuple[int, ...]](), Fraction(1))]
    for _ in range(rounds):
        following = []
        for history, chance in histories:
            selector = Selector(recipe, FOUR, seed=0, **settings)
            relive(selector, history)
            selector.draw()
            yield history, chance, selector
            if (design := selector.design) is None:
                following.append(([*history, ()], chance))
                continue
            for counts, own in law(design).items():
                cohort = tuple(k for k, count in enumerate(counts) if count)
                following.append(([*history, cohort], chance * own))
        histories = following


@pytest.mark.parametrize("recipe", UNBIASED, ids=repr)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_participations": 1},
        {"min_separation": 2},
        {"max_participations": 2, "min_separation": 3},
    ],
    ids=str,
)
def test_the_law_is_unbiased_over_those_that_the_rules_let_take_part(
    recipe: Recipe, settings: dict[str, Any]
) -> None:
    """By enumeration of all histories of three rounds: E[w | history] = p / p(E), exactly."""
    most, apart = settings.get("max_participations", 99), settings.get("min_separation", 1)
    total, sizes = Fraction(0), list(FOUR.values())
    for history, chance, selector in laws_of(recipe, 3, settings):
        total += chance
        eligible = [
            k
            for k in range(4)
            if sum(k in cohort for cohort in history) < most
            and not any(k in cohort for cohort in history[max(0, len(history) - apart + 1) :])
        ]
        design = selector.design
        if not eligible:
            assert design is None
            continue
        assert design is not None
        weight = sum(sizes[k] for k in eligible)
        mean = [Fraction(0)] * 4
        for counts, own in law(design).items():
            for k, count in enumerate(counts):
                mean[k] += own * count
        found = [
            m * Fraction(float(w)) for m, w in zip(mean, design.weight_per_draw(), strict=True)
        ]
        assert np.flatnonzero(design.population.sizes).tolist() == eligible
        for k in range(4):
            exact = Fraction(sizes[k], weight) if k in eligible else Fraction(0)
            assert float(found[k]) == pytest.approx(float(exact), rel=1e-14, abs=0)

    assert total == 3


def test_a_client_that_failed_rests() -> None:
    selector = Selector(SizeClustered(4), SIZES, seed=0, rest=2)
    absent = dict[Any, int]()
    for _ in range(12):
        cohort = selector.draw()
        assert all(selector.round_ - absent[each] > 2 for each in cohort.ids if each in absent)
        answered = {each: own for each, own in updates_for(cohort).items() if each != "a"}
        if "a" in cohort.ids:
            absent["a"] = selector.round_
        selector.aggregate(answered)

    assert absent


def test_of_a_skipped_round_those_rest_that_did_not_answer() -> None:
    selector = Selector(Uniform(6), SIZES, seed=0, rest=1)
    selector.draw()
    selector.skip(answered=["b", "c"])

    assert selector.draw().ids == ["b", "c"]


def test_replacements_count_as_asked() -> None:
    selector = Selector(SizeClustered(2), FOUR, seed=0, on_failure="redraw", max_participations=1)
    selector.draw()
    while selector.redraw(selector.asked):
        pass
    assert selector.asked == list(FOUR)
    selector.skip()

    assert selector.draw().ids == []
    assert selector.target is None


def test_a_callers_own_rule_leaves_out_clients_that_are_there() -> None:
    selector = Selector(SizeClustered(4), FOUR, seed=0)
    request = selector.ask(["a", "b", "c"], eligible=["b", "c", "d"])
    cohort = selector.draw()

    assert request is None
    assert cohort.ids == ["b", "c"]
    assert cohort.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("cutoff", "weights"), [(None, [1.0, 2.0, 1.5]), (3, [1.0, 2.0, 2.0])], ids=["none", "3"]
)
def test_the_published_example_of_intervals(cutoff: int | None, weights: list[float]) -> None:
    """Presence 0 1 1 0 0 0 1: records 2, 1, 4 without a cutoff; 2, 1, 3, 1 with one of 3."""
    selector = Selector(
        *(Uniform(2, unbiased=True), [1, 1]),
        seed=0,
        presence="estimated",
        interval_cutoff=cutoff,
    )
    found = []
    for is_there in (0, 1, 1, 0, 0, 0, 1):
        cohort = selector.draw([0, 1] if is_there else [0])
        own = dict(zip(cohort.ids, (2 * cohort.weights).tolist(), strict=True))
        found += [own[1]] if is_there else []
        assert own[0] == 1.0
        selector.skip()

    assert found == weights


def mean_weights(
    recipe: Recipe, settings: dict[str, Any], history: list[NDArray[np.bool_]], **draw: Any
) -> tuple[NDArray[np.float64], Selector]:
    """Return E[w | history] by enumeration of who comes and who is drawn; and a last selector."""
    chances, mean = np.array([1.0, 0.5, 0.3, 0.2]), np.zeros(4)
    for there in product((False, True), repeat=4):
        selector = Selector(recipe, FOUR, seed=0, **settings)
        for past in history:
            selector.draw(past)
            selector.skip()
        selector.draw(np.array(there), **draw)
        now = selector._open
        assert now is not None
        if now.design is None:
            continue
        chance = np.where(there, chances, 1 - chances).prod()
        counts = now.design.expected_counts()
        assert counts == pytest.approx(
            [float(sum(p * c[k] for c, p in law(now.design).items())) for k in range(4)]
        )
        assert now.boosts is not None
        mean += chance * counts * now.design.weight_per_draw() * now.boosts
    return mean, selector


@pytest.mark.parametrize("recipe", UNBIASED, ids=repr)
def test_known_chances_make_the_law_unbiased_over_all_members(recipe: Recipe) -> None:
    settings = {"presence": "known", "chances": [1.0, 0.5, 0.3, 0.2]}
    mean, _ = mean_weights(recipe, settings, [])

    assert mean == pytest.approx([0.4, 0.3, 0.2, 0.1], rel=1e-14)


@pytest.mark.parametrize("recipe", UNBIASED, ids=repr)
def test_known_chances_and_a_rule_make_it_unbiased_over_the_eligible(recipe: Recipe) -> None:
    settings = {"presence": "known", "chances": [1.0, 0.5, 0.3, 0.2]}
    mean, selector = mean_weights(recipe, settings, [], eligible=["a", "b", "d"])

    assert selector.target is not None
    assert selector.target.importance.tolist() == [0.5, 0.375, 0.0, 0.125]
    assert mean == pytest.approx([0.5, 0.375, 0.0, 0.125], rel=1e-14)


@pytest.mark.parametrize("recipe", UNBIASED, ids=repr)
def test_given_the_past_estimated_weights_have_the_mean_p_q_omega(recipe: Recipe) -> None:
    """Intervals so far: a 1, 1, 1; b 1 and an open one; c 2; d none. So omega = 1, 1, 2, 1."""
    past = [np.array(row, bool) for row in ([1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0])]
    mean, _ = mean_weights(recipe, {"presence": "estimated"}, past)

    exact = np.array([0.4, 0.3, 0.2, 0.1]) * [1.0, 0.5, 0.3, 0.2] * np.array([1, 1, 2, 1])
    assert mean == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("recipe", UNBIASED, ids=repr)
def test_a_bound_costs_a_rare_client_the_stated_share(recipe: Recipe) -> None:
    settings = {"presence": "known", "chances": [1.0, 0.5, 0.3, 0.2], "max_boost": 2.5}
    mean, _ = mean_weights(recipe, settings, [])

    short = np.maximum(1 - np.array([1.0, 0.5, 0.3, 0.2]) * 2.5, 0)
    assert mean == pytest.approx(np.array([0.4, 0.3, 0.2, 0.1]) * (1 - short), rel=1e-14)


@pytest.mark.parametrize("presence", ["known", "ignore"])
@pytest.mark.parametrize("recipe", UNBIASED, ids=repr)
def test_with_memory_the_aggregate_is_unbiased_for_its_target(
    recipe: Recipe, presence: Any
) -> None:
    """E[v] over who comes and who is drawn: over all members if chances are known.

    With ``"ignore"`` it is the mean, over who comes, of the mean update of those that are there.
    An empty round moves the model by H if chances are known, and not at all otherwise.
    """
    chances, deltas = np.array([0.9, 0.5, 0.3, 0.2]), np.array([3.0, -1.0, 7.0, 20.0])
    given = {"presence": presence} | ({"chances": chances} if presence == "known" else {})
    selector = Selector(Uniform(4, unbiased=True), FOUR, seed=0, estimator="difference", **given)
    cohort = selector.draw()
    selector.aggregate({each: np.array([float(k)]) for k, each in enumerate(cohort.ids)})
    state, mean, exact = selector.state(), 0.0, 0.0
    state = {name: own for name, own in state.items() if name != "head"}
    own = Selector(recipe, FOUR, seed=0, estimator="difference", **given)
    own.restore({**state, "head": own.state()["head"]})
    for there in product((False, True), repeat=4):
        chance = np.where(there, chances, 1 - chances).prod()
        own.draw(np.array(there))
        now, recalled = own._open, own.recall(list(FOUR))
        assert now is not None
        assert (recalled is None) == (not any(there) and presence == "ignore")
        if recalled is None:
            own.skip()
            own.round_ -= 1
            continue
        step = float(recalled[1][0])
        if now.design is not None:
            boosts = np.ones(4) if now.boosts is None else now.boosts
            weights = now.design.expected_counts() * now.design.weight_per_draw() * boosts
            step += float(weights @ (deltas - recalled[0][:, 0]))
        else:
            assert own.step({})[0] == step
        mean += chance * step
        sizes = np.array([4, 3, 2, 1]) * there
        exact += chance * float(sizes @ deltas) / max(sizes.sum(), 1)
        own.skip()
        own.round_ -= 1

    wanted = np.array([0.4, 0.3, 0.2, 0.1]) @ deltas if presence == "known" else exact
    assert mean == pytest.approx(wanted, rel=1e-12)


def exact_boost(q: float, rounds: int) -> float:
    """Return E[omega] after so many independent rounds, by the last of k presences."""
    total = (1 - q) ** rounds
    for last in range(rounds):
        for k in range(1, last + 2):
            chance = comb(last, k - 1) * q**k * (1 - q) ** (rounds - k)
            total += chance * (last + 1) / k
    return total


def test_the_exact_mean_starts_at_one_and_ends_at_one_over_q() -> None:
    assert exact_boost(0.3, 2) == pytest.approx(1 + 0.3 * 0.7, rel=1e-14)
    gaps = [abs(0.3 * exact_boost(0.3, rounds) - 1) for rounds in (10, 40, 160)]
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2]
    assert gaps[2] < 0.02


def coins(
    settings: dict[str, Any], rounds: int, recipe: Recipe | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Let 3,000 equal clients come by coins; return chances, E[w] / p by chance, and errors."""
    chances, n = np.array([1.0, 0.6, 0.3, 0.1]), 12_000
    own = np.repeat(chances, n // 4)
    recipe = recipe or Uniform(n, unbiased=True)
    selector = Selector(recipe, [1] * n, seed=3, **settings)
    generator, weights = rng(4), np.zeros(n)
    for round_ in range(rounds + 1):
        there = generator.random(n) < own
        if round_ == rounds:
            cohort = selector.draw(there)
            weights[cohort.clients] = n * cohort.weights
        else:
            selector.draw(there)
            selector.skip()
    parts = weights.reshape(4, -1)
    return chances, parts.mean(axis=1), parts.std(axis=1, ddof=1) / np.sqrt(n // 4)


def agrees(found: NDArray[Any], exact: NDArray[Any], errors: NDArray[Any]) -> bool:
    bound = norm.isf(FALSE_ALARM / 2 / len(found))
    return bool((np.abs(found - exact) <= bound * errors + 1e-12).all())


@pytest.mark.parametrize("recipe", [None, SizeClustered(3000)], ids=["all", "some"])
def test_in_a_simulation_estimated_weights_have_their_exact_mean(recipe: Recipe | None) -> None:
    """By z with 1e-6 false alarms; detects 8 % to 38 %, for the rarest 38 %."""
    chances, mean, errors = coins({"presence": "estimated"}, 30, recipe)

    exact = np.array([q * exact_boost(q, 30) for q in chances])
    assert agrees(mean, exact, errors)
    ignored = coins({}, 30, recipe)
    assert not agrees(ignored[1], np.ones(4), ignored[2])


def test_a_cutoff_costs_the_stated_share_in_the_long_run() -> None:
    """E[w] / p tends to 1 - (1 - q)^5. By z with 1e-6 false alarms.

    After 300 rounds the law of large numbers leaves less than a hundredth of the errors.
    """
    chances, mean, errors = coins({"presence": "estimated", "interval_cutoff": 5}, 300)

    assert agrees(mean, 1 - (1 - chances) ** 5, errors)
    assert not agrees(mean, np.ones(4), errors)


def test_presence_in_cycles_is_right_over_time_and_in_no_round() -> None:
    """Client 1 comes in every third round: 0, 0, 3 p, 0, 0, 3 p, ..., which is p on average."""
    selector = Selector(Uniform(2, unbiased=True), [1, 1], seed=0, presence="estimated")
    found = []
    for round_ in range(12):
        cohort = selector.draw([0, 1] if round_ % 3 == 2 else [0])
        found.append(dict(zip(cohort.ids, cohort.weights.tolist(), strict=True)).get(1, 0.0))
        selector.skip()

    assert found[3:] == [0.0, 0.0, 1.5] * 3
    assert np.mean(found[3:]) == 0.5


def lived(settings: dict[str, Any], rounds: int = 9) -> Selector:
    selector = Selector(SizeClustered(2), FOUR, seed=5, **settings)
    generator = rng(6)
    for _ in range(rounds):
        cohort = selector.draw(generator.random(4) < 0.8)
        selector.aggregate({k: v for k, v in updates_for(cohort).items() if k != "b"})
    return selector


SETTINGS: list[dict[str, Any]] = [
    {"presence": "estimated", "interval_cutoff": 7, "max_boost": 3.0, "min_separation": 2},
    {"presence": "known", "chances": {"a": 1.0, "b": 0.5, "d": 0.7, "z": 0.2}, "rest": 1},
    {"max_participations": 6, "rest": 2, "min_separation": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_saved_selector_goes_on_bit_for_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    selector = lived(settings)
    selector.save(tmp_path / "state")
    again = Selector.load(tmp_path / "state")

    assert frozen(again) == frozen(selector)
    cohorts = list[list[Cohort]]()
    for each in (selector, again):
        cohorts.append([])
        for _ in range(4):
            cohorts[-1].append(each.draw(["a", "b", "d"]))
            each.skip(answered=["b"] if "b" in cohorts[-1][-1].ids else [])
    assert drawn(cohorts[0]) == drawn(cohorts[1])
    assert frozen(again) == frozen(selector)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_is_known_follows_a_client_to_its_new_place(settings: dict[str, Any]) -> None:
    selector = lived(settings)
    before = {name: own[[0, 1, 3]] for name, own in selector._attendance.state().items()}
    selector.forget(["c"])
    selector.clients = {"aa": 5, **selector.clients}

    after = {name: own[[0, 2, 3]] for name, own in selector._attendance.state().items()}
    assert {name: own.tolist() for name, own in before.items()} == {
        name: own.tolist() for name, own in after.items()
    }
    new = Selector(SizeClustered(2), {"aa": 5}, seed=5, **settings)._attendance.state()
    assert all(own[1] == new[name][0] for name, own in selector._attendance.state().items())


@pytest.mark.parametrize(
    ("name", "value"),
    [("gap", -1), ("intervals", 10**6), ("length", 0.5), ("last_asked", -2)],
    ids=str,
)
def test_a_damaged_state_is_refused(name: str, value: float) -> None:
    selector = lived(SETTINGS[0])
    state = selector.state()
    key = f"attendance.{name}"
    state[key] = np.full(4, value) if isinstance(value, float) else np.full_like(state[key], value)

    before = frozen(selector)
    with pytest.raises(SelectorError, match="this is not the state of a selector"):
        selector.restore(state)
    assert frozen(selector) == before


def test_a_member_without_a_known_chance_is_not_drawn() -> None:
    selector = Selector(
        *(SizeClustered(4), FOUR), seed=0, presence="known", chances={"a": 1.0, "b": 0.5}
    )

    assert selector.draw().ids == ["a", "b"]
    assert selector.target is not None
    assert selector.target.sizes.tolist() == [4, 3, 0, 0]
    selector.skip()
    selector.chances = {"d": 1.0}
    assert selector.draw().ids == ["d"]
    assert selector.chances == {"d": 1.0}


def test_the_largest_weight_of_a_round_follows_presence() -> None:
    chances = [1.0, 0.5, 0.5, 0.1]
    selector = Selector(SizeClustered(2), FOUR, seed=0, presence="known", chances=chances)
    selector.draw(["c", "d"])

    # One draw of two, three tenths of the importance there, and d comes in one round of ten.
    assert selector.largest_weight == pytest.approx(0.5 * 0.3 * 10)


@pytest.mark.parametrize(
    "settings", [{"on_failure": "renormalise"}, {"on_failure": "redraw"}, {"extra": 1}], ids=str
)
def test_the_largest_weight_of_a_round_covers_that_of_the_only_answer(
    settings: dict[str, Any],
) -> None:
    weights = list[float]()
    for seed in range(20):
        selector = Selector(SizeClustered(2), FOUR, seed=seed, **settings)
        selector.draw()
        answered = selector.redraw(selector.asked)[:1] or selector.asked[:1]
        weights += selector.settle(answered).weights.tolist()
        assert max(weights) <= selector.largest_weight == 1.0

    assert max(weights) > 0.5 or "extra" in settings


def test_an_event_counts_as_often_as_the_rules_allow() -> None:
    pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
    rules = {"max_participations": 7, "min_separation": 10}
    for rounds, times in ((30, 3), (31, 4), (600, 7), (5, 1)):
        selector = Selector(Poisson(2), FOUR, seed=0, **rules)  # type: ignore[arg-type]
        event = selector.privacy_event(rounds)
        plain = Selector(Poisson(2), FOUR, seed=0).privacy_event(times, amplified=False)
        assert event == plain
    with pytest.raises(SelectorError, match="rest=1, which follows who failed"):
        Selector(Poisson(2), FOUR, seed=0, rest=1).privacy_event(3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"presence": "known"}, "presence='known' needs the chance of each client; got None"),
        ({"chances": [1, 1, 1, 1]}, "presence='ignore' does not use chances"),
        ({"presence": "known", "chances": [0.5, 0, 1, 1]}, "chances must be numbers above 0"),
        ({"presence": "known", "chances": [0.5]}, "one for each of the 4 clients"),
        ({"presence": "estimated", "on_failure": "redraw"}, "got on_failure='redraw'"),
        ({"presence": "estimated", "extra": 1}, "got extra=1"),
        ({"max_boost": 3}, "max_boost needs presence='estimated' or 'known'"),
        ({"presence": "known", "chances": [1] * 4, "interval_cutoff": 3}, "interval_cutoff needs"),
        ({"rest": 1, "extra": 1}, "rest must be 0 with extra"),
        ({"presence": "sometimes"}, "presence must be one of ignore, estimated, known"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SelectorError) as caught:
        Selector(SizeClustered(2), FOUR, seed=0, **settings)

    assert sentence in str(caught.value)


def test_a_biased_design_is_refused_where_weights_make_up_for_presence() -> None:
    with pytest.raises(SelectorError, match=r"needs an unbiased design; uniform is biased\."):
        Selector(Uniform(2), FOUR, seed=0, presence="estimated")


def test_presence_that_depends_on_the_past_is_right_over_time_and_not_given_the_past() -> None:
    """200 Markov clients that stay with chance 0.9 and come with 0.3: q = 3/4.

    By z with 1e-6 false alarms; it detects 2 %. The mean of 1 / q at the start costs a tenth of
    that over the rounds from 2000 on.
    """
    settings = SelectorSettings(SizeClustered(1), presence="estimated")
    attendance, n, generator = Attendance(settings), 200, rng(8)
    attendance.rearrange(np.full(n, -1))
    everyone, nobody = np.ones(n, dtype=bool), np.zeros(0, dtype=np.int64)
    there, means, after = generator.random(n) < 0.75, np.zeros(n), [0.0, 0.0]
    for round_ in range(4000):
        before = there
        there = generator.random(n) < np.where(before, 0.9, 0.3)
        weights = there * attendance.boosts(np.arange(n), None)
        if round_ >= 2000:
            means += weights / 2000
            for k, group in enumerate((~before, before)):
                after[k] += float(weights[group].mean()) / 2000
        attendance.record(round_, members=everyone, present=there, asked=nobody, failed=nobody)

    errors = np.array([means.std(ddof=1) / np.sqrt(n)])
    assert agrees(means.mean(keepdims=True), np.ones(1), errors)
    assert errors[0] * norm.isf(FALSE_ALARM / 2) < 0.02
    assert after[0] < 0.5
    assert after[1] > 1.1
