"""HiCS-FL: groups by the updates of the output layer's bias."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import HiCS, Population, Selector, diagnostics
from fedcohort.baselines import HiCSDesign
from fedcohort.baselines.hics import data_distances, entropies, tree_groups
from fedcohort.errors import DesignError, SelectorError
from selectors_for_tests import assert_goes_on_alike

HALF = math.log(3) / 2
#: The worked example: two classes, temperature 1, balance 10, p = (.5, .3, .2).
BIASES = np.array([[HALF, -HALF], [-HALF, HALF], [2 * HALF, -2 * HALF]])
POPULATION = Population([5, 3, 2])


def example(gamma: float) -> HiCSDesign:
    return HiCSDesign(POPULATION, 2, BIASES, gamma=gamma, temperature=1.0, balance=10.0)


def test_the_worked_example_of_entropies_and_distances() -> None:
    entropy = entropies(BIASES, 1.0)
    distances = data_distances(BIASES, entropy, 10.0)

    assert entropy.round(6).tolist() == [0.562335, 0.562335, 0.325083]
    upper = distances[np.triu_indices(3, 1)]
    assert upper.round(4).tolist() == [3.1416, 2.3725, 5.5141]
    rows = [float(np.linalg.norm(distances[i] - distances[j])) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert np.round(rows, 4).tolist() == [5.4414, 4.1093, 7.836]
    assert tree_groups(distances, 2).tolist() in ([0, 1, 0], [1, 0, 1])


@pytest.mark.parametrize(
    ("gamma", "shares"),
    [(2.0, [0.440964, 0.559036]), (4.0, [0.383551, 0.616449]), (0.0, [0.5, 0.5])],
)
def test_the_worked_example_of_the_chances_of_groups(gamma: float, shares: list[float]) -> None:
    """The preference at t = R/2, 0 and R."""
    design = example(gamma)

    found = [design.chances[[0, 2]].sum(), design.chances[1]]
    assert np.round(found, 6).tolist() == shares


def test_the_worked_example_of_the_cohorts() -> None:
    design = example(2.0)

    assert design.chances.round(6).tolist() == [0.314974, 0.559036, 0.12599]
    cohorts, chances = design._listed
    found = dict(zip(map(tuple, cohorts.tolist()), chances.round(6).tolist(), strict=True))
    assert found == {(0, 1): 0.656356, (0, 2): 0.103334, (1, 2): 0.24031}
    mean = design.bias() + POPULATION.importance
    assert mean.round(6).tolist() == [0.379845, 0.448333, 0.171822]


def test_the_preference_fades_with_rounds_from_1() -> None:
    """t / R = 1/2 in round 4 of 10, counted from 0; after round R all groups are alike."""
    recipe = HiCS(2, gamma=4.0, temperature=1.0, rounds=10)
    shares = [
        recipe.build(POPULATION, kept={"biases": BIASES}, round_=round_, rng=0)
        for round_ in (4, 9, 25)
    ]

    assert [round(each.chances[1].item(), 6) for each in shares] == [0.559036, 0.5, 0.5]  # type: ignore[attr-defined]


def test_a_bias_of_zero_is_at_no_angle_and_most_balanced() -> None:
    biases = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    entropy = entropies(biases, 1.0)

    assert entropy[0] == pytest.approx(math.log(2))
    assert np.allclose(data_distances(biases, entropy, 0.0)[0], 0)
    assert data_distances(biases, entropy, 0.0)[1, 2] == pytest.approx(math.pi / 2)


def test_large_biases_over_a_small_temperature_have_a_finite_entropy() -> None:
    found = entropies(np.array([[1e3, -1e3, 1e3], [1e30, 0.0, 0.0]]), 1e-4)

    assert found.round(6).tolist() == [round(math.log(2), 6), 0.0]


def slow_groups(distances: np.ndarray, n_groups: int) -> set[frozenset[int]]:
    """Ward's method on the rows as points: merge the pair that adds the least spread."""
    clusters = [frozenset([i]) for i in range(len(distances))]

    def spread(cluster: frozenset[int]) -> float:
        points = distances[sorted(cluster)]
        return float(((points - points.mean(axis=0)) ** 2).sum())

    while len(clusters) > n_groups:
        _, a, b = min(
            (spread(one | other) - spread(one) - spread(other), i, j)
            for i, one in enumerate(clusters)
            for j, other in enumerate(clusters)
            if i < j
        )
        clusters = [own for k, own in enumerate(clusters) if k not in (a, b)] + [
            clusters[a] | clusters[b]
        ]
    return set(clusters)


@pytest.mark.parametrize("n_groups", [1, 3, 8])
def test_groups_are_those_of_wards_method_in_plain_loops(n_groups: int) -> None:
    for seed in range(10):
        biases = np.random.default_rng(seed).normal(size=(8, 3))
        distances = data_distances(biases, entropies(biases, 1.0), 10.0)

        found = tree_groups(distances, n_groups)

        groups = {frozenset(np.flatnonzero(found == g).tolist()) for g in range(n_groups)}
        assert groups == slow_groups(distances, n_groups)


def test_the_first_rounds_hear_everyone_once() -> None:
    """Seven clients, cohorts of three: 3, 3 and 1, with equal weights."""
    selector = Selector(HiCS(3, rounds=10), [1, 2, 3, 4, 5, 6, 7], seed=0)
    drawn: list[int] = []
    sizes: list[int] = []
    for _ in range(3):
        cohort = selector.draw()
        drawn += cohort.ids
        sizes.append(len(cohort))
        assert cohort.weights.tolist() == [1 / len(cohort)] * len(cohort)
        selector.aggregate({i: {"w": np.ones((2, 2)), "b": np.array([i, 1.0])} for i in cohort.ids})

    assert sizes == [3, 3, 1]
    assert sorted(drawn) == list(range(7))
    design = selector.next_design()
    assert isinstance(design, HiCSDesign)
    assert set(design.groups.tolist()) == {0, 1, 2}


def test_a_client_that_joins_or_fails_is_heard_first() -> None:
    selector = Selector(HiCS(1), {"a": 1, "b": 1}, seed=0)
    sent = {"w": np.ones((1, 2)), "b": np.array([1.0, 0.0])}
    for _ in range(2):
        selector.aggregate(dict.fromkeys(selector.draw().ids, sent))
    selector.clients = {"a": 1, "b": 1, "c": 1}

    for _ in range(2):
        assert selector.draw().ids == ["c"]
        selector.aggregate({})
    assert selector.draw(available=["a", "b"]).ids in (["a"], ["b"])


def test_it_keeps_the_biases_and_no_updates() -> None:
    selector = Selector(HiCS(2, layer="out.bias"), [1, 1], seed=0)
    selector.draw()
    update = {
        "out.bias": np.array([1.0, 2.0, 3.0]),
        "out.weight": np.ones((3, 1000)),
        "scale": np.ones(7),
    }
    selector.aggregate({0: update, 1: update})

    assert selector.memory is None
    assert selector.state()["records.own.biases"].tolist() == [[1.0, 2.0, 3.0]] * 2
    assert selector.nbytes < 500


def test_the_bias_is_read_one_update_at_a_time_too() -> None:
    """A plug-in hands over updates by id, and keeps none of them."""
    selector = Selector(HiCS(2), [1, 1], seed=0)
    cohort = selector.draw()
    rows = {i: [np.ones((2, 2)), np.array([i, 5.0])] for i in cohort.ids}
    selector.remember(rows)

    assert selector.state()["records.own.biases"].tolist() == [[0.0, 5.0], [1.0, 5.0]]


def test_updates_without_an_output_layer_are_refused() -> None:
    selector = Selector(HiCS(1), [1, 1], seed=0)
    selector.draw()

    with pytest.raises(SelectorError, match=r"HiCS: needs the output layer's bias, one-dimension"):
        selector.aggregate([np.ones(3)])
    other = Selector(HiCS(1, layer="head"), [1, 1], seed=0)
    other.draw()
    with pytest.raises(SelectorError, match=r"needs the output layer's bias, the array 'head', in"):
        other.aggregate([{"w": np.ones((2, 2)), "b": np.ones(2)}])


def test_a_loaded_selector_goes_on_bit_for_bit(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    selector = Selector(HiCS(2, rounds=20, temperature=0.1), [5, 3, 2, 1], seed=0)

    assert_goes_on_alike(
        selector,
        tmp_path / "state",
        lambda i: [generator.normal(size=(2, 3)), generator.normal(size=2)],
    )


def test_many_clients_have_estimated_chances() -> None:
    """Two-sided z with 100 clients; 1e-6 false alarms. A chance of .1 off by .05 is seen."""
    biases = np.random.default_rng(0).normal(size=(100, 3))
    design = HiCSDesign(Population([1] * 100), 10, biases, temperature=1.0)
    drawn = np.asarray(design.draw_many(4000, 1).mean(axis=0))
    bound = 5.7 * np.sqrt(drawn * (1 - drawn) * (1 / 1000 + 1 / 4000)) + 1e-3

    assert not design.exact_counts
    assert design.estimate_cohorts == 1000
    assert (np.abs(design.expected_counts() - drawn) <= bound).all()
    assert diagnostics.bias(design).shape == (100,)


@pytest.mark.parametrize("size", [3, 12])
def test_listed_cohorts_are_all_and_sum_to_one(size: int) -> None:
    biases = np.random.default_rng(0).normal(size=(size, 2))
    design = HiCSDesign(Population([1] * size), 3, biases)
    cohorts, chances = design._listed

    assert len(cohorts) == math.comb(size, 3)
    assert chances.sum() == pytest.approx(1)
    assert all((a < b).all() for a, b in pairwise(cohorts.T))


@pytest.mark.parametrize(
    ("biases", "options", "message"),
    [
        (np.ones(3), {}, r"HiCSDesign: biases must be finite numbers of shape \(3, classes\)"),
        (np.full((3, 2), np.inf), {}, r"biases must be finite numbers"),
        (BIASES, {"gamma": -1.0}, r"HiCSDesign: gamma must be a number of at least 0; got -1.0"),
        (BIASES, {"temperature": 0.0}, r"HiCSDesign: temperature must be a number above 0"),
        (BIASES, {"groups": 0}, r"HiCSDesign: groups must be a whole number of at least 1; got 0"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    biases: np.ndarray, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DesignError, match=message):
        HiCSDesign(POPULATION, 2, biases, **options)


def test_settings_that_cannot_be_used_are_refused() -> None:
    for settings, message in (
        ({"temperature": 0.0}, r"HiCS: temperature must be a number above 0"),
        ({"rounds": 0}, r"HiCS: rounds must be a whole number of at least 1"),
        ({"layer": 3}, r"HiCS: layer must be a text"),
    ):
        with pytest.raises(DesignError, match=message):
            replace(HiCS(2), **settings)
