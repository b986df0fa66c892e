"""The difference estimator: unbiased for any h, as noisy as what h leaves, and plain without it."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import laws
from fedcohort import Cohort, Design, Difference, Population, aggregate
from fedcohort.designs import (
    AutoDesign,
    MultinomialDesign,
    PoissonDesign,
    SimilarityClusteredDesign,
    SizeClusteredDesign,
    TournamentDesign,
    UniformDesign,
)
from fedcohort.errors import AggregationError, MemoryOfUpdatesError
from fedcohort.memory import Estimator, Keep
from fedcohort.memory.difference import KEEPS
from fedcohort.memory.rows import KeptRows, LowRankRows
from populations import cohort_sizes, populations, rng

Build = Callable[[Population, int, np.ndarray], Design]
DESIGNS: dict[str, Build] = {
    "multinomial": lambda p, m, u: MultinomialDesign(p, m),
    "size": lambda p, m, u: SizeClusteredDesign(p, m, rng=rng()),
    "similarity": lambda p, m, u: SimilarityClusteredDesign(p, m, u, rng=rng()),
    "tournament": lambda p, m, u: TournamentDesign(p, m, u, rng=rng()),
    "auto": lambda p, m, u: AutoDesign(p, m, u, rng=rng()),
    "poisson": lambda p, m, u: PoissonDesign(p, m),
    "uniform, unbiased": lambda p, m, u: UniformDesign(p, m, unbiased=True),
}
every_design = pytest.mark.parametrize("name", DESIGNS)

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "difference-estimator.md"
EPS = 2.0**-53
#: Fewer than a thousand roundings stand between any exact number of an enumeration and its float.
ROUNDING = 1000 * EPS
EIGHTHS = np.array([1, 2, 1, 0, 1, 3]) / 8


def build(name: str, population: Population, cohort_size: int, updates: np.ndarray) -> Design:
    distinct = name in ("poisson", "uniform, unbiased")
    assume(not distinct or cohort_size <= np.count_nonzero(population.sizes))
    return DESIGNS[name](population, cohort_size, updates)


def cohorts(design: Design) -> list[tuple[float, Cohort]]:
    """Return every cohort that can be drawn, and how likely it is."""
    found = []
    for counts, probability in laws.law(design).items():
        clients = np.flatnonzero(counts)
        drawn = np.array(counts)[clients]
        found.append((float(probability), design.weigh(clients, drawn)))
    return found


def remembering(settings: Difference, population: Population, updates: np.ndarray) -> Estimator:
    """Return a memory in which every client has sent an update."""
    memory = settings.memory(population.importance, np.zeros(updates.shape[1]))
    memory.record(np.arange(population.n_clients), updates)
    return memory


@every_design
@given(
    population=populations(),
    cohort_size=cohort_sizes(),
    seed=st.integers(0, 2**32 - 1),
    settings=st.sampled_from(
        [
            *(Difference(), Difference(0.5), Difference(keep="float16"), Difference(keep="int8")),
            *(Difference(keep="rank", rank=1), Difference(keep="int8", max_remembered=2)),
        ]
    ),
)
def test_the_estimator_is_unbiased_for_any_h_and_as_noisy_as_what_h_leaves(
    name: str, population: Population, cohort_size: int, seed: int, settings: Difference
) -> None:
    """Outcome by outcome: E[v] is full participation, and V the design's on Delta - h."""
    n = population.n_clients
    updates, before = rng(seed).integers(-5, 6, size=(2, n, 2)).astype(float)
    design = build(name, population, cohort_size, before)
    memory = remembering(settings, population, before)
    everyone = population.importance @ updates

    outcomes = [
        (p, aggregate(np.zeros(2), updates[cohort.clients], cohort, memory=memory))
        for p, cohort in cohorts(design)
    ]
    mean = [math.fsum(p * v[axis] for p, v in outcomes) for axis in range(2)]
    variance = math.fsum(p * float((v - everyone) @ (v - everyone)) for p, v in outcomes)

    # Weights sum to n at most (unbiased uniform), Delta - h is 10 at most, and so h's own share.
    assert np.abs(mean - everyone).max() <= ROUNDING * 20 * n
    left = updates - memory.of(np.arange(n))
    assert abs(variance - design.aggregate_variance(left)) <= ROUNDING * 2 * (20 * n) ** 2


@every_design
def test_memory_of_the_updates_themselves_gives_full_participation(name: str) -> None:
    population = Population([7, 4, 4, 0, 1])
    updates = rng(1).standard_normal((5, 3)).astype(np.float32).astype(float)  # kept exactly
    design = DESIGNS[name](population, 3, updates)
    memory = remembering(Difference(), population, updates)

    for _, cohort in cohorts(design):
        moved = aggregate(np.zeros(3), updates[cohort.clients], cohort, memory=memory)

        # The differences are exactly 0; a sum of five products is left, about 1 each.
        np.testing.assert_allclose(moved, population.importance @ updates, rtol=0, atol=40 * EPS)


def layouts(updates: np.ndarray) -> list[np.ndarray]:
    """Return the same numbers, stored in several ways."""
    wide = np.zeros((*updates.shape[:-1], 2 * updates.shape[-1]))
    wide[..., ::2] = updates
    return [updates, np.asfortranarray(updates), wide[..., ::2], updates[:, ::-1][:, ::-1]]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("shape", [(), (5,), (7, 3), (101,)])
def test_without_h_the_aggregate_is_the_plain_one_bit_for_bit(
    shape: tuple[int, ...], keep: Keep
) -> None:
    """With nothing remembered, and with a shrink of 0 whatever is remembered."""
    population = Population([5, 3, 2, 9, 1])
    size = math.prod(shape)
    empty = Difference(keep=keep).memory(population.importance, np.zeros(size))
    unused = remembering(
        Difference(0.0, keep=keep), population, 1e9 * rng(1).standard_normal((5, size))
    )
    for seed in range(10):
        cohort = MultinomialDesign(population, 4).draw(rng(seed))
        model = rng(seed).standard_normal(shape)
        updates = rng(seed + 100).standard_normal((len(cohort), *shape))
        for stored in layouts(updates) if len(shape) else [updates]:
            plain = aggregate(model, stored, cohort)

            for memory in (empty, unused):
                moved = aggregate(model, stored, cohort, memory=memory)
                assert moved.shape == shape
                assert moved.tobytes() == plain.tobytes()


@pytest.mark.parametrize("keep", KEEPS)
def test_without_h_a_torch_aggregate_is_the_plain_one_bit_for_bit(keep: Keep) -> None:
    """Of a cohort whose rows begin anywhere in a larger tensor, as several runs' rows do."""
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    importance = np.full(6, 1 / 6)
    empty = Difference(keep=keep).memory(importance, torch.zeros(333))
    unused = Difference(0.0, keep=keep).memory(importance, torch.zeros(333))
    draws = torch.Generator().manual_seed(0)
    unused.record(np.arange(6), 1e9 * torch.randn(6, 333, generator=draws))
    weights = np.array([0.25, 0.5, 0.125])
    for first in range(5):
        updates = torch.randn(9, 333, generator=draws)[first : first + 3]

        plain = torch.from_numpy(weights).to(updates) @ updates

        for memory in (empty, unused):
            assert torch.equal(memory.aggregate(np.array([0, 3, 5]), weights, updates), plain)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_running_sum_does_not_drift(dtype: type[np.floating]) -> None:
    """After 10,000 records, 18 orders of magnitude apart for a float64 model, 9 for float32.

    Each record rounds the change, its products with p, their sum and the running sum: (m + 3) EPS
    of the terms' sizes and EPS of the sum's, to first order; 1 % covers the rest.
    """
    n, m, size = 20, 5, 6
    importance = rng(0).dirichlet(np.ones(n))
    memory = Difference().memory(importance, np.zeros(size, dtype=dtype))
    kept, bound = np.zeros((n, size)), np.zeros(size)
    generator = rng(1)
    widest = 9.0 if dtype is np.float64 else 4.5
    for _ in range(10_000):
        clients = generator.choice(n, m, replace=False)
        scales = 10.0 ** generator.uniform(-widest, widest, size=(m, 1))
        updates = scales * generator.standard_normal((m, size))
        memory.record(clients, updates)
        rounded = updates.astype(np.float32).astype(float)
        sizes = importance[clients] @ np.abs(rounded - kept[clients])
        kept[clients] = rounded
        bound += (m + 3) * sizes + np.abs(memory.state()["sum"])

    direct = [math.fsum(importance * kept[:, axis]) for axis in range(size)]
    drift = np.abs(memory.state()["sum"] - np.array(direct))
    assert (drift <= 1.01 * EPS * (bound + importance @ np.abs(kept))).all()
    assert (memory.of(np.arange(n)) == kept).all()


def test_with_a_shrink_of_zero_nothing_is_computed_but_the_plain_product() -> None:
    """Also where the updates' layout in memory decides in which order it adds up."""
    memory = remembering(Difference(0.0), Population([1] * 7), rng(0).standard_normal((7, 200)))
    weights = rng(1).random(7)
    for seed in range(20):
        updates = np.asfortranarray(rng(seed).standard_normal((7, 200)))

        moved = memory.aggregate(np.arange(7), weights, updates)

        assert moved.tobytes() == (weights @ updates).tobytes()


def a_history(kind: str, settings: Difference, rounds: int) -> Estimator:
    """Return a memory after some rounds of small integers, exact in every type."""
    zeros: Any = np.zeros(3)
    if kind == "torch":
        zeros = pytest.importorskip("torch").zeros(3)
    memory = settings.memory(EIGHTHS, zeros)
    going_on(memory, range(rounds))
    return memory


def going_on(memory: Estimator, rounds: range) -> None:
    for round_ in rounds:
        clients = np.sort(rng(round_).choice(6, 2, replace=False))
        updates: Any = rng(round_).integers(-8, 9, size=(2, 3)).astype(float)
        if not isinstance(memory.expected(), np.ndarray):
            updates = pytest.importorskip("torch").tensor(updates, dtype=memory.expected().dtype)
        memory.record(clients, updates)


@pytest.mark.parametrize("settings", [Difference(), Difference(0.5)])
def test_torch_and_numpy_remember_the_same(settings: Difference) -> None:
    """Integers and eighths: float32 and float64 are both exact, so they are equal."""
    one, other = (a_history(kind, settings, 40) for kind in ("numpy", "torch"))
    clients, weights = np.array([1, 4]), np.array([0.25, 0.75])
    updates = np.array([[1.0, 2.0, 3.0], [-4.0, 0.0, 7.0]])

    tensor = pytest.importorskip("torch").tensor(updates).float()
    assert (
        one.aggregate(clients, weights, updates)
        == other.aggregate(clients, weights, tensor).numpy()
    ).all()
    assert (one.of(np.arange(6)) == other.of(np.arange(6)).numpy()).all()
    assert (
        one.expected() == settings.shrink * EIGHTHS @ (one.of(np.arange(6)) / settings.shrink)
    ).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("settings", [Difference(), Difference(0.5, keep="rank", rank=2)])
def test_a_restored_memory_goes_on_bit_for_bit(settings: Difference, kind: str) -> None:
    whole, before = a_history(kind, settings, 20), a_history(kind, settings, 12)
    state = before.state()

    restored = a_history(kind, settings, 3)
    restored.restore(state)
    going_on(before, range(50, 52))
    going_on(restored, range(12, 20))

    assert_same(restored.state(), whole.state())
    fresh = a_history(kind, settings, 12)
    assert_same(state, fresh.state())


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].tobytes() == other[name].tobytes()


def test_recording_keeps_no_hold_of_the_callers_arrays() -> None:
    importance, updates = np.full(2, 0.5), np.ones((1, 2))
    memory = Difference().memory(importance, np.zeros(2))
    memory.record(np.array([0]), updates)

    updates[:], importance[:] = 7.0, 9.0
    memory.state()["rows"][:] = 7.0
    memory.record(np.array([1]), np.ones((1, 2)))

    assert memory.of(np.arange(2)).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert memory.expected().tolist() == [1.0, 1.0]


def test_an_empty_cohort_moves_by_what_is_expected_of_all() -> None:
    """Or else the coins' empty cohorts would bias the estimator."""
    population = Population([1, 1, 2])
    memory = remembering(Difference(), population, np.array([[4.0, 0.0], [0.0, 4.0], [2.0, 2.0]]))
    empty = Cohort.of_weights(np.empty(0, dtype=int), np.empty(0, dtype=int), np.empty(0))

    moved = aggregate(np.array([[1.0], [1.0]]), [], empty, server_lr=0.5, memory=memory)
    memory.record(empty.clients, np.empty((0, 2)))

    assert moved.tolist() == [[2.0], [2.0]]
    assert memory.expected().tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shrink": 1.5}, "shrink must be a number from 0 to 1; got 1.5"),
        ({"shrink": -0.1}, "shrink must be a number from 0 to 1; got -0.1"),
        ({"shrink": math.nan}, "shrink must be a number from 0 to 1; got nan"),
        ({"shrink": "1"}, "shrink must be a number from 0 to 1; got '1'"),
        ({"shrink": True}, "shrink must be a number from 0 to 1; got True"),
        ({"keep": "int4"}, "keep must be one of float32, float16, int8, rank; got 'int4'"),
        ({"keep": None}, "keep must be one of .*; got None"),
        ({"rank": 0}, "rank must be a whole number of at least 1; got 0"),
        ({"rank": 2.0}, "rank must be a whole number of at least 1; got 2.0"),
        ({"rank": True}, "rank must be a whole number of at least 1; got True"),
        ({"rank": None}, "rank must be a whole number of at least 1; got None"),
        ({"rank": 8}, "rank needs keep='rank'; got Difference.rank=8."),
        ({"max_remembered": 0}, "max_remembered must be a whole number of at least 1; got 0"),
        ({"max_remembered": 2.0}, "max_remembered must be a whole number of at least 1; got 2.0"),
    ],
)
def test_bad_settings_get_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(AggregationError, match=rf"^Difference: {message}.*[.?]$"):
        Difference(**settings)


def test_numbers_of_numpy_are_numbers() -> None:
    settings = Difference(np.float32(0.5), "rank", np.int64(3))  # type: ignore[arg-type]

    assert repr(settings) == "Difference(shrink=0.5, keep='rank', rank=3)"
    assert settings == Difference(0.5, "rank", 3)
    assert repr(Difference(1)) == repr(Difference())


@pytest.mark.parametrize("zeros", [np.zeros((2, 2)), np.zeros(2, dtype=int), np.ones(2), None])
def test_a_memory_of_another_kind_is_refused(zeros: Any) -> None:
    with pytest.raises(MemoryOfUpdatesError, match=r"a flat model of floats, all 0; got .*\.$"):
        Difference().memory([0.5, 0.5], zeros)


NO_SHARES: dict[str, tuple[Any, str]] = {
    "sizes": ([5, 3], r"shape \(2,\) with the sum 8"),
    "negative": ([1.5, -0.5], r"shape \(2,\) with the sum 1"),
    "not a number": ([1.0, np.nan], r"shape \(2,\) with the sum nan"),
    "infinite": ([np.inf, 0.0], r"shape \(2,\) with the sum inf"),
    "empty": ([], r"shape \(0,\) with the sum 0"),
    "one number": (1.0, r"shape \(\) with the sum 1"),
    "a matrix": ([[0.5, 0.5]], r"shape \(1, 2\) with the sum 1"),
    "names": (["a", "b"], r"shape \(0,\) with the sum 0"),
    "off by 1e-8": ([0.5, 0.5 + 1e-8], r"shape \(2,\) with the sum 1.00000001"),
}


@pytest.mark.parametrize(("importance", "came"), NO_SHARES.values(), ids=list(NO_SHARES))
@pytest.mark.parametrize("keep", ["float32", "rank"])
def test_importances_that_are_no_shares_of_one_are_refused(
    keep: Keep, importance: Any, came: str
) -> None:
    """When the memory is made, and when it takes others; it then keeps what it had."""
    needed = r"importance must be one share per client \(\d\), non-negative, with sum 1"
    message = rf"^\w+: {needed}; got {came}\. Pass population\.importance, .*\.$"
    settings = Difference(keep=keep)
    memory = settings.memory([0.25, 0.75], np.zeros(1))
    memory.record(np.array([0, 1]), np.array([[4.0], [8.0]]))
    before = memory.expected()

    with pytest.raises(MemoryOfUpdatesError, match=message):
        settings.memory(importance, np.zeros(1))
    with pytest.raises(MemoryOfUpdatesError, match=message):
        memory.reweigh(importance)
    assert memory.expected().tobytes() == before.tobytes()


def test_shares_that_are_off_by_rounding_are_taken() -> None:
    shares = np.array([0.6, 0.2, 0.1, 0.1 + 2.0**-40])

    memory = Difference().memory(shares, np.zeros(1))

    assert shares.sum() != 1.0
    assert memory.state()["importance"].tolist() == shares.tolist()


ONE = Cohort.of_shares(np.array([1]), np.array([1]), 1)
FAR = Cohort.of_shares(np.array([4]), np.array([1]), 1)


@pytest.mark.parametrize("keep", ["float32", "rank"])
def test_a_memory_of_another_size_is_refused(keep: Keep) -> None:
    """One number would else be added to every parameter."""
    for size in (1, 3):
        memory = Difference(keep=keep).memory(np.full(2, 0.5), np.zeros(size))
        with pytest.raises(
            MemoryOfUpdatesError,
            match=rf"for updates of shape \(1, {size}\), .*; got \(1, 2\)\. Make",
        ):
            aggregate([1.0, 2.0], [[1.0, 1.0]], ONE, memory=memory)
        with pytest.raises(MemoryOfUpdatesError, match=r"; got \(1, 2\)\. Make a memory"):
            memory.record(ONE.clients, np.ones((1, 2)))
    memory = Difference(keep=keep).memory(np.full(4, 0.25), np.zeros(2))
    with pytest.raises(MemoryOfUpdatesError, match=r"distinct numbers from 0 to 3; got .*4"):
        aggregate([1.0, 2.0], [[1.0, 1.0]], FAR, memory=memory)
    for clients in ([1, 1], [-1, 2]):
        with pytest.raises(
            MemoryOfUpdatesError, match=r"clients must be distinct numbers from 0 to 3"
        ):
            memory.record(np.array(clients), np.ones((2, 2)))


def test_torch_and_numpy_do_not_mix() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    memory = Difference().memory(np.full(2, 0.5), torch.zeros(2))

    with pytest.raises(
        MemoryOfUpdatesError, match=r"memory is of Tensors; got updates as ndarray\."
    ):
        aggregate([1.0, 2.0], [[1.0, 1.0]], ONE, memory=memory)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_what_is_not_finite_is_not_remembered(value: float) -> None:
    """A number that the sum could never lose again; 1e300 is none in float32."""
    memory = Difference().memory(np.full(2, 0.5), np.zeros(2, dtype=np.float32))

    with pytest.raises(MemoryOfUpdatesError, match=r"must be finite float32 numbers below 1e.37"):
        memory.record(np.array([0]), np.array([[1.0, value]]))

    assert memory.expected().tolist() == [0.0, 0.0]


def test_the_state_of_another_memory_is_refused() -> None:
    memories = [
        kind.memory(np.full(n, 1 / n), np.zeros(size))
        for kind in (Difference(), Difference(keep="rank", rank=1), Difference(keep="rank", rank=2))
        for n, size in ((4, 2), (4, 3), (5, 2))
    ]

    assert {type(memory) for memory in memories} == {KeptRows, LowRankRows}
    for one in memories:
        for other in memories:
            if one is other:
                one.restore(other.state())
                continue
            with pytest.raises(MemoryOfUpdatesError, match=r"state must have|importance must be"):
                one.restore(other.state())


def test_the_examples_of_the_documentation_run() -> None:
    pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    result = doctest.testfile(str(PAGE), module_relative=False)

    assert result.failed == 0
    assert result.attempted >= 14


@every_design
def test_shrinking_moves_the_variance_along_the_documented_parabola(name: str) -> None:
    """V(Delta - lambda h) = V(Delta) - 2 lambda C(Delta, h) + lambda^2 V(h)."""
    population = Population([7, 4, 4, 1])
    updates, remembered = rng(5).standard_normal((2, 4, 3)).astype(np.float32).astype(float)
    design = DESIGNS[name](population, 3, remembered)
    covariance = design.weight_covariance()

    def c(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.einsum("ij,ik,jk->", covariance, x, y))

    for shrink in (0.0, 0.3, 1.0):
        expected = (
            c(updates, updates)
            - 2 * shrink * c(updates, remembered)
            + shrink**2 * c(remembered, remembered)
        )
        memory = remembering(Difference(shrink), population, remembered)
        left = updates - memory.of(np.arange(4))
        # Sums of 48 products of covariances below 1 and normal numbers, a few units each.
        assert abs(design.aggregate_variance(left) - expected) <= 1000 * EPS * 50


def test_recording_before_aggregating_is_biased_as_documented() -> None:
    """h that knows the draw: of equal updates, never sent before, half is lost."""
    population, updates = Population([1, 1]), np.ones((2, 1))
    means = {}
    for order in ("aggregate first", "record first"):
        moves = []
        for probability, cohort in cohorts(MultinomialDesign(population, 1)):
            memory = Difference().memory(population.importance, np.zeros(1))
            if order == "record first":
                memory.record(cohort.clients, updates[cohort.clients])
            moved = aggregate([0.0], updates[cohort.clients], cohort, memory=memory)
            moves.append(probability * moved[0])
        means[order] = sum(moves)

    assert means == {"aggregate first": 1.0, "record first": 0.5}


@pytest.mark.parametrize(
    ("settings", "bad"),
    [
        (Difference(), {"rows": np.full((2, 2), np.nan)}),
        (Difference(), {"rows": np.full((2, 2), 1e300)}),  # as float32 it is infinite
        (Difference(), {"rows": np.full((2, 2), "a")}),
        (Difference(), {"rows": np.full((2, 2), None)}),
        (Difference(), {"rows": np.ones(2)}),
        (Difference(), {"clients": np.array([0, 0])}),
        (Difference(), {"clients": np.array([0, 3])}),
        (Difference(), {"last_seen": np.array([0, 1, -2])}),
        (Difference(keep="int8"), {"rows": np.full((2, 2), -128)}),
        (Difference(keep="int8"), {"scale": np.full(3, np.inf)}),
        (Difference(keep="int8"), {"rows": np.full((2, 2), 0.5)}),
        (Difference(keep="rank"), {"basis": np.full((2, 2), np.nan)}),
        (Difference(keep="rank"), {"coefficients": np.ones((3, 3))}),
        (Difference(), {"sum": np.array([np.inf, 0.0])}),
        (Difference(), {"importance": np.full(3, np.nan)}),
        (Difference(), {"importance": np.full(3, "a")}),
        (Difference(keep="rank"), {"last_seen": np.array([0, -2, 0])}),
        (Difference(keep="rank"), {"last_seen": np.array([0.5, -1.0, 0.0])}),
        (Difference(keep="rank"), {"strength": np.array([1.0, np.nan])}),
    ],
)
def test_a_state_that_cannot_be_taken_over_changes_nothing(
    settings: Difference, bad: dict[str, np.ndarray]
) -> None:
    memory = settings.memory(np.array([0.5, 0.25, 0.25]), np.zeros(2, dtype=np.float32))
    memory.record(np.array([0, 2]), np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32))
    before = memory.state()
    other = {name: np.flip(array) for name, array in before.items()}

    with pytest.raises(MemoryOfUpdatesError, match=r"state must|importance must"):
        memory.restore({**other, **bad})
    assert_same(memory.state(), before)
