"""Clients by id: their order, members that come and go, who is available, labels, importance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedcohort import (
    Difference,
    Multinomial,
    Population,
    Regression,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Stratified,
    Target,
    Uniform,
)
from fedcohort.errors import FedcohortError, PopulationError, SelectorError
from fedcohort.memory.rows import encoded
from fedcohort.selector.roster import Roster
from selectors_for_tests import SIZES, Largest, drawn, frozen, played, updates_for


@pytest.fixture
def roster() -> Roster:
    made = Roster(groups={"a": "x", 5: "y"})
    made.set({"2": 1, 2: 3, "10": 4, "a": 2, "b": 2, 1: 9})
    return made


def test_ids_are_ordered_by_value_then_by_name(roster: Roster) -> None:
    assert roster.ids == [1, 2, "2", "10", "a", "b"]
    assert roster.sizes.tolist() == [9, 3, 1, 4, 2, 2]


def test_numbers_from_0_need_no_list() -> None:
    roster = Roster()

    roster.set({2: 7, 0: 5, 1: 6})

    assert roster.ids == range(3)
    assert roster.sizes.tolist() == [5, 6, 7]
    assert roster.positions(np.array([2, 0])).tolist() == [2, 0]


def test_the_order_of_arrival_never_matters() -> None:
    first = Selector(SimilarityClustered(3), SIZES, seed=4)
    second = Selector(SimilarityClustered(3), dict([*SIZES.items()][::-1]), seed=4)

    assert drawn(played(first, 4)) == drawn(played(second, 4))
    assert frozen(first) == frozen(second)


def test_clients_that_come_one_by_one_end_where_all_at_once_begin() -> None:
    later = Selector(SizeClustered(3), {}, seed=0)
    later.clients = {each: SIZES[each] for each in "fba"}
    later.clients = SIZES

    assert drawn(played(later, 4)) == drawn(played(Selector(SizeClustered(3), SIZES, seed=0), 4))


@pytest.mark.parametrize(
    "clients",
    [
        [4, 3, 3],
        np.array([4, 3, 3]),
        np.array([4.0, 3.0, 3.0]),
        {0: 4, 1: 3, 2: 3},
        {np.int64(2): np.int64(3), np.int32(0): 4, 1: 3.0},
        Population([4, 3, 3]),
        Population([3, 4, 3], ids=[1, 0, 2]),
    ],
    ids=repr,
)
def test_sizes_come_as_a_list_an_array_a_mapping_or_a_population(clients: Any) -> None:
    selector = Selector(Multinomial(2), clients, seed=0)

    assert selector.clients == {0: 4, 1: 3, 2: 3}
    assert drawn(played(selector, 3)) == drawn(
        played(Selector(Multinomial(2), [4, 3, 3], seed=0), 3)
    )


def test_updates_can_be_named_by_numpys_numbers_and_texts() -> None:
    numbers = Selector(Uniform(2), [1, 1], seed=0)
    texts = Selector(Uniform(2), {"a": 1, "b": 1}, seed=0)
    numbers.draw()
    texts.draw()

    assert numbers.aggregate({np.int32(1): [4.0], np.int64(0): [2.0]}).tolist() == [3.0]
    assert texts.aggregate({np.str_("b"): [4.0], "a": [2.0]}).tolist() == [3.0]


@pytest.mark.parametrize(
    "available",
    [
        ["b", "e"],
        {"e", "b"},
        ("e", "b", "b"),
        np.array(["b", "e"]),
        np.array([False, True, False, False, True, False]),
        [False, True, False, False, True, False],
        iter("be"),
    ],
    ids=["list", "set", "tuple", "array", "mask", "list of booleans", "iterator"],
)
def test_available_clients_are_ids_or_a_mask(available: Any) -> None:
    selector = Selector(Multinomial(4), SIZES, seed=0)

    cohort = selector.draw(available)

    assert set(cohort.ids) <= {"b", "e"}
    assert selector.design is not None
    assert selector.design.population.sizes.tolist() == [0, 3, 0, 0, 2, 0]


@pytest.mark.parametrize(
    ("available", "message"),
    [
        (["b", "zoe"], "'zoe' is not the id of a client"),
        ("be", "available must be ids, or a mask of 6 booleans; got 'be'"),
        (3, "available must be ids, or a mask of 6 booleans; got 3"),
        ([0], "0 is not the id of a client"),
        (np.array([True]), r"one boolean for each of the 6 clients; got shape \(1,\)"),
    ],
)
def test_who_is_available_must_be_known(available: Any, message: str) -> None:
    selector = Selector(Multinomial(4), SIZES, seed=0)

    with pytest.raises(SelectorError, match=message):
        selector.draw(available)
    assert selector.cohort is None


@pytest.mark.parametrize("ids", [[-1], [6], np.array([6]), np.array([-1]), ["0"], [0.0]])
def test_numbers_must_be_in_range(ids: Any) -> None:
    roster = Roster()
    roster.set([1] * 6)

    with pytest.raises(SelectorError, match=r"is not the id of a client|strings or integers"):
        roster.positions(ids)


def test_what_is_known_follows_a_client_that_leaves_and_returns() -> None:
    selector = Selector(
        SimilarityClustered(6), SIZES, seed=0, estimator="difference", log=True, sketch=2
    )
    played(selector, 2)
    before = selector.state()

    selector.clients = {"A": 9, "d": 5, "zoe": 1}
    assert selector.clients == {"A": 9, "d": 5, "zoe": 1}
    assert set(selector.draw().ids) <= {"A", "d", "zoe"}
    selector.skip()
    selector.clients = {**SIZES, "A": 9}

    after = selector.state()
    at = [k for k, each in enumerate(selector.population.ids) if each in SIZES]
    for name in ("memory.updates", "memory.last_seen", "estimator.last_seen"):
        moved = after[f"records.{name}"][at]
        assert (moved == before[f"records.{name}"]).all()
    assert (after["records.estimator.rows"] == before["records.estimator.rows"]).all()
    assert selector.selections is not None
    assert selector.selections.drawn[at].sum() >= before["log.drawn"].sum()
    assert selector.population.sizes.tolist() == [9, *SIZES.values(), 0]


def test_a_size_that_changes_changes_the_law() -> None:
    selector = Selector(Multinomial(3), {"a": 1, "b": 1}, seed=0)
    played(selector, 1)

    selector.clients = {"a": 3, "b": 1}

    selector.draw()
    assert selector.design is not None
    assert selector.design.population.importance.tolist() == [0.75, 0.25]


def test_members_that_cannot_be_change_nothing() -> None:
    selector = Selector(SizeClustered(2), {}, seed=0, importance={"a": 0.5, "b": 0.25, "c": 0.25})
    before = frozen(selector)

    with pytest.raises(SelectorError, match="importance has no entry for client 'zoe'"):
        selector.clients = {"a": 1, "zoe": 1}
    assert frozen(selector) == before
    selector.clients = {"a": 1, "c": 1}
    assert selector.population.importance.tolist() == [2 / 3, 1 / 3]
    selector.clients = {"a": 1, "b": 1}
    assert selector.population.importance.tolist() == [2 / 3, 1 / 3, 0.0]


def test_first_members_that_are_too_few_are_refused_and_can_come_again() -> None:
    selector = Selector(Uniform(3), {}, seed=0)

    assert len(selector.draw()) == 0
    selector.skip()
    with pytest.raises(FedcohortError, match="at most the 2 clients"):
        selector.clients = {"a": 1, "b": 1}
    assert selector.clients == {}
    selector.clients = {"a": 1, "b": 1, "c": 1}
    assert len(selector.draw()) == 3


def test_with_all_members_gone_nobody_is_drawn() -> None:
    selector = Selector(SizeClustered(2), SIZES, seed=0, estimator="difference")
    played(selector, 2)

    selector.clients = {}

    assert selector.clients == {}
    assert len(selector.draw()) == 0
    assert selector.aggregate({}) == 0.0


def test_members_that_change_after_ask_are_those_that_are_drawn() -> None:
    selector = Selector(SizeClustered(2), SIZES, seed=0)
    selector.ask(available=["a", "b"])

    selector.clients = {**SIZES, "zoe": 1}

    selector.draw()
    assert selector.design is not None
    assert selector.design.population.sizes.tolist() == [*SIZES.values(), 1]


@pytest.mark.parametrize(
    "groups",
    [
        ["x", "y", "x", None, "y", "x"],
        np.array(["x", "y", "x", "unlabelled", "y", "x"]),
        {"a": "x", "b": "y", "c": "x", "e": "y", "f": "x", "late": "y"},
    ],
    ids=["list", "array", "mapping"],
)
def test_labels_come_in_order_or_by_id(groups: Any) -> None:
    selector = Selector(Target(3), SIZES, seed=0, groups=groups)

    assert selector.population.groups == ("x", "y", "x", "unlabelled", "y", "x")
    assert len(selector.draw().ids)


def test_labels_wait_for_clients_that_come_later(roster: Roster) -> None:
    unlabelled = "unlabelled"
    assert roster.population.groups == (*[unlabelled] * 4, "x", unlabelled)

    roster.set({5: 1, "a": 7})

    assert roster.ids == [1, 2, "2", 5, "10", "a", "b"]
    assert roster.population.groups == (*[unlabelled] * 3, "y", unlabelled, "x", unlabelled)


def test_labels_of_a_population_are_taken_with_it() -> None:
    selector = Selector(Stratified(2), Population([1, 2, 3], groups=[1, 1, 2]), seed=0)

    selector.clients = {0: 1, 1: 2, 2: 3, 3: 1}

    assert selector.population.groups == (1, 1, 2, "unlabelled")


def test_importance_in_order_belongs_to_the_ids_of_the_clients() -> None:
    selector = Selector(SizeClustered(2), {"b": 1, "a": 1}, seed=0, importance=[0.75, 0.25])

    assert selector.population.importance.tolist() == [0.25, 0.75]


@pytest.mark.parametrize("keep", ["float32", "float16", "int8"])
def test_a_forgotten_client_is_gone_everywhere(keep: Any) -> None:
    """Its name, its label and its update, which no other client has, are in no array."""
    secret = np.array([1234.5678, -8765.4321, 17.25])
    clients = {**SIZES, "Marie Curie": 30}
    selector = Selector(
        SimilarityClustered(6),
        clients,
        seed=0,
        groups={**dict.fromkeys(SIZES, "x"), "Marie Curie": "Sorbonne"},
        importance=dict.fromkeys(SIZES, 0.125) | {"Marie Curie": 0.25},
        estimator=Difference(keep=keep),
        log=True,
    )
    for _ in range(3):
        cohort = selector.draw()
        selector.aggregate(
            {each: secret if each == "Marie Curie" else 0 * secret for each in cohort.ids}
        )
    row, _ = encoded(secret[None], keep)
    marks = [b"Curie", b"Sorbonne", secret.astype(np.float32).tobytes(), row.tobytes()]
    kept = b"".join(array.tobytes() for array in selector.state().values())
    assert all(mark in kept for mark in marks)

    selector.forget(["Marie Curie"])

    kept = b"".join(array.tobytes() for array in selector.state().values())
    assert not [mark for mark in marks if mark in kept]
    assert "Marie Curie" not in selector.clients
    with pytest.raises(SelectorError, match="importance has no entry for client 'Marie Curie'"):
        selector.clients = clients
    played(selector, 2)


def test_forgetting_everyone_is_beginning_anew() -> None:
    selector = Selector(Largest(2), SIZES, seed=0, estimator="difference", overlap=True)
    played(selector, 3)

    selector.forget(SIZES)
    selector.clients = {"a": 1, "b": 2}

    assert selector.estimator is None
    assert np.isnan(selector.state()["records.own.norm"]).all()
    played(selector, 2, dimension=7)


def test_a_million_clients_take_no_dictionary() -> None:
    selector = Selector(Multinomial(5), np.ones(10**6, dtype=np.int64), seed=0)
    for _ in range(2):
        cohort = selector.draw(available=np.arange(0, 10**6, 2))
        selector.aggregate(updates_for(cohort))

    assert all(each % 2 == 0 for each in cohort.clients.tolist())
    assert selector._roster._position is None
    assert isinstance(selector._roster.ids, range)


def test_a_client_that_has_not_come_yet_is_forgotten_once_if_it_is_named_twice() -> None:
    features = Regression(features={"a": [1.0], "b": [2.0], "z": [3.0]})
    selector = Selector(Multinomial(1), {"a": 1, "b": 2}, seed=0, estimator=features)

    selector.forget(["z", "a", "z", "a"])

    assert list(selector.clients) == ["b"]


def test_the_index_of_a_series_names_the_clients() -> None:
    pandas = pytest.importorskip("pandas", reason="the extra 'report' is not installed")
    sizes = pandas.Series([5, 3, 2], index=["Nice", "Lyon", "Brest"])

    selector = Selector(Multinomial(2), sizes, seed=0)

    assert selector.clients == {"Brest": 2, "Lyon": 3, "Nice": 5}
    assert selector.draw().ids == Selector(Multinomial(2), sizes.to_dict(), seed=0).draw().ids
    selector.skip()
    selector.clients = sizes[["Lyon", "Brest"]] + 1
    assert selector.clients == {"Brest": 3, "Lyon": 4}
    selector.clients = pandas.Series([8, 9], index=[7, 3])
    assert selector.clients == {3: 9, 7: 8}
    assert Selector(Multinomial(2), pandas.Series([5, 3])).clients == {0: 5, 1: 3}


def test_the_index_of_a_series_names_the_clients_of_groups_and_importance() -> None:
    pandas = pytest.importorskip("pandas", reason="the extra 'report' is not installed")
    sizes, shares = {"Nice": 5, "Lyon": 3, "Brest": 2}, {"Brest": 0.5, "Nice": 0.3, "Lyon": 0.2}
    labels = {"Lyon": "hill", "Brest": "coast", "Nice": "coast"}

    selector = Selector(
        Target(2), sizes, importance=pandas.Series(shares), groups=pandas.Series(labels), seed=0
    )

    population = selector.population
    assert list(population.ids) == ["Brest", "Lyon", "Nice"]
    assert population.importance.round(3).tolist() == [0.5, 0.2, 0.3]
    assert population.groups == ("coast", "hill", "coast")


def test_a_series_that_names_a_client_twice_is_refused() -> None:
    pandas = pytest.importorskip("pandas", reason="the extra 'report' is not installed")
    sizes = pandas.Series([5, 3], index=["Nice", "Nice"])

    for make in (Population, lambda given: Selector(Multinomial(2), given)):
        with pytest.raises(PopulationError, match="'Nice' appears more than once in the index"):
            make(sizes)
