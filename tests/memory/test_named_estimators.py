"""MIFA, FedVARP and FedStale: the difference estimator with other weights or another shrink."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import MIFA, Difference, FedStale, FedVARP, Multinomial, Selector, Uniform
from fedcohort.baselines import UniformDesign
from fedcohort.cohort import Cohort, aggregate
from fedcohort.errors import AggregationError, SelectorError
from fedcohort.memory import ESTIMATORS, EstimatorSettings, estimator_of
from fedcohort.memory.difference import estimator_fields, estimator_from_fields
from fedcohort.population import Population

#: The worked example: four clients, p = 1/4, what is remembered, and what clients 0 and 1 send.
H = np.array([[4.0], [0.0], [2.0], [6.0]])
SENT = {0: np.array([8.0]), 1: np.array([2.0])}


def after_history(settings: EstimatorSettings, recipe: Uniform, seed: int = 0) -> Selector:
    """A selector that remembers H and has drawn clients 0 and 1."""
    selector = Selector(recipe, [1] * 4, seed=seed, estimator=settings)
    while (cohort := selector.draw()).clients.tolist() != [0, 1]:
        selector.skip()
    selector.remember(dict(zip(cohort.ids, H[cohort.clients], strict=True)))
    assert selector.estimator is not None
    selector.estimator.record([0, 1, 2, 3], H)
    while selector.draw().clients.tolist() != [0, 1]:
        selector.skip()
    return selector


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        (Difference(shrink=0.0), 5.0),
        (FedStale(shrink=0.5), 5.5),
        (FedStale(), 5.5),
        (FedVARP(), 6.0),
        (FedVARP(weights="equal"), 6.0),
        (MIFA(), 4.5),
    ],
)
def test_the_worked_example_of_two_uniform_clients(
    settings: EstimatorSettings, step: float
) -> None:
    selector = after_history(settings, Uniform(2, unbiased=True))

    assert selector.aggregate(SENT).tolist() == [step]


@pytest.mark.parametrize(("settings", "step"), [(FedStale(), 4.0), (FedVARP(), 5.0)])
def test_the_worked_example_of_known_chances(settings: Difference, step: float) -> None:
    """q = (1, 1/2, 1/2, 1/4): the clients that are there weigh p / q."""
    memory = settings.memory([0.25] * 4, np.zeros(1))
    memory.record([0, 1, 2, 3], H)
    cohort = Cohort.of_weights(np.array([0, 1]), np.array([1, 1]), np.array([0.25, 0.5]))

    assert aggregate(None, [SENT[0], SENT[1]], cohort, memory=memory).tolist() == [step]


def test_the_published_program_of_fedvarp_weighs_those_that_came_equally() -> None:
    """The worked example with q = (1, 1/2, 1/2, 1/4): 6, whatever the chances are."""
    selector = after_history(FedVARP(weights="equal"), Uniform(2))

    assert selector.cohort is not None
    assert selector.cohort.weights.tolist() == [0.5, 0.5]
    assert selector.aggregate(SENT).tolist() == [6.0]


def test_mifa_moves_by_what_is_remembered_after_the_round() -> None:
    """The slow twin: record first, then the importance-weighted sum of all rows."""
    rng, sizes = np.random.default_rng(0), np.array([5, 3, 2, 7])
    selector = Selector(Multinomial(3), sizes.tolist(), seed=1, estimator="mifa")
    kept = np.zeros((4, 3))
    for _ in range(12):
        there = np.flatnonzero(rng.random(4) < 0.6)
        cohort = selector.draw(available=there)
        sent = {i: rng.normal(size=3) for i in cohort.ids}
        for i, update in sent.items():
            kept[i] = np.float32(update)

        step = selector.aggregate(sent)

        assert np.allclose(step, sizes / sizes.sum() @ kept, rtol=1e-6, atol=1e-7)


def test_a_round_of_mifa_moves_although_nobody_is_there_or_answers() -> None:
    selector = Selector(Uniform(2), [1, 3], seed=0, estimator=MIFA())
    selector.draw()
    selector.aggregate({0: np.array([4.0]), 1: np.array([8.0])})

    selector.draw(available=[])
    assert [(i, w, u.tolist()) for i, w, u in selector.for_average({})] == [(None, 1.0, [7.0])]
    assert selector.aggregate({}).tolist() == [7.0]
    selector.draw()
    assert selector.aggregate({}).tolist() == [7.0]
    selector.draw(available=[1])
    assert selector.aggregate({1: np.array([0.0])}).tolist() == [1.0]


def test_a_round_of_the_difference_estimator_does_not() -> None:
    selector = Selector(Uniform(2), [1, 3], seed=0, estimator=FedStale())
    selector.draw()
    selector.aggregate({0: np.array([4.0]), 1: np.array([8.0])})

    selector.draw(available=[])
    assert selector.aggregate({}) == 0.0


def test_a_framework_that_divides_by_the_sum_of_weights_gets_the_same_step() -> None:
    selector = after_history(MIFA(), Uniform(2))

    given = list(selector.for_average(SENT))

    total = sum(weight for _, weight, _ in given)
    assert sum(weight * update for _, weight, update in given) / total == [4.5]


def test_the_mean_over_all_cohorts_shows_which_weights_are_biased() -> None:
    """Three clients, one draw of two: exact means of the six weights."""
    population = Population([1, 2, 3])
    means = {}
    for settings in (FedVARP(), FedVARP(weights="equal"), MIFA()):
        design = UniformDesign(population, 2, unbiased=True)
        total = np.zeros(3)
        for pair in combinations(range(3), 2):
            cohort = design.weigh(np.array(pair), np.array([1, 1]))
            weighed = settings.weighed(cohort, population.importance)
            total[weighed.clients] += weighed.weights / 3
        means[record(settings)] = total
    p = population.importance

    assert np.allclose(means["FedVARP()"], p)
    assert np.allclose(means["FedVARP(weights='equal')"], 1 / 3)
    assert np.allclose(means["MIFA()"], 2 / 3 * p)


def record(settings: EstimatorSettings) -> str:
    return repr(settings)


@pytest.mark.parametrize("name", [each for each in ESTIMATORS if each != "plain"])
def test_a_name_is_its_settings_and_survives_a_file(name: str, tmp_path: Path) -> None:
    settings = estimator_of("Run", name)  # type: ignore[arg-type]
    selector = Selector(Uniform(1), [1, 1], seed=0, estimator=name)  # type: ignore[arg-type]
    selector.draw()
    selector.aggregate([np.ones(2)])
    selector.save(tmp_path / "state")
    loaded = Selector.load(tmp_path / "state")

    assert settings is not None
    assert type(settings).__name__.lower() == name
    assert estimator_from_fields(estimator_fields(settings)) == settings
    assert type(loaded.estimator) is type(selector.estimator)
    for one in (selector, loaded):
        one.draw()
    sent = [np.array([3.0, 1.0])]
    assert np.array_equal(selector.aggregate(sent), loaded.aggregate(sent))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MIFA(shrink=2.0), r"MIFA: shrink must be a number from 0 to 1; got 2.0"),
        (lambda: FedStale(rank=3), r"FedStale: rank needs keep='rank'; got FedStale\(rank=3\)"),
        (lambda: FedVARP(weights="size"), r"FedVARP: weights must be one of design, importance"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_cannot_be_used_are_refused(make: Any, message: str) -> None:
    with pytest.raises(AggregationError, match=message):
        make()


def test_over_selection_is_refused_with_weights_that_are_not_the_designs() -> None:
    with pytest.raises(SelectorError, match=r"extra must be 0 with MIFA\(\), whose weights"):
        Selector(Multinomial(2), [1] * 5, estimator="mifa", extra=1)
    Selector(Multinomial(2), [1] * 5, estimator="fedstale", extra=1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"presence": "known", "chances": [0.5] * 4}, "those of MIFA() do not follow who comes"),
        ({"presence": "estimated"}, "presence='estimated' needs the weights of the design"),
        ({"on_failure": "renormalise"}, "on_failure='renormalise' would make weights sum to 1"),
    ],
    ids=str,
)
def test_weights_that_are_not_the_designs_are_refused_where_they_would_be_wrong(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SelectorError) as caught:
        Selector(Uniform(2, unbiased=True), [1] * 4, estimator="mifa", **settings)

    assert sentence in str(caught.value)


def test_equal_shares_are_spread_over_those_that_answered_but_do_not_follow_who_comes() -> None:
    equal, recipe = FedVARP(weights="equal"), Uniform(2, unbiased=True)
    with pytest.raises(SelectorError, match="presence='estimated' needs the weights of the design"):
        Selector(recipe, [1] * 4, estimator=equal, presence="estimated")
    selector = Selector(recipe, [1] * 4, seed=0, estimator=equal, on_failure="renormalise")
    first = selector.draw().ids[0]

    assert selector.settle([first]).weights.tolist() == [1.0]


@pytest.mark.parametrize("name", ["expected_weights", "largest_weight"])
def test_the_design_does_not_say_what_others_weigh(name: str) -> None:
    selector = Selector(Uniform(2), [1] * 4, seed=0, estimator="mifa")
    selector.draw()
    with pytest.raises(SelectorError, match=rf"{name} follows from the design; the weights of MI"):
        getattr(selector, name)
