"""Updates of any structure, and the estimators that they go through."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcohort import (
    Cohort,
    Difference,
    Multinomial,
    Poisson,
    Recipe,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Uniform,
    aggregate,
)
from fedcohort._updates import Layout, Rows, as_numpy, in_type, usable_rows
from fedcohort.designs import MultinomialDesign
from fedcohort.errors import AggregationError, SelectorError
from selectors_for_tests import SIZES, frozen, updates_for

FOUR = [1, 1, 1, 1]


def flat_of(update: Any) -> list[float]:
    """All numbers of an update, in order, counters included."""
    if isinstance(update, dict):
        return [number for part in update.values() for number in flat_of(part)]
    if isinstance(update, list):
        return [number for part in update for number in flat_of(part)]
    return [float(number) for number in np.asarray(update).ravel()]


def kinds() -> Iterator[Any]:
    """One update in every structure; four numbers."""
    values = np.array([4.0, -8.0, 12.0, 2.0])
    yield pytest.param(values, id="flat")
    yield pytest.param(values.reshape(2, 2), id="matrix")
    yield pytest.param(values.astype(np.float16), id="half")
    yield pytest.param(values.astype(np.float32), id="single")
    yield pytest.param(values.astype(int), id="integers")
    yield pytest.param([values[:3], values[3:].reshape(1, 1)], id="list")
    yield pytest.param({"w": values[:3].reshape(3, 1), "b": np.float32(values[3:])}, id="mapping")
    yield pytest.param({"w": values[:3], "seen": np.array(8), "b": values[3:]}, id="counter")


@pytest.mark.parametrize("update", list(kinds()))
def test_what_comes_in_goes_out(update: Any) -> None:
    """Everyone sends the same: four dyadic weights give it back, exactly and in its types."""
    selector = Selector(Uniform(4), FOUR, seed=0)
    selector.draw()

    step = selector.aggregate(dict.fromkeys(range(4), update))

    assert type(step) is type(update)
    assert flat_of(step) == flat_of(update)
    if isinstance(update, np.ndarray) and update.dtype.kind == "f":
        assert (step.dtype, step.shape) == (update.dtype, update.shape)
    if isinstance(update, dict):
        assert {k: (v.dtype, v.shape) for k, v in step.items()} == {
            k: (v.dtype, v.shape) for k, v in update.items()
        }


@pytest.mark.parametrize("update", list(kinds()))
def test_a_model_moves_in_its_own_structure(update: Any) -> None:
    selector = Selector(Uniform(4), FOUR, seed=0)
    selector.draw()

    moved = selector.aggregate(dict.fromkeys(range(4), update), model=update)

    assert type(moved) is type(update)
    assert flat_of(moved) == [2 * number for number in flat_of(update)]


def test_counters_are_averaged_and_rounded() -> None:
    selector = Selector(Uniform(4), FOUR, seed=0)
    selector.draw()
    updates = {k: {"w": np.zeros(2), "seen": np.array(k + 1)} for k in range(4)}

    moved = selector.aggregate(updates, model={"w": np.ones(2), "seen": np.array(10)})

    assert (moved["seen"], moved["seen"].dtype.kind) == (12, "i")  # 10 + 2.5, to even


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("start", [0, 2**53 + 1, -(2**62)])
def test_counters_are_exact_however_large_they_are(start: int, kind: str) -> None:
    """float64 has no 2^53 + 1."""
    model: Any = {"w": np.zeros(1), "seen": np.array(start)}
    updates: Any = {k: {"w": np.zeros(1), "seen": np.array(2**40 + k)} for k in range(4)}
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
        model = {name: torch.from_numpy(own) for name, own in model.items()}
        updates = {
            k: {n: torch.from_numpy(v) for n, v in own.items()} for k, own in updates.items()
        }
    selector = Selector(Uniform(4), FOUR, seed=0)
    selector.draw()

    moved = selector.aggregate(updates, model=model)

    assert int(moved["seen"]) == start + 2**40 + 2  # 1.5, to even


@pytest.mark.parametrize("server_lr", [0.1, 1.0, 3.0])
def test_counters_follow_the_aggregate_at_any_rate(server_lr: float) -> None:
    cohort = Cohort.of_shares([0, 1], [1, 1], 2)
    updates = [{"w": np.ones(1), "seen": np.array(n)} for n in (10, 21)]
    model = {"w": np.zeros(1), "seen": np.array(100)}

    moved = aggregate(model, updates, cohort, server_lr=server_lr)

    assert (moved["w"].item(), moved["seen"].item()) == (server_lr, 116)  # 15.5, to even


@pytest.mark.parametrize("far", [2**52, -(2**52), 2**62])
def test_a_counter_that_moves_too_far_is_lost(far: int) -> None:
    selector = Selector(Multinomial(2), [1, 1], seed=1)
    assert len(selector.draw()) == 2
    updates = {0: {"w": np.ones(1), "seen": np.array(4)}, 1: {"w": np.ones(1), "seen": far}}

    step = selector.aggregate(updates)

    assert (step["w"].tolist(), step["seen"].item()) == ([0.5], 2)


@pytest.mark.parametrize(
    ("model", "update", "name"),
    [
        (np.full(2, 6e4, dtype=np.float16), np.full(2, 1e4, dtype=np.float16), "the result"),
        (np.full(2, 3.4e38, dtype=np.float32), np.full(2, 9e36), "the result"),
        ({"w": np.full(1, 6e4, dtype=np.float16)}, {"w": np.full(1, 6e4)}, "the array 'w'"),
        (
            {"w": np.zeros(1), "n": np.array(120, dtype=np.int8)},
            {"w": np.zeros(1), "n": np.array(8)},
            "the array 'n'",
        ),
        (
            {"w": np.zeros(1), "n": np.array(2**63 - 1)},
            {"w": np.zeros(1), "n": np.array(1)},
            "the array 'n'",
        ),
        (
            {"w": np.zeros(1), "n": np.array(3, dtype=np.uint8)},
            {"w": np.zeros(1), "n": np.array(-4)},
            "the array 'n'",
        ),
    ],
    ids=["float16", "float32", "named", "int8", "int64", "uint8"],
)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_model_whose_type_cannot_hold_the_sum_is_refused_and_nothing_changes(
    model: Any, update: Any, name: str, kind: str
) -> None:
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
        if isinstance(model, dict):
            model = {key: torch.from_numpy(own) for key, own in model.items()}
        else:
            model = torch.from_numpy(model)
    selector = Selector(Multinomial(2), [1, 1], seed=0)
    selector.draw()
    before = frozen(selector)

    with pytest.raises(
        AggregationError, match=f"{name} must be finite in its type, .*a wider type"
    ):
        selector.aggregate(dict.fromkeys(selector.asked, update), model=model)

    assert frozen(selector) == before
    assert selector.cohort is not None


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        ([2.0**63], "int64", None),  # the largest integer is 2^63 - 1, as a float 2^63
        ([-(2.0**63)], "int64", [-(2**63)]),
        ([254.6], "uint8", [255]),
        ([255.6], "uint8", None),
        ([1.2], "bool", [True]),
        ([1.6], "bool", None),
        ([70_000.0], "float16", None),
        ([np.nan], "int32", None),
    ],
)
def test_values_are_rounded_once_and_only_if_the_type_can_hold_them(
    values: list[float], dtype: str, found: list[float] | None
) -> None:
    typed = in_type(np.array(values), np.zeros(0, dtype))

    assert (None if typed is None else typed.tolist()) == found
    assert typed is None or typed.dtype == dtype


def test_values_of_the_right_type_are_not_copied() -> None:
    values = np.ones(3, np.float32)

    assert in_type(values, np.zeros(0, np.float32)) is values
    assert in_type(values, np.zeros(0, np.float32), copy=True) is not values


def test_a_tensor_in_bfloat16_becomes_an_array_in_float32() -> None:
    torch = pytest.importorskip("torch")

    found = as_numpy(torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True))

    assert found.dtype == np.float32
    assert found.tolist() == [1.5]


def test_a_step_that_its_own_type_cannot_hold_is_refused() -> None:
    """Weights of coins can be large: 40,000 times 4 is no float16."""
    cohort = Cohort.of_weights([0], [1], [4.0])

    with pytest.raises(AggregationError, match="in its type, float16; its largest entry would be"):
        aggregate(None, [np.full(2, 4e4, dtype=np.float16)], cohort)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("keep", ["float32", "int8", "rank"])
def test_large_updates_and_opposite_memory_stay_finite(keep: Any, kind: str) -> None:
    """Entries just below the bound; larger ones count as lost."""
    selector = Selector(Multinomial(2), [3, 1], seed=0, estimator=Difference(keep=keep))
    for round_ in range(8):
        selector.draw()
        rows: Any = np.full((len(selector.asked), 3), (-1) ** round_ * 9.9e36, dtype=np.float32)
        rows[:, 2] = 1e38 if round_ == 5 else 0
        if kind == "torch":
            rows = pytest.importorskip("torch").from_numpy(rows)

        step = selector.aggregate(rows)

        assert np.isfinite(np.asarray(step)).all()
        assert np.asarray(step).any() == (round_ != 5)


def test_names_may_come_in_any_order() -> None:
    selector = Selector(Uniform(2), [1, 1], seed=0)
    selector.draw()
    first = {"w": np.array([2.0, 4.0]), "b": np.array([6.0])}
    second = {"b": np.array([10.0]), "w": np.array([0.0, 0.0])}
    model = {"b": np.array([1.0]), "w": np.array([1.0, 1.0])}

    moved = selector.aggregate({0: first, 1: second}, model=model)

    assert {name: part.tolist() for name, part in moved.items()} == {"b": [9.0], "w": [2.0, 3.0]}


@pytest.mark.parametrize(
    ("model", "update"),
    [
        ({"w": np.ones(2), "b": np.ones(1)}, {"w": np.ones(1), "b": np.ones(2)}),
        ({"w": np.ones(3)}, {"v": np.ones(3)}),
        ([np.ones(1), np.ones(2)], [np.ones(2), np.ones(1)]),
        (np.ones(4), np.ones(3)),
    ],
    ids=["shapes", "names", "list", "width"],
)
def test_a_model_of_other_arrays_is_refused(model: Any, update: Any) -> None:
    selector = Selector(Uniform(2), [1, 1], seed=0)
    selector.draw()

    with pytest.raises(AggregationError, match="updates must have the arrays of the model"):
        selector.aggregate({0: update, 1: update}, model=model)
    assert selector.round_ == 0


def test_rows_have_the_order_of_their_ids() -> None:
    rows = np.array([[1.0], [10.0], [100.0], [1000.0]])

    def step(*arguments: Any) -> list[float]:
        selector = Selector(Uniform(4), [1, 1, 2, 4], seed=0)
        selector.draw()
        result: list[float] = selector.aggregate(*arguments).tolist()
        return result

    assert step(rows) == step(dict(enumerate(rows)))
    assert step(rows[::-1], [3, 2, 1, 0]) == step(rows)
    assert step(rows[[2, 0]], [2, 0]) == step({2: rows[2], 0: rows[0]})
    assert step([*rows]) == step(rows)


def test_rows_can_have_any_shape() -> None:
    selector = Selector(Uniform(4), FOUR, seed=0)
    selector.draw()

    step = selector.aggregate(np.arange(16.0).reshape(4, 2, 2))

    assert step.tolist() == [[6.0, 7.0], [8.0, 9.0]]


def torch_kinds() -> Iterator[Any]:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    values = torch.tensor([4.0, -8.0, 12.0, 2.0])
    yield values
    yield values.double().reshape(2, 2)
    yield values.half()
    yield values.bfloat16()
    yield {"w": values[:3].clone().requires_grad_(), "n": torch.tensor(8), "b": values[3:].double()}


@pytest.mark.parametrize("estimator", ["plain", "difference", Difference(keep="int8")])
@pytest.mark.parametrize("number", range(5))
def test_tensors_come_out_as_they_came_in(number: int, estimator: Any) -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    update = list(torch_kinds())[number]
    selector = Selector(Uniform(4), FOUR, seed=0, estimator=estimator)
    for _ in range(2):
        selector.draw()
        moved = selector.aggregate(dict.fromkeys(range(4), update), model=update)

    pairs = zip(moved.values(), update.values(), strict=True) if number == 4 else [(moved, update)]
    for after, before in pairs:
        assert torch.is_tensor(after)
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert torch.equal(after, 2 * before.detach())


def test_tensors_and_arrays_can_meet() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    selector = Selector(Uniform(2), [1, 1], seed=0, estimator="difference")
    for round_ in range(4):
        selector.draw()
        updates = {0: torch.ones(2), 1: np.full(2, 3.0)}
        model = np.ones(2) if round_ % 2 else torch.ones(2)
        moved = selector.aggregate({k: updates[(k + round_) % 2] for k in (0, 1)}, model=model)

        assert type(moved) is type(model)
        assert moved.tolist() == [3.0, 3.0]


def test_a_complex_tensor_is_refused() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")

    with pytest.raises(AggregationError, match=r"must be real numbers.*got torch.complex64"):
        Layout.of("test", torch.ones(2, dtype=torch.complex64))


def test_nobodys_rows_give_a_step_of_their_width() -> None:
    rows = Rows.of("test", np.empty((0, 3), dtype=np.float32), 0)

    assert (rows.zero().tolist(), rows.zero().dtype) == ([0.0] * 3, np.dtype(np.float32))


@pytest.mark.parametrize("estimator", ["plain", "difference", Difference(0.5)])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_average_is_the_step(
    monkeypatch: pytest.MonkeyPatch, estimator: Any, factor: float
) -> None:
    """Exactly: all numbers are dyadic, and W is a power of 2."""

    def weighed(self: object, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, factor * counts / 4)

    monkeypatch.setattr(MultinomialDesign, "weigh", weighed)
    selector = Selector(Multinomial(4), [4, 2, 1, 1], seed=0, estimator=estimator)
    for _ in range(6):
        cohort = selector.draw()
        updates = {
            each: {"w": values[:2], "n": np.array(16), "b": values[2:]}
            for each, values in updates_for(cohort).items()
        }
        step = selector.step(updates)
        given = list(selector.for_average(updates))
        total = sum(weight for _, weight, _ in given)
        for name in ("w", "b", "n"):
            mean = sum(weight * update[name] for _, weight, update in given) / total
            assert (mean == step[name]).all()
        assert total == factor
        assert [each for each, _, _ in given] == cohort.ids
        selector.aggregate(updates)


def test_clients_without_weight_are_not_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework would divide by 0."""

    def weightless(self: object, clients: NDArray[np.int64], counts: NDArray[np.int64]) -> Cohort:
        return Cohort.of_weights(clients, counts, np.zeros(len(counts)))

    monkeypatch.setattr(MultinomialDesign, "weigh", weightless)
    selector = Selector(Multinomial(4), SIZES, seed=0)
    updates = updates_for(selector.draw())

    assert list(selector.for_average(updates)) == []
    assert (selector.aggregate(updates) == 0).all()


def test_updates_that_need_no_change_are_passed_on_as_they_are() -> None:
    selector = Selector(SizeClustered(4), SIZES, seed=0)
    updates = updates_for(selector.draw())

    assert all(update is updates[each] for each, _, update in selector.for_average(updates))


def test_where_nobody_was_drawn_the_average_is_what_is_expected() -> None:
    selector = Selector(Poisson(1), [1] * 4, seed=0, estimator="difference")
    while len(selector.draw()) or selector.estimator is None:
        selector.aggregate(updates_for(selector.cohort))  # type: ignore[arg-type]
    recalled = selector.recall(range(4))

    ((each, weight, update),) = selector.for_average({})

    assert recalled is not None
    assert (each, weight) == (None, 1.0)
    assert (update == recalled[1]).all()
    assert recalled[1].any()
    assert (recalled[0].mean(axis=0) == recalled[1]).all()
    assert (selector.aggregate({}) == recalled[1]).all()


def test_the_average_leaves_out_what_is_not_finite() -> None:
    selector = Selector(SizeClustered(4), SIZES, seed=0)
    updates = updates_for(selector.draw())
    lost = next(iter(updates))
    updates[lost] = updates[lost] * np.nan

    given = list(selector.for_average(updates))

    assert lost not in [each for each, _, _ in given]
    total = sum(weight for _, weight, _ in given)
    mean = sum(weight * update for _, weight, update in given) / total
    assert mean == pytest.approx(selector.step(updates))


@pytest.mark.parametrize("recipe", [SizeClustered(3), SimilarityClustered(3)], ids=repr)
@pytest.mark.parametrize(
    "difference",
    [Difference(), Difference(0.5), Difference(keep="int8"), Difference(keep="rank", rank=2)],
)
def test_the_difference_estimator_steps_by_its_formula(
    recipe: Recipe, difference: Difference
) -> None:
    selector = Selector(recipe, SIZES, seed=0, estimator=difference)
    for _ in range(5):
        cohort = selector.draw(available=list("abde")[selector.round_ % 2 :])
        updates, recalled = updates_for(cohort), selector.recall(cohort.ids)
        rows = np.array([*updates.values()])
        expected = cohort.weights @ rows
        if recalled is not None:
            expected = cohort.weights @ (rows - recalled[0]) + recalled[1]
            every = selector.recall(SIZES)
            assert every is not None
            assert selector.design is not None
            importance = selector.design.population.importance
            assert recalled[1] == pytest.approx(importance @ every[0], rel=1e-12)
        before = frozen(selector)

        assert selector.step(updates) == pytest.approx(expected, rel=1e-12)
        assert frozen(selector) == before
        selector.aggregate(updates)


def test_updates_by_id_must_be_alike() -> None:
    selector = Selector(Uniform(2), [1, 1], seed=0)
    selector.draw()

    with pytest.raises(SelectorError, match=r"client 1 differs: shapes \(2,\) and \(3,\)"):
        selector.aggregate({0: np.ones(2), 1: np.ones(3)})


@pytest.mark.parametrize(
    "update", [[[[1, 2], [3]], [1]], [[1, 2], [[3], [4, 5]]], {"a": [[1, 2], [3]]}, [["a"], [1]]]
)
def test_an_update_of_uneven_rows_is_refused_in_a_sentence(update: Any) -> None:
    cohort = Cohort.of_shares(np.array([0]), np.array([1]), cohort_size=1)
    selector = Selector(Multinomial(1), [5], seed=0)
    selector.draw()

    with pytest.raises(
        AggregationError, match=r"^aggregate: an update must be real numbers: .*\.$"
    ):
        aggregate(None, [update], cohort)
    with pytest.raises(SelectorError, match=r"^Selector: an update must be real numbers: .*\.$"):
        selector.aggregate({0: update})


@pytest.mark.parametrize("updates", [3, None, "ab", {"a": [1.0]}, 1.5, print])
def test_what_is_no_list_of_updates_is_refused_in_a_sentence(updates: Any) -> None:
    cohort = Cohort.of_shares(np.array([0]), np.array([1]), cohort_size=1)

    with pytest.raises(AggregationError, match=r"^aggregate: updates must be 1, one per client"):
        aggregate(None, updates, cohort)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_row_is_usable_if_float32_can_hold_sums_of_its_numbers(kind: str, dtype: str) -> None:
    largest = float(np.nextafter(np.dtype(dtype).type(1e37), 0))
    given = [[0, 1], [np.inf, 1], [1, -np.inf], [np.nan, 1], [largest, -largest], [0, -1.1e37]]
    rows: Any = np.array(given, dtype=dtype)
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
        rows = torch.from_numpy(rows)

    assert usable_rows(rows).tolist() == [True, False, False, False, True, False]
    assert usable_rows(rows[:0]).tolist() == []


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("estimator", ["difference", "regression"])
def test_counters_of_any_shape_are_averaged_in_an_empty_cohort(
    shape: tuple[int, ...], estimator: Any
) -> None:
    """numpy turns the rounding of a 0-dimensional array into a scalar."""
    selector = Selector(Poisson(1), [1] * 4, seed=0, estimator=estimator)
    while len(cohort := selector.draw()) or selector.estimator is None:
        update = {"seen": np.full(shape, 3), "w": np.ones(2, np.float32)}
        selector.aggregate(dict.fromkeys(cohort.ids, update))

    ((_, _, update),) = selector.for_average({})

    assert (update["seen"].shape, update["seen"].tolist()) == (shape, np.zeros(shape).tolist())


def test_a_type_of_integers_takes_a_number_without_dimensions() -> None:
    for values in (np.array(2.4), np.float64(2.4)):
        found = in_type(values, np.empty(0, dtype=np.int64))
        assert isinstance(found, np.ndarray)
        assert (found.shape, found.tolist()) == ((), 2)
