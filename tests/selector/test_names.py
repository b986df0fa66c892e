"""Arrays are matched by name: the order in which clients send them changes nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcohort import (
    Cohort,
    Difference,
    Multinomial,
    Population,
    Regression,
    Selector,
    SimilarityClustered,
    Tournament,
    UpdateMemory,
    aggregate,
)
from fedcohort.designs import MultinomialDesign
from fedcohort.errors import AggregationError, SelectorError
from fedcohort.memory import EstimatorSettings
from fedcohort.selector import Answers
from laws import law
from selectors_for_tests import frozen

SIZES = [4, 3, 2, 1]
SHAPES = {"layer.weight": (2, 3), "layer.bias": (3,), "scale": (1,), "seen": ()}
#: Orders of the names, by client and round.
ORDERS: dict[str, Callable[[int, int], bool]] = {
    "all alike": lambda client, round_: False,
    "by client": lambda client, round_: client % 2 == 1,
    "by round": lambda client, round_: round_ % 2 == 1,
    "by both": lambda client, round_: (client + round_) % 3 == 0,
}
FORMS: list[EstimatorSettings] = [
    *(Difference(keep=keep) for keep in ("float32", "float16", "int8")),
    Difference(keep="rank", rank=2),
    Difference(keep="rank", rank=2, shrink=0.5),
    *(Regression(keep=keep, output="layer.bias") for keep in (None, "float16", "int8")),
    Regression(keep="rank", output="layer.bias", rank=2),
    Regression(features=[[0.0], [1.0], [5.0], [None]]),
]
Named = dict[str, NDArray[Any]]


def update_of(client: int, round_: int) -> Named:
    """An update of client, different in every entry; one integer array."""
    rng = np.random.default_rng([client, round_])
    made: Named = {
        name: (10 * client + rng.normal(size=shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    made["seen"] = np.array(4 * (client + 1))
    return made


def sent(client: int, round_: int, is_reversed: bool) -> Named:
    update = update_of(client, round_)
    return dict(reversed(update.items())) if is_reversed else update


def played(selector: Selector, rounds: int, order: Callable[[int, int], bool]) -> list[Named]:
    """Play rounds in which everyone answers; return the steps."""
    steps = []
    for _ in range(rounds):
        cohort = selector.draw()
        updates = {
            each: sent(each, cohort.round_, order(each, cohort.round_)) for each in cohort.ids
        }
        steps.append(selector.aggregate(updates))
    return steps


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("order", list(ORDERS)[1:])
@pytest.mark.parametrize(
    "settings",
    [
        {"recipe": Multinomial(3)},
        *({"recipe": Multinomial(3), "estimator": form} for form in FORMS),
        {"recipe": SimilarityClustered(3)},
        {"recipe": SimilarityClustered(3), "sketch": 4},
        {"recipe": Tournament(3), "estimator": "difference"},
    ],
    ids=str,
)
def test_the_order_of_names_changes_no_cohort_and_no_step(
    settings: dict[str, Any], order: str
) -> None:
    """Bit for bit: every array goes to its place by name."""
    plain = Selector(clients=SIZES, seed=0, **settings)
    mixed = Selector(clients=SIZES, seed=0, **settings)

    expected = played(plain, 8, ORDERS["all alike"])
    found = played(mixed, 8, ORDERS[order])

    assert all(same(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_estimator_is_unbiased_in_any_order(form: EstimatorSettings, order: str) -> None:
    """E[v] over all cohorts of a round is sum p D, after two rounds that filled the memory.

    The law is enumerated; the step is the selector's own, with the cohort put in its place.
    """
    selector = Selector(Multinomial(2), SIZES, seed=3, estimator=form)
    played(selector, 6, ORDERS[order])
    importance = Population(SIZES).importance
    updates = {k: sent(k, 6, ORDERS[order](k, 6)) for k in range(4)}
    mean = {name: np.zeros(shape) for name, shape in SHAPES.items() if name != "seen"}
    for counts, chance in law(MultinomialDesign(Population(SIZES), 2)).items():
        clients = [i for i, count in enumerate(counts) if count]
        cohort = Cohort.of_shares(clients, [counts[i] for i in clients], 2)
        step = aggregate(None, [updates[i] for i in clients], cohort, memory=selector.estimator)
        for name, total in mean.items():
            total += float(chance) * step[name]

    for name, total in mean.items():
        expected = sum(importance[k] * updates[k][name].astype(np.float64) for k in range(4))
        # The steps are float32 sums of numbers below 50.
        np.testing.assert_allclose(total, expected, atol=50 * 2**-22)


def test_constant_updates_give_the_mean_exactly_in_any_order() -> None:
    """Four clients with constant updates, two of them reversed: V = 0 once all are remembered."""
    rows: dict[Any, Named] = {
        k: {"a": np.full(2, float(k)), "b": np.full(1, 10.0 * k)} for k in range(4)
    }
    updates = {k: dict(reversed(own.items())) if k % 2 else own for k, own in rows.items()}
    selector = Selector(Multinomial(2), SIZES, seed=0, estimator="difference")
    while selector.estimator is None or not (selector.estimator.of(np.arange(1, 4)) != 0).all():
        selector.draw()
        selector.aggregate({k: updates[k] for k in selector.asked})

    for _ in range(10):
        selector.draw()
        step = selector.aggregate({k: updates[k] for k in selector.asked})

        assert step["a"] == pytest.approx(np.full(2, 1.0), abs=1e-12)  # .3 + .4 + .3
        assert step["b"] == pytest.approx(np.full(1, 10.0), abs=1e-12)


def test_a_loaded_selector_knows_the_names(tmp_path: Path) -> None:
    selector = Selector(Multinomial(3), SIZES, seed=0, estimator="difference")
    played(selector, 3, ORDERS["by client"])
    selector.save(tmp_path / "state")

    again = Selector.load(tmp_path / "state")

    expected, found = (played(each, 4, ORDERS["by both"]) for each in (selector, again))
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("saved", [False, True], ids=["kept", "loaded"])
@pytest.mark.parametrize(
    "other",
    [
        {"a": np.ones(2), "c": np.ones(1)},
        {"a": np.ones(1), "b": np.ones(2)},
        {"a": np.ones(2), "b": np.ones(1), "n": np.ones(1, dtype=int)},
        [np.ones(2), np.ones(1)],
        np.ones(3),
    ],
    ids=["name", "shapes", "counter", "list", "flat"],
)
def test_arrays_of_another_model_are_refused_in_later_rounds(
    other: Any, saved: bool, tmp_path: Path
) -> None:
    selector = Selector(Multinomial(2), SIZES, seed=0)
    selector.draw()
    selector.aggregate({each: {"a": np.ones(2), "b": np.ones(1)} for each in selector.asked})
    if saved:
        selector.save(tmp_path / "state")
        selector = Selector.load(tmp_path / "state")
    selector.draw()
    before = frozen(selector)

    with pytest.raises(SelectorError, match=r"earlier updates had 3 numbers, \{'a': .2,., 'b'"):
        selector.aggregate(dict.fromkeys(selector.asked, other))

    assert frozen(selector) == before


def test_lists_are_matched_by_position_with_their_shapes() -> None:
    selector = Selector(Multinomial(2), [1, 1], seed=1)
    selector.draw()

    with pytest.raises(SelectorError, match=r"client 1 differs: 0 of shapes \(2,\) and \(1,\)"):
        selector.aggregate({0: [np.ones(2), np.ones(1)], 1: [np.ones(1), np.ones(2)]})


@pytest.mark.parametrize("order", ORDERS)
def test_a_memory_without_a_selector_matches_names_too(order: str) -> None:
    memories = [UpdateMemory(4, 10), Difference().memory(np.full(4, 0.25), np.zeros(10))]
    expected = [pickle.loads(pickle.dumps(each)) for each in memories]
    for round_, client in product(range(2), range(4)):
        is_reversed = ORDERS[order](client, round_)
        update = {k: v for k, v in sent(client, round_, is_reversed).items() if k != "seen"}
        plain = {k: v for k, v in sent(client, round_, False).items() if k != "seen"}
        for memory, twin in zip(memories, expected, strict=True):
            memory.record([client], [update])
            twin.record([client], [plain])

    for memory, twin in zip(memories, expected, strict=True):
        assert {k: v.tobytes() for k, v in memory.state().items()} == {
            k: v.tobytes() for k, v in twin.state().items()
        }


def test_each_average_has_the_names_of_its_own_update() -> None:
    selector = Selector(Multinomial(3), SIZES, seed=0, estimator="difference")
    played(selector, 3, ORDERS["by both"])
    cohort = selector.draw()
    updates = {k: sent(k, 3, ORDERS["by both"](k, 3)) for k in cohort.ids}
    step = selector.step(updates)

    given = list(selector.for_average(updates))

    total = sum(weight for _, weight, _ in given)
    for name in SHAPES:
        mean = sum(weight * update[name] for _, weight, update in given) / total
        np.testing.assert_allclose(mean, step[name], rtol=1e-5)
    assert len({tuple(update) for _, _, update in given}) == 1


def test_names_that_json_cannot_keep_are_refused() -> None:
    selector = Selector(Multinomial(1), [1], seed=0)
    selector.draw()

    with pytest.raises(SelectorError, match="names of arrays must be strings or integers"):
        selector.aggregate({0: {("a", 1): np.ones(2)}})


def test_a_mapping_moves_a_model_of_another_structure_in_its_own_order() -> None:
    cohort = Cohort.of_shares([0], [1], 1)
    update = {"z": np.array([1.0, 2.0]), "a": np.array([3.0])}

    assert aggregate(np.zeros(3), [update], cohort).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(AggregationError, match="arrays of the model"):
        aggregate(np.zeros(4), [update], cohort)


def two_arrays(is_reversed: bool) -> Named:
    made = {"a": np.full(2, 2.0), "b": np.ones(2)}
    return dict(reversed(made.items())) if is_reversed else made


@pytest.mark.parametrize("model", [[np.zeros(2), np.zeros(2)], np.zeros(4)], ids=["list", "flat"])
@pytest.mark.parametrize("loads", [False, True])
def test_a_model_of_another_structure_moves_in_one_order_for_ever(
    model: Any, loads: bool, tmp_path: Path
) -> None:
    """In that of the first round, also in a selector that was saved since."""
    selector = Selector(Multinomial(2), SIZES, seed=0)
    for round_ in range(4):
        updates = {each: two_arrays(round_ % 2 == 1) for each in selector.draw().ids}
        model = selector.aggregate(updates, model=model)
        if loads:
            selector.save(tmp_path / "state")
            selector = Selector.load(tmp_path / "state")

    assert np.concatenate([model]).ravel().tolist() == [8.0, 8.0, 4.0, 4.0]


@pytest.mark.parametrize("as_rows", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("recipe", [Multinomial(3), SimilarityClustered(3)], ids=repr)
def test_what_goes_out_has_the_names_in_one_order(recipe: Any, whole: bool, as_rows: bool) -> None:
    selector = Selector(recipe, SIZES, seed=0)
    orders = set[tuple[str, ...]]()
    for round_ in range(4):
        ids = selector.draw().ids
        updates: Any = {each: two_arrays((each + round_) % 2 == ids[0] % 2) for each in ids}
        given = [*updates.values()] if as_rows else updates
        answers = selector.receive(given, whole=whole)
        orders |= {tuple(update) for _, _, update in selector.for_average(answers)}
        orders |= {tuple(selector.step(updates))}
        selector.aggregate(updates)

    assert len(orders) == 1


def test_parts_of_a_first_round_have_the_order_of_the_first() -> None:
    selector = Selector(Multinomial(4), [1, 1], seed=0)
    assert selector.draw().ids == [0, 1]
    parts = [selector.receive({each: two_arrays(each == 1)}) for each in (1, 0)]

    assert list(selector.aggregate(Answers.joined(parts))) == ["b", "a"]
