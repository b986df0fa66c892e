"""The regression estimator: unbiased whatever it learned, equal to plain loops, hard to spoil."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest

import laws
from designs.test_contract import DESIGNS as CATALOGUE
from fedcohort import Multinomial, Population, Selector, aggregate
from fedcohort._archive import json_value
from fedcohort._updates import Layout
from fedcohort.designs import RECIPES, MultinomialDesign
from fedcohort.errors import AggregationError, MemoryOfUpdatesError, SelectorError
from fedcohort.memory import regression
from fedcohort.memory.features import MOST_FEATURES, Encoded, FeatureTable
from fedcohort.memory.regression import (
    FADING,
    LONGEST,
    NEEDED_NORMS,
    RIDGE,
    TRUST_FADING,
    TRUST_RIDGE,
    KeepRest,
    Regression,
    RegressionEstimator,
    output_of,
)
from fedcohort.selector.open_round import Draws
from fedcohort.testing import Candidate
from fedcohort.testing.contract import build_from_recipe
from memory.test_difference import ROUNDING, assert_same, cohorts
from populations import rng

#: A model of two arrays; the last is the output layer's bias.
MODEL = {"weight": np.zeros((2, 3)), "bias": np.zeros(2)}
LAYOUT = Layout.of("test", MODEL)
KEEPS: tuple[KeepRest | None, ...] = (None, "float16", "int8", "rank")
every_keep = pytest.mark.parametrize("keep", KEEPS)
N, D = 7, LAYOUT.size
#: After so many rounds the learned trusts count seven times as much as the first ones.
TAUGHT_ROUNDS = 20
SHARES = np.array([1, 2, 1, 0, 1, 2, 1]) / 8


def settings_of(features: Any, keep: KeepRest | None, rank: int = 2) -> Regression:
    return Regression(features, keep=keep, **({"rank": rank} if keep == "rank" else {}))


def empty(
    settings: Regression, importance: np.ndarray, kind: str = "numpy", n_given: int = 0
) -> RegressionEstimator:
    zeros: Any = np.zeros(D)
    if kind == "torch":
        zeros = pytest.importorskip("torch").zeros(D, dtype=pytest.importorskip("torch").float64)
    return RegressionEstimator(settings, importance, zeros, layout=LAYOUT, n_given=n_given)


def given_to(memory: RegressionEstimator, values: np.ndarray, known: np.ndarray) -> None:
    """Set features that are encoded already."""
    same = np.arange(1 + values.shape[1])
    memory.know(Encoded(values, known, same, np.ones(len(same)), np.zeros(len(same))))


def going_on(memory: RegressionEstimator, rounds: range, m: int = 4) -> None:
    """Record rounds in which a client's update depends on the client."""
    n = memory.n_clients
    for round_ in rounds:
        clients = np.sort(rng(round_).choice(n, min(m, n), replace=False))
        updates: Any = rng(5).standard_normal((n, D))[clients]
        updates = updates + 0.3 * rng(round_).standard_normal((len(clients), D))
        if not isinstance(memory.zeros, np.ndarray):
            updates = pytest.importorskip("torch").tensor(updates)
        memory.record(clients, updates, round_=round_)


SETTINGS = [settings_of(x, keep) for x in ("output", None, "given") for keep in KEEPS]


#: Whether a design is unbiased does not depend on the clients.
UNBIASED = [each for each in CATALOGUE if each.build(Population([3, 2, 1, 4]), 2, rng()).unbiased]


def test_every_unbiased_recipe_is_enumerated() -> None:
    built = {type(each.build(Population([3, 2, 1, 4]), 2, rng())) for each in UNBIASED}
    for recipe in RECIPES.values():
        design = build_from_recipe(recipe(2), Population([3, 2, 1, 4]), 2, rng())
        assert not design.unbiased or type(design) in built


#: One client is away; sizes lie nine orders of magnitude apart.
POPULATIONS = {"away": Population([3, 2, 0, 1]), "apart": Population([1, 10**9, 2])}


@cache
def trained(settings: Regression, name: str, rounds: int) -> RegressionEstimator:
    """Return a memory that has seen these rounds, and was saved and loaded."""
    population = POPULATIONS[name]
    n, given = population.n_clients, 2 * (settings.features == "given")
    used, loaded = (empty(settings, population.importance, n_given=given) for _ in range(2))
    if given:
        given_to(used, rng(1).standard_normal((n, 2)), np.arange(n) != 1)
    going_on(used, range(rounds))
    loaded.restore(used.state())
    return loaded


@pytest.mark.parametrize("population", [*POPULATIONS])
@pytest.mark.parametrize("candidate", UNBIASED, ids=lambda each: each.name)
def test_it_is_unbiased_whatever_it_has_learned(candidate: Candidate, population: str) -> None:
    """Outcome by outcome: E[v] is full participation, and V the design's on Delta - h."""
    clients = POPULATIONS[population]
    n = clients.n_clients
    updates = rng(4).integers(-5, 6, size=(n, D)).astype(float)
    design = candidate.build(clients, 2, rng(0))
    everyone, law = clients.importance @ updates, cohorts(design)
    # Chances that are floats round too: a few times in each of at most 2^4 outcomes.
    rounding = ROUNDING * (16 if candidate.in_floats else 1)
    for settings in SETTINGS:
        for rounds in (0, 1, TAUGHT_ROUNDS + 3):
            memory = trained(settings, population, rounds)

            outcomes = [
                (p, aggregate(np.zeros(D), updates[cohort.clients], cohort, memory=memory))
                for p, cohort in law
            ]
            mean = [math.fsum(p * v[axis] for p, v in outcomes) for axis in range(D)]

            h = memory.of(np.arange(n))
            size = 10 + float(np.abs(h).max())
            assert np.abs(mean - everyone).max() <= rounding * 20 * n * size
            assert np.abs(memory.expected() - clients.importance @ h).max() <= ROUNDING * size
            if design.exact_moments:
                noise = math.fsum(p * float((v - everyone) @ (v - everyone)) for p, v in outcomes)
                expected = design.aggregate_variance(updates - h)
                assert abs(noise - expected) <= rounding * (20 * n * size) ** 2


class SlowTwin:
    """The same estimator in plain loops, with whole residuals and one array after another."""

    def __init__(
        self, groups: list[list[int]], output: slice | None, n_given: int, keep: bool
    ) -> None:
        #: The positions of the numbers that share trusts.
        self.groups, self.output, self.keep = groups, output, keep
        r = 1 + (n_given if output is None else output.stop - output.start)
        self.features: dict[int, np.ndarray] = {}
        self.rest: dict[int, np.ndarray] = {}
        self.gram, self.cross = np.zeros((r, r)), np.zeros((r, D))
        self.squares = [np.zeros((2, 2)) for _ in groups]
        self.products = [np.zeros(2) for _ in groups]
        #: The share of the first trusts, before their division by all that was taught.
        self.first, self.taught, self.heard = 5.0, 0.0, 0

    def x(self, client: int) -> np.ndarray:
        usual = np.zeros(len(self.gram) - 1)
        if self.features:
            usual = np.mean([self.features[k] for k in sorted(self.features)], axis=0)
        return np.array([1.0, *self.features.get(client, usual)])

    def coefficients(self) -> np.ndarray:
        ridge = RIDGE * min(np.trace(self.gram) / len(self.gram), self.gram[0, 0]) or 1.0
        return np.linalg.solve(self.gram + ridge * np.eye(len(self.gram)), self.cross)

    def trusts(self, group: int) -> np.ndarray:
        """Return the trusts of one group, a tenth of the whole model's sums included."""
        sizes = [float(np.trace(each)) for each in self.squares]
        share = 0.1 * sizes[group] / (sum(sizes) or 1)
        squares = self.squares[group] + share * sum(self.squares)
        products = self.products[group] + share * sum(self.products)
        found = np.zeros(2)
        live = [k for k in (0, 1) if squares[k, k] > 0]
        if live:
            some = squares[np.ix_(live, live)]
            some = some + TRUST_RIDGE * np.diag(np.diag(some))
            found[live] = np.linalg.solve(some, products[live])
        n, k = self.gram[0, 0], len(self.gram) - 1
        first = np.array([n / (n + 2 * k) if n else 0.0, 0.3])
        total = self.first + self.taught
        return (self.first * first + self.taught * found.clip(-0.5, 1.5)) / total

    def h(self, client: int, mean: np.ndarray) -> np.ndarray:
        b, rest = self.coefficients(), self.rest.get(client, np.zeros(D))
        found = mean @ b
        for number, group in enumerate(self.groups):
            one, two = self.trusts(number)
            found[group] += one * ((self.x(client) - mean) @ b)[group] + two * rest[group]
        return np.asarray(found)

    def record(self, clients: np.ndarray, updates: np.ndarray, mean: np.ndarray) -> None:
        self.heard += len(clients)
        if self.heard < NEEDED_NORMS:
            return
        if len(clients) >= 3:
            b = self.coefficients()
            parts = [
                np.array([(self.x(k) - mean) @ b for k in clients]),
                np.array([self.rest.get(k, np.zeros(D)) for k in clients]),
                updates,
            ]
            for number, group in enumerate(self.groups):
                centred = [(part - part.mean(axis=0))[:, group] for part in parts]
                gram = np.array([[float((one * two).sum()) for two in centred] for one in centred])
                self.squares[number] = TRUST_FADING * self.squares[number] + gram[:2, :2]
                self.products[number] = TRUST_FADING * self.products[number] + gram[:2, 2]
            self.first *= TRUST_FADING
            self.taught = TRUST_FADING * self.taught + 1
        if self.output is not None:
            for k, update in zip(clients, updates, strict=True):
                fresh = update[self.output] / np.linalg.norm(update[self.output])
                old = self.features.get(k)
                self.features[k] = fresh if old is None else 0.5 * old + 0.5 * fresh
        rows = np.array([self.x(k) for k in clients])
        self.gram = FADING * self.gram + rows.T @ rows
        self.cross = FADING * self.cross + rows.T @ updates
        for k, update in zip(clients, updates, strict=True):
            fresh = update - self.x(k) @ self.coefficients()
            if self.keep:
                self.rest[k] = 0.5 * self.rest[k] + 0.5 * fresh if k in self.rest else fresh


@pytest.mark.parametrize("keep", [None, "rank"])  # a rank of all directions keeps e whole
@pytest.mark.parametrize("features", ["output", None, "given"])
@pytest.mark.parametrize("is_split", [False, True])
def test_it_equals_its_slow_twin(
    features: str | None, keep: Any, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split: the bias is a small array, the weight a large one, in pieces of a few numbers."""
    if is_split:
        monkeypatch.setattr(regression, "SMALL_BLOCK", 3)
        monkeypatch.setattr(regression, "BLOCK_ENTRIES", 24)
    bias = LAYOUT.parts["bias"].place
    assert bias == slice(0, 2)
    groups = [[0, 1], list(range(2, D))] if is_split else [list(range(D))]
    settings = settings_of(features, keep, D)
    given = 2 * (features == "given")
    fast = empty(settings, SHARES, n_given=given)
    slow = SlowTwin(groups, bias if features == "output" else None, given, keep is not None)
    if given:
        known = np.array([True, True, False, True, True, False, True])
        values = rng(3).standard_normal((N, 2))
        given_to(fast, values, known)
        slow.features = {k: values[k] for k in np.flatnonzero(known).tolist()}

    for round_ in range(TAUGHT_ROUNDS + 8):
        mean = SHARES @ np.array([slow.x(k) for k in range(N)])
        expected = np.array([slow.h(k, mean) for k in range(N)])
        # About 30 rounds of sums of a few numbers near 1, through a solve with a small ridge.
        np.testing.assert_allclose(fast.of(np.arange(N)), expected, atol=1e-9)
        trusts = [slow.trusts(number) for number in range(len(groups))]
        np.testing.assert_allclose(fast.trusts, trusts, atol=1e-9)
        clients = np.sort(rng(round_).choice(N, 2 + round_ % 4, replace=False))
        updates = rng(5).standard_normal((N, D))[clients] + rng(round_).random((len(clients), D))
        slow.record(clients, updates, mean)
        fast.record(clients, updates, round_=round_)

    assert slow.taught > 7 * slow.first


def test_trusts_are_bounded() -> None:
    memory = empty(Regression(features=None, keep="int8"), SHARES)
    state = memory.state()
    state["squares"][0], state["products"][0] = np.eye(2), [-9.0, 9.0]
    state["taught"][0] = 10**6
    memory.restore(state)

    assert memory.trusts.tolist() == [[-0.5, 1.5]]


@every_keep
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_restored_memory_goes_on_bit_for_bit(keep: Any, kind: str) -> None:
    settings = settings_of("auto", keep)
    whole, restored = (empty(settings, SHARES, kind) for _ in range(2))
    going_on(whole, range(25))
    going_on(restored, range(3))
    restored.restore(whole.state())
    for memory in (whole, restored):
        going_on(memory, range(25, 32))

    assert_same(restored.state(), whole.state())
    assert (whole.expected() == restored.expected()).all()


@every_keep
def test_torch_and_numpy_learn_the_same(keep: Any) -> None:
    settings = settings_of("auto", keep)
    one, other = (empty(settings, SHARES, kind) for kind in ("numpy", "torch"))
    for memory in (one, other):
        going_on(memory, range(30))

    # Both are float64; a quantised residual may round to the other side of a step.
    tolerance = 1e-9 if keep in (None, "rank") else 0.02
    np.testing.assert_allclose(one.of(np.arange(N)), other.of(np.arange(N)).numpy(), atol=tolerance)


def test_the_mean_is_not_shrunk_where_weights_do_not_sum_to_one() -> None:
    """Nearly alike clients, drawn by coins: h keeps the common part, and v barely varies."""
    memory = empty(Regression(features=None, keep=None), np.full(N, 1 / N))
    common = np.ones(D)
    for round_ in range(60):
        memory.record(np.arange(4), np.tile(common, (4, 1)), round_=round_)

    one = memory.aggregate(np.array([0]), np.array([0.4]), common[None])

    # The ridge leaves 2 % of the intercept's sum of squares, which is 4 a round.
    np.testing.assert_allclose(one, common, atol=0.6 * RIDGE)


def test_a_huge_update_barely_moves_what_all_share() -> None:
    usual, spoiled = (empty(Regression(keep=None), SHARES) for _ in range(2))
    for memory in (usual, spoiled):
        going_on(memory, range(10))
    clients, updates = np.arange(4), rng(5).standard_normal((N, D))[:4]
    bad = updates.copy()
    bad[0] *= 1e9
    usual.record(clients, updates)
    spoiled.record(clients, bad)

    norms = np.linalg.norm(rng(5).standard_normal((N, D)), axis=1)
    # The update counts as one of three median norms at most.
    change = spoiled.state()["cross"] - usual.state()["cross"]
    assert np.linalg.norm(change) <= 3 * (1 + LONGEST) * 1.5 * float(norms.max())


def test_a_huge_update_of_the_first_round_does_not_spoil_the_rest() -> None:
    memory = empty(Regression(features=None, keep=None), np.full(N, 1 / N))
    rows = np.ones((6, D))
    rows[0] = 1e30
    memory.record(np.arange(6), rows)
    for round_ in range(1, TAUGHT_ROUNDS + 5):
        memory.record(np.arange(6), np.ones((6, D)), round_=round_)

    assert np.isfinite(memory.trusts).all()
    # One of six updates counted as 3 in the first of 25 rounds.
    assert np.abs(memory.expected() - 1).max() < 0.05


def test_zero_updates_at_the_start_do_not_stop_it_from_learning() -> None:
    memory = empty(Regression(features=None, keep=None), np.full(N, 1 / N))
    for round_ in range(105):
        memory.record(np.arange(6), np.full((6, D), float(round_ >= 5)), round_=round_)

    # What is left of five rounds of zeros after a hundred, and of the ridge.
    assert np.abs(memory.expected() - 1).max() < 0.05


def test_reading_h_changes_nothing() -> None:
    """A float64 tensor is not copied on its way: the sum must not be scaled in place."""
    memory = empty(Regression(features=None, keep="int8"), SHARES, "torch")
    going_on(memory, range(5))
    first = memory.expected().clone()

    assert (memory.expected() == first).all()
    np.testing.assert_allclose(first.numpy(), SHARES @ memory.of(np.arange(N)).numpy(), atol=1e-12)


@pytest.mark.parametrize("first", [1, 2])
@every_keep
@pytest.mark.parametrize("features", ["output", None])
def test_a_huge_update_in_a_first_round_of_few_answers_changes_nothing(
    features: Any, keep: Any, first: int
) -> None:
    usual, spoiled = (empty(settings_of(features, keep), SHARES) for _ in range(2))
    for memory, factor in ((usual, 1.0), (spoiled, 1e6)):
        rows = rng(5).standard_normal((first, D))
        rows[0] *= factor
        memory.record(np.arange(first), rows)
        for round_ in range(1, 30):  # 1 or 2 answers in every round
            clients = np.sort(rng(round_).choice(N, first, replace=False))
            memory.record(clients, rng(6).standard_normal((N, D))[clients], round_=round_)

    # Updates are of nearly the same length: no other one is shortened.
    assert (usual.of(np.arange(N)) == spoiled.of(np.arange(N))).all()
    assert usual.expected().any()


def test_rounds_of_few_answers_and_of_none_teach_no_trust() -> None:
    memory = empty(Regression(), SHARES)
    going_on(memory, range(5), m=2)
    before = memory.state()
    memory.record(np.empty(0, np.int64), np.empty((0, D)))

    assert before["taught"] == 0
    assert before["heard"] == 10
    assert_same(memory.state(), before)


def test_more_features_than_updates_constant_and_collinear_ones_do_no_harm() -> None:
    values = np.concatenate([np.ones((N, 1)), np.tile(rng(1).random((N, 1)), (1, 20))], axis=1)
    memory = empty(Regression(features="given", keep=None), SHARES, n_given=21)
    given_to(memory, values, np.ones(N, dtype=bool))
    going_on(memory, range(2))

    h = memory.of(np.arange(N))

    assert np.isfinite(h).all()
    assert np.abs(h).max() < 2 * np.abs(rng(5).standard_normal((N, D))).max()


@every_keep
def test_clients_take_what_is_known_of_them_along_and_leave_nothing(keep: Any) -> None:
    memory = empty(settings_of("auto", keep, D), SHARES)
    going_on(memory, range(30))
    before = memory.of(np.arange(N))
    order = np.array([4, -1, 0, 1, 2, 3, 5])  # 6 is forgotten, a new client comes
    memory.rearrange(order)
    memory.reweigh(np.full(N, 1 / N))
    there = order >= 0
    memory_mean = np.full(N, 1 / N) @ memory.of(np.arange(N))

    # The predictions change with the mean of x; the clients' differences do not.
    after = memory.of(np.arange(N))[there]
    np.testing.assert_allclose(
        after - after[0], before[order[there]] - before[order[there]][0], atol=1e-9
    )
    np.testing.assert_allclose(memory.expected(), memory_mean, atol=1e-9)


def test_small_arrays_share_a_trust_and_large_ones_have_their_own() -> None:
    layout = Layout.of("test", [np.zeros((60, 40)), np.zeros(60), np.zeros((30, 60)), np.zeros(30)])
    memory = RegressionEstimator(Regression(), [0.5, 0.5], np.zeros(layout.size), layout=layout)

    # Nothing is known yet: there is no prediction to trust.
    assert memory.trusts.tolist() == [[0.0, 0.3]] * 3


@pytest.mark.parametrize("keep", [None, "int8"])
def test_features_that_explain_nothing_do_little_harm_in_the_first_rounds(keep: Any) -> None:
    """10 features, 10 updates a round. With full trust V would be 3.7 times the plain one."""
    n, size, found = 300, 60, []
    values, settings = rng(77).standard_normal((n, 10)), Regression("given", keep=keep)
    layout, shares = Layout.of("test", np.zeros(size)), np.full(n, 1 / n)
    for seed in range(3):
        memory = RegressionEstimator(settings, shares, np.zeros(size), layout=layout, n_given=10)
        given_to(memory, values, np.ones(n, dtype=bool))
        for round_ in range(8):
            random = rng(100 * seed + round_)
            updates = random.standard_normal((n, size))
            left = updates - memory.of(np.arange(n))
            found.append(left.var(axis=0).sum() / updates.var(axis=0).sum())
            clients = np.sort(random.choice(n, 10, replace=False))
            memory.record(clients, updates[clients], round_=round_)

    # Measured: 1.2 after one round, and 1.0 after eight.
    assert max(np.reshape(found, (3, 8)).mean(axis=0)) < 1.4


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ({"w": np.zeros((2, 2)), "b": np.zeros(2)}, 2),
        ([np.zeros((3, 2)), np.zeros(3), np.zeros((4, 3)), np.zeros(4)], 4),
        (np.zeros(5), 0),
        ([np.zeros((3, 2)), np.zeros((2, 2))], 0),
        ({"a": np.zeros((2, 200)), "b": np.zeros(200)}, MOST_FEATURES),
        ([np.zeros((3, 2)), np.zeros(3), np.zeros(0)], 3),
        (
            {
                "w": np.zeros((4, 3)),
                "bn.bias": np.zeros(4),
                "bn.running_mean": np.zeros(5),
                "bn.running_var": np.zeros(6),
            },
            4,
        ),
    ],
)
def test_the_output_is_the_last_one_dimensional_array(model: Any, found: int) -> None:
    layout = Layout.of("test", model)

    memory = RegressionEstimator(Regression(), [1.0], np.zeros(layout.size), layout=layout)

    assert memory.n_features == found


def test_updates_whose_squares_overflow_are_learned_from_without_a_warning() -> None:
    """Their products are discarded: such rounds teach no trust."""
    zeros, settings = np.zeros(D, np.float32), Regression(keep=None)
    memory = RegressionEstimator(settings, np.full(N, 1 / N), zeros, layout=LAYOUT)
    for round_ in range(3):
        rows = 1e36 * rng(round_).standard_normal((4, D)).astype(np.float32)
        memory.record(np.arange(4), rows, round_=round_)

    assert memory.state()["taught"] == 0
    assert np.isfinite(memory.expected()).all()


def test_the_output_may_be_a_position_of_any_integer_type() -> None:
    found = Regression(output=np.int64(1))  # type: ignore[arg-type]  # any integer will do

    assert type(found.output) is int
    assert output_of(found, Layout.of("test", [np.zeros((2, 2)), np.zeros(2)])) == slice(4, 6)


def test_an_output_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(AggregationError, match=r"needs the array 'head.bias' to learn features"):
        output_of(Regression(output="head.bias"), LAYOUT)
    with pytest.raises(AggregationError, match=r"needs a one-dimensional array"):
        output_of(Regression(features="output"), Layout.of("test", np.zeros(3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": "outputs"}, "Regression: features must be one of"),
        ({"keep": "float64"}, "Regression: keep must be one of"),
        ({"rank": 0}, "Regression: rank must be"),
        ({"rank": 4}, "Regression: rank needs keep='rank'"),
        ({"features": None, "output": "zzz"}, "Regression: output needs features='output'"),
        ({"features": {"Nice": 1}, "output": 1}, "Regression: output needs features='output'"),
        ({"output": 1.5}, "Regression: output must be the name or the position of an array"),
        ({"output": True}, "Regression: output must be the name or the position of an array"),
    ],
)
def test_bad_settings_get_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AggregationError, match=message):
        Regression(**arguments)


def table(ids: list[Any], given: Any) -> FeatureTable:
    found = FeatureTable(seed=0)
    found.rearrange(np.full(len(ids), -1), ids)
    found.set(ids, given, np.arange(len(ids)))
    return found


def test_numbers_are_standardised_and_text_becomes_indicators() -> None:
    rows = {"Nice": [10, "south"], "Brest": [30, "west"], "Lyon": [20, None], "Metz": None}

    found = table(list(rows), list(rows.values())).encoded()

    assert found.known.tolist() == [True, True, True, False]
    spread = np.std([10, 30, 20])
    np.testing.assert_allclose(found.values[:3, 0], np.array([-10, 10, 0]) / spread)
    assert found.values[:, 1:].tolist() == [[1, -1], [-1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("at_once", [True, False])
def test_features_that_come_one_by_one_are_encoded_as_if_they_came_together(at_once: bool) -> None:
    """Also a column that did not vary, a category and a column that were not there at first."""
    rows = [{"beds": 4.0}, {"beds": 4.0, "side": "a"}, {"beds": 7.0, "side": "b"}]
    found = table([0, 1, 2], rows) if at_once else table([0], rows[:1])
    for k in () if at_once else (1, 2):
        found.encoded()
        found.rearrange(np.array([*range(k), -1]), list(range(k + 1)))
        found.set([k], [rows[k]], np.array([k]))

    values = found.encoded().values

    root = math.sqrt(2)
    expected = [[-1 / root, 0, 0], [-1 / root, 1, -1], [root, -1, 1]]
    np.testing.assert_allclose(values, expected, rtol=0, atol=4 * ROUNDING)


def test_what_was_learned_is_expressed_in_the_new_encoding() -> None:
    """x B is the same in the old features and in the new ones, for clients whose values stayed."""
    found = table([0, 1, 2], [[1.0, "a", 5.0], [2.0, "b", 5.0], [4.0, "a", 5.0]])
    first, memory = found.encoded(), empty(Regression("given", keep=None), np.full(3, 1 / 3))
    memory.know(first)
    memory.record(np.arange(3), rng(0).standard_normal((3, D)))
    gram, cross = memory.state()["gram"], memory.state()["cross"]
    before = np.c_[np.ones(3), first.values] @ np.linalg.pinv(gram) @ cross
    found.rearrange(np.array([0, 1, 2, -1]), list(range(4)))
    found.set([3], [[9.0, "c", 6.0]], np.array([3]))
    memory.rearrange(np.array([0, 1, 2, -1]))

    second = found.encoded()
    memory.know(second)

    gram, cross = memory.state()["gram"], memory.state()["cross"]
    after = np.c_[np.ones(4), second.values] @ np.linalg.pinv(gram) @ cross
    assert memory.n_features == 5
    # Through two pseudo-inverses of matrices of condition below 1000.
    np.testing.assert_allclose(after[:3], before, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("typo", "share"), [(40.0, 1.0), (1e3, 0.05), (1e8, 0.05), (1e155, 0.05), (1e300, 0.05)]
)
@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_value_that_is_corrected_does_not_drown_what_was_learned(
    typo: float, share: float, is_drawn: bool
) -> None:
    """Updates are linear in x. One client's x was far too large for 30 rounds.

    A small error spoils the slope, which fades, and not the mean; a large one starts anew.
    """
    n = 60
    x, slope = rng(1).standard_normal(n), rng(2).standard_normal(D)
    updates, usual = 1 + x[:, None] * slope, np.full(n, 1 / n)
    found = table(list(range(n)), np.r_[typo, x[1:]])
    memory = empty(Regression("given", keep=None), usual)
    memory.know(found.encoded())
    for round_ in range(60):
        if round_ == 30:
            found.set([0], [x[0]], np.array([0]))
            memory.know(found.encoded())
            np.testing.assert_allclose(memory.expected(), 1 + x.mean() * slope, atol=0.2)
        clients = np.sort(rng(round_).choice(np.arange(not is_drawn, n), 6, replace=False))
        memory.record(clients, updates[clients], round_=round_)
    left = updates - memory.of(np.arange(n))

    assert left.var(axis=0).sum() < share * updates.var(axis=0).sum()
    np.testing.assert_allclose(left.mean(axis=0), 0, atol=0.15)


def test_encoding_the_same_features_again_changes_no_bit_of_what_was_learned() -> None:
    """Clients report their features again after a restart. 40 columns: 15 % of scales round."""
    rows = rng(0).random((5, 40))
    found = table(list(range(5)), rows)
    memory = empty(Regression("given", keep=None), np.full(5, 0.2))
    memory.know(found.encoded())
    memory.record(np.arange(5), rng(1).standard_normal((5, D)))
    before = {name: own.tobytes() for name, own in memory.state().items()}

    found.set(list(range(5)), rows, np.arange(5))
    memory.know(found.encoded())

    assert {name: own.tobytes() for name, own in memory.state().items()} == before


def test_features_are_matched_by_name_and_may_be_withdrawn() -> None:
    first = [{"beds": 1.0, "side": "a"}, {"beds": 3.0, "side": "b"}, {"beds": 8.0}]
    found = table([0, 1, 2], first)
    found.set([0], [{"side": "b", "beds": 2.0}], np.array([0]))
    found.set([2], [None], np.array([2]))
    encoded = found.encoded()

    assert encoded.values[:2, 0].tolist() == [-1, 1]
    assert encoded.known.tolist() == [True, True, False]


@pytest.mark.parametrize(("text", "missing"), [("None", None), ("nan", np.nan)])
def test_a_missing_value_is_no_category(text: str, missing: Any) -> None:
    found = table([0, 1, 2], [text, missing, "west"]).encoded()

    assert found.known.tolist() == [True, False, True]


@pytest.mark.parametrize(
    "given",
    [
        np.ma.array([1.0, 3.0, 99.0], mask=[False, False, True]),
        np.ma.array([[1], [3], [99]], mask=[[False], [False], [True]]),
        [1.0, 3.0, np.ma.masked],
        [{0: 1.0}, {0: 3.0}, {0: np.ma.masked}],
        [[1.0], [3.0], np.ma.array([99.0], mask=[True])],
    ],
)
def test_a_masked_value_is_missing(given: Any) -> None:
    found = table([0, 1, 2], given).encoded()

    assert found.values.tolist() == [[-1], [1], [0]]
    assert found.known.tolist() == [True, True, False]


@pytest.mark.parametrize(("first", "then"), [("a", 1.0), (1.0, "a")])
@pytest.mark.parametrize("forgotten", [True, False])
def test_a_column_without_values_may_become_numbers_or_text(
    first: Any, then: Any, forgotten: bool
) -> None:
    found = table([0, 1], [{"x": first, "y": 1}, {"y": 2}])
    if forgotten:
        found.rearrange(np.array([-1, 1]), [0, 1])
    else:
        found.set([0], [{"x": None}], np.array([0]))
    found.set([0], [{"x": then, "y": 3}], np.array([0]))

    assert found.encoded().known.all()
    with pytest.raises(MemoryOfUpdatesError, match="feature 'x' must be finite numbers"):
        found.set([1], [{"x": first}], np.array([1]))


def test_features_of_clients_that_come_later_wait_for_them() -> None:
    found = table([0], [[1.0]])
    found.set(["late"], [[5.0]], np.array([-1]))
    restored = FeatureTable.of_state(found.state(), 1, 0)
    restored.rearrange(np.array([0, -1]), [0, "late"])

    assert restored.encoded().values.tolist() == [[-1], [1]]
    assert restored.coming == {}


def test_a_client_that_is_forgotten_before_it_comes_leaves_nothing() -> None:
    found = table([0, 1], ["north", "south"])
    found.set(["late", "later"], ["Sorbonne", "south"], np.array([-1, -1]))
    found.forget(["late", "late"])

    kept = b"".join(array.tobytes() for array in found.state().values())
    assert b"Sorbonne" not in kept
    assert b'"late"' not in kept
    assert list(found.coming) == ["later"]
    assert found.encoded().values.tolist() == [[1, -1], [-1, 1]]


def test_many_features_are_projected() -> None:
    values = rng(0).standard_normal((100, 200))
    found = table(list(range(100)), values)
    (one, two), again = found.encoded().values[:2], found.encoded()

    assert found.n_features == MOST_FEATURES
    assert again.source.tolist() == list(range(1 + MOST_FEATURES))
    # The sketch keeps inner products: variance at most 2 |x|^2 |y|^2 / 63, here 5 deviations.
    given = (values - values.mean(axis=0)) / values.std(axis=0)
    scale = np.linalg.norm(given[0]) * np.linalg.norm(given[1]) / 200 * MOST_FEATURES
    expected = given[0] @ given[1] / 200 * MOST_FEATURES
    assert abs(one @ two - expected) < 5 * np.sqrt(2 / MOST_FEATURES) * scale


def test_what_was_learned_of_other_projected_columns_is_dropped() -> None:
    ids = list(range(100))
    found = table(ids, rng(0).standard_normal((100, 200)))
    found.encoded()
    found.set(ids, [{"new": float(k)} for k in ids], np.array(ids))

    assert found.encoded().source.tolist() == [0] + [-1] * MOST_FEATURES


def test_huge_and_tiny_numbers_are_finite_features() -> None:
    values = np.array([[1e308, 1e200, 1e-150], [1e308, 2e200, 3e-150], [-1e308, 0, 0]])

    found = table([0, 1, 2], values).encoded().values

    assert np.isfinite(found).all()
    assert found[:, 2].any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1.0]], "features must be one row for each of the 2 clients"),
        ([[1.0], [np.inf]], "must be finite numbers"),
        ([[1.0], [1j]], "must be finite numbers"),
        ([object(), [1.0]], "a client's features must be numbers or text"),
        (5, "features must be one row for each of the 2 clients"),
        ([{b"x": 1.0}, None], "names of features must be text or integers"),
        ([1.0, "a"], "must be finite numbers for every client, or text for every client"),
    ],
)
def test_features_that_cannot_be_used_get_one_sentence(given: Any, message: str) -> None:
    with pytest.raises(MemoryOfUpdatesError, match=message):
        table([0, 1], given)


def _kept(drawn: dict[str, int]) -> dict[str, Fraction]:
    return {each: Fraction(count, 3) for each, count in drawn.items()}


def _renormalised(drawn: dict[str, int]) -> dict[str, Fraction]:
    return {each: Fraction(count, sum(drawn.values())) for each, count in drawn.items()}


def _first_three(drawn: dict[str, int]) -> dict[str, Fraction]:
    """Answers arrive in the order of ids, until they cover three draws."""
    used: dict[str, int] = {}
    for each, count in drawn.items():
        if sum(used.values()) < 3:
            used[each] = count
    return {each: Fraction(count, max(3, sum(used.values()))) for each, count in used.items()}


#: What the selector is told, and each client's final weight from the draws that were answered.
RULES: dict[str, tuple[dict[str, Any], Any]] = {
    "keep": ({}, _kept),
    "renormalise": ({"on_failure": "renormalise"}, _renormalised),
    "extra": ({"extra": 1}, _first_three),
}


class TestSelector:
    """The estimator in a selector: members, availability, failures, saving."""

    SIZES: ClassVar = {"Brest": 2, "Lyon": 3, "Metz": 1, "Nice": 4}
    FEATURES: ClassVar = {"Brest": ["west", 1], "Lyon": ["east", 2], "Metz": ["east", None]}

    def updates(self, ids: Any, round_: int) -> dict[Any, list[np.ndarray]]:
        """An update depends on the client, and a little on the round."""
        found = {}
        for each in ids:
            own = rng(ord(each[0])).standard_normal(D) + 0.1 * rng(round_).standard_normal(D)
            found[each] = [own[:6].reshape(2, 3), own[6:]]
        return found

    def trained(self, settings: Any, rounds: int = 25, **more: Any) -> Selector:
        selector = Selector(Multinomial(3), self.SIZES, seed=2, estimator=settings, **more)
        for _ in range(rounds):
            selector.aggregate(self.updates(selector.draw().ids, selector.round_))
        return selector

    @pytest.mark.parametrize("keep", KEEPS)
    @pytest.mark.parametrize("features", ["auto", None, FEATURES])
    @pytest.mark.parametrize("rule", [*RULES])
    @pytest.mark.parametrize("reach", [("Brest", "Lyon", "Metz", "Nice"), ("Lyon", "Nice")])
    def test_its_mean_under_failures_is_the_one_that_is_claimed(
        self, keep: Any, features: Any, rule: str, reach: tuple[str, ...], tmp_path: Any
    ) -> None:
        """E[v] = sum a_i (D_i - h_i) + H, with a_i the mean final weight; after save and load.

        H counts where somebody answers: a round without answers does not move the model. Metz is
        not available.
        """
        available = ["Brest", "Lyon", "Nice"]
        more, final_weights = RULES[rule]
        settings = settings_of(features, keep)
        self.trained(settings, 22, **more).save(tmp_path / "state")
        selector = Selector.load(tmp_path / "state")
        selector.draw(available)
        h, mean = selector.recall(available) or (np.empty(0), np.empty(0))
        updates = self.updates(available, 99)
        flat = np.array([np.concatenate([part.ravel() for part in updates[k]]) for k in available])
        found, claimed = [], np.zeros(D)
        design = MultinomialDesign(Population([2, 3, 0, 4]), 3 + more.get("extra", 0))
        for counts, chance in laws.law(design).items():
            drawn = dict(zip(self.SIZES, counts, strict=True))
            weights = final_weights({k: c for k, c in drawn.items() if c and k in reach})
            step = self.step_of(selector, design, counts, {k: updates[k] for k in weights})
            found.append(float(chance) * step)
            for k, weight in weights.items():
                place = available.index(k)
                claimed += float(chance * weight) * (flat[place] - h[place])
            claimed += float(chance) * bool(weights) * mean

        # Updates are below 10, and so is h; both sides are sums of 20 outcomes at most.
        np.testing.assert_allclose(sum(found), claimed, rtol=0, atol=20 * 10 * ROUNDING)
        np.testing.assert_allclose(mean, np.array([2, 3, 4]) / 9 @ h, rtol=0, atol=10 * ROUNDING)
        if rule == "keep" and reach[0] == "Brest":
            everyone = np.array([2, 3, 4]) / 9 @ flat
            np.testing.assert_allclose(claimed, everyone, rtol=0, atol=10 * ROUNDING)

    def step_of(self, selector: Selector, design: Any, counts: Any, answers: Any) -> np.ndarray:
        """Return the step of the open round if these were the draws."""
        now = selector._open
        assert now is not None
        clients = np.flatnonzero(counts)
        cohort = design.weigh(clients, np.array(counts)[clients])
        cohort = cohort.named([list(self.SIZES)[k] for k in clients], selector.round_)
        draws = Draws(cohort, design.population, design.cohort_size, rng(), 1)
        selector._open = replace(now, draws=draws)
        step: Any = selector.step(answers)
        if not answers:
            assert step == 0.0
            return np.zeros(D)
        return np.concatenate([part.ravel() for part in step])

    def test_redraw_is_refused(self) -> None:
        with pytest.raises(SelectorError, match="on_failure='redraw' biases every estimator"):
            self.trained("regression", on_failure="redraw")

    @pytest.mark.parametrize("keep", KEEPS)
    @pytest.mark.parametrize("features", ["auto", None, FEATURES])
    @pytest.mark.parametrize("kind", ["numpy", "torch"])
    def test_a_run_that_is_loaded_in_every_round_goes_on_bit_for_bit(
        self, keep: Any, features: Any, kind: str, tmp_path: Any
    ) -> None:
        """Through ``aggregate`` and ``for_average``, with clients and features that come and go."""

        def played(path: Any) -> tuple[list[bytes], dict[str, Any]]:
            settings = settings_of(features, keep)
            selector = Selector(Multinomial(3), self.SIZES, seed=2, estimator=settings)
            moved: list[bytes] = []
            for round_ in range(TAUGHT_ROUNDS + 8):
                if path is not None:
                    selector.save(path)
                    selector = Selector.load(path)
                if round_ == 5 and isinstance(features, dict):
                    selector.set_features({"Nice": ["north", 8], "Ulm": ["south", 0]})
                if round_ in (8, 24):
                    selector.clients = {**self.SIZES, "Ulm": 3}
                if round_ == 16:
                    selector.forget(["Ulm"])
                cohort = selector.draw(["Brest", "Lyon", "Nice"] if round_ % 3 == 1 else None)
                updates: Any = self.updates(cohort.ids, round_)
                if kind == "torch":
                    tensor = pytest.importorskip("torch").tensor
                    updates = {k: [tensor(part).float() for part in updates[k]] for k in updates}
                averaged = list(selector.for_average(updates)) if round_ % 2 else []
                parts = [part for _, _, update in averaged for part in update]
                parts += selector.aggregate(updates)
                moved += [np.asarray(part).tobytes() for part in parts]
            return moved, selector.state()

        whole, restarted = played(None), played(tmp_path / "state")

        assert restarted[0] == whole[0]
        assert_same(restarted[1], whole[1])

    def test_features_that_come_later_count_from_the_next_round_on(self) -> None:
        selector = self.trained(Regression("given", keep=None), rounds=3)
        assert isinstance(selector.estimator, RegressionEstimator)
        assert selector.estimator.n_features == 0
        selector.draw()
        with pytest.raises(SelectorError, match="round 3 is open"):
            selector.set_features(self.FEATURES)
        selector.skip()
        selector.set_features(self.FEATURES)
        selector.aggregate(self.updates(selector.draw().ids, 4))

        assert isinstance(selector.estimator, RegressionEstimator)
        assert selector.estimator.n_features == 3

    @pytest.mark.parametrize("estimator", ["plain", "difference", "regression"])
    def test_features_that_nobody_uses_are_refused(self, estimator: Any) -> None:
        selector = Selector(Multinomial(2), self.SIZES, seed=0, estimator=estimator)

        with pytest.raises(SelectorError, match="set_features needs an estimator that takes"):
            selector.set_features(self.FEATURES)

    def test_a_forgotten_client_leaves_no_features_and_no_residual(self) -> None:
        selector = self.trained(Regression(self.FEATURES))
        selector.forget(["Lyon"])
        state = selector.state()

        assert state["records.features.there"].tolist() == [[True] * 2, [True, False], [False] * 2]
        assert state["records.estimator.features"].shape == (3, 3)
        assert len(state["records.estimator.rest.clients"]) <= 3

    def test_a_category_that_only_a_forgotten_client_had_is_erased_at_once(self) -> None:
        selector = self.trained(Regression({**self.FEATURES, "Nice": ["Riviera", 4]}), rounds=3)
        fits = []
        for each in (["Brest"], ["Nice"]):
            fits.append(json_value(selector.state()["records.features.head"])["fit"])
            selector.forget(each)
        fits.append(json_value(selector.state()["records.features.head"])["fit"])

        categories = [[category for _, category, _, _ in fit if category] for fit in fits]
        assert categories == [["Riviera", "east", "west"], ["Riviera", "east"], ["east"]]

    @pytest.mark.parametrize("ids", [["Nice", "Brest", "Lyon", "Ulm"], None])
    def test_the_index_of_a_pandas_table_names_the_clients(self, ids: Any) -> None:
        """An index that counts from 0 names nobody: rows are in the order of the clients."""
        pandas = pytest.importorskip("pandas")
        sides, beds = ["east", "west", None, "west"], [1, 2, 3, None]
        frame = pandas.DataFrame({"side": sides, "beds": beds}, index=ids)
        names = list(self.SIZES) if ids is None else ids
        by_id = {
            k: {"side": side, "beds": n} for k, side, n in zip(names, sides, beds, strict=True)
        }
        own = pandas.Series([1.0, 2.0, None, 4.0], index=ids)
        numbers = dict(zip(names, [1.0, 2.0, None, 4.0], strict=True))

        for given, expected in ((frame, by_id), (own, numbers)):
            found = [self.trained(Regression(each), rounds=2).state() for each in (given, expected)]
            assert_same(*found)

    def test_an_index_with_a_client_twice_is_refused(self) -> None:
        pandas = pytest.importorskip("pandas")
        own = pandas.Series([1.0, 2.0], index=["Nice", "Nice"])

        with pytest.raises(SelectorError, match="must name each client once; got 'Nice' twice"):
            Selector(Multinomial(2), self.SIZES, seed=0, estimator=Regression(own))

    def test_features_of_a_client_that_never_comes_can_be_forgotten(self) -> None:
        selector = self.trained(Regression({**self.FEATURES, "Ulm": ["Danube", 9]}), rounds=3)
        with pytest.raises(SelectorError, match="'Jena' is not the id of a client"):
            selector.forget(["Ulm", "Jena"])
        kept = [b"".join(array.tobytes() for array in selector.state().values())]
        selector.forget(["Ulm"])
        kept.append(b"".join(array.tobytes() for array in selector.state().values()))

        assert [b"Ulm" in each for each in kept] == [True, False]
        assert [b"Danube" in each for each in kept] == [True, False]

    @pytest.mark.parametrize("rounds", [0, 3])
    def test_features_count_as_memory(self, rounds: int) -> None:
        """Before the first update too; those of a client that has not come as well."""
        more = {**self.FEATURES, "Ulm": ["west", 9]}
        sizes = [
            self.trained(Regression(given, keep=None), rounds).nbytes
            for given in ("given", self.FEATURES, more)
        ]

        assert sizes[1] - sizes[0] >= 4 * 2 * 8
        assert sizes[2] - sizes[1] == 2 * 8

    def test_a_client_that_comes_brings_the_features_that_wait_for_it(self) -> None:
        coming = {**self.FEATURES, "Ulm": ["west", 9]}
        selector = self.trained(Regression(coming), rounds=3)
        selector.clients = {**self.SIZES, "Ulm": 1}
        selector.draw()

        assert isinstance(selector.estimator, RegressionEstimator)
        assert selector.estimator.state()["known"].tolist() == [True, True, True, False, True]

    def test_it_lowers_the_variance_where_features_explain_updates(self) -> None:
        """Updates that are linear in the features: V falls to nearly nothing, unseen ones too."""
        n = 40
        x, turn = rng(0).standard_normal((n, 3)), rng(1).standard_normal((3, D))
        updates = x @ turn
        selector = Selector(
            Multinomial(5), np.ones(n, int), seed=0, estimator=Regression(x, keep=None)
        )
        for _ in range(60):
            cohort = selector.draw()
            selector.aggregate(updates[cohort.clients])
        assert selector.estimator is not None
        left = updates - selector.estimator.of(np.arange(n))
        left -= left.mean(axis=0)

        # The ridge leaves 2 % of the slope, and 4e-4 of the variance.
        assert (left**2).sum() < 0.005 * ((updates - updates.mean(axis=0)) ** 2).sum()
