"""The one formula."""

from typing import Any

import numpy as np
import pytest

from fedcohort import Cohort, Population, Selector, Uniform, UpdateMemory, aggregate
from fedcohort.designs import PoissonDesign, SizeClusteredDesign, UniformDesign
from fedcohort.errors import AggregationError, DesignError
from fedcohort.selector import Answers
from populations import rng

MODEL = np.array([[1.0, 2.0], [3.0, 4.0]])


def test_full_participation_averages_the_clients_models_by_importance() -> None:
    population = Population([5, 3, 2])
    cohort = UniformDesign(population, 3).draw(rng())
    models = rng(1).standard_normal((3, 2, 2))

    moved = aggregate(MODEL, models - MODEL, cohort)

    np.testing.assert_allclose(moved, np.tensordot(population.importance, models, axes=1))


def test_fedavgs_residual_stays_on_the_model() -> None:
    population = Population([5, 3, 2])
    cohort = UniformDesign(population, 1).draw(rng(2))
    models = rng(3).standard_normal((1, 2, 2))

    moved = aggregate(MODEL, models - MODEL, cohort)

    weight = population.importance[cohort.clients[0]]
    np.testing.assert_allclose(moved, weight * models[0] + cohort.residual * MODEL)


def test_the_servers_learning_rate_scales_the_move() -> None:
    cohort = SizeClusteredDesign(Population([1, 1]), 2, rng=rng()).draw(rng())
    updates = np.ones((len(cohort), 2, 2))

    assert (aggregate(MODEL, updates, cohort, server_lr=0.5) == MODEL + 0.5).all()


def test_an_empty_cohort_leaves_the_model() -> None:
    design = PoissonDesign(Population([1] * 4), 1)
    empty = next(c for c in (design.draw(rng(seed)) for seed in range(50)) if len(c) == 0)

    moved = aggregate(MODEL, [], empty)

    assert (moved == MODEL).all()
    assert moved is not MODEL


def test_updates_that_do_not_fit_the_cohort_are_refused() -> None:
    cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 1]), 2)

    with pytest.raises(AggregationError, match=r"must be 2, one per client.*got shape \(3, 2, 2\)"):
        aggregate(MODEL, np.ones((3, 2, 2)), cohort)
    with pytest.raises(
        AggregationError, match=r"must be 2, one per client and all of the same arrays"
    ):
        aggregate([1.0, 2.0], [[1.0, 2.0], [3.0]], cohort)
    with pytest.raises(AggregationError, match=r"arrays of the model, \(2,\); got \(3,\)\."):
        aggregate([1.0, 2.0], np.ones((2, 3)), cohort)
    with pytest.raises(
        AggregationError, match=r"updates must be finite, .*that of client 2 is not"
    ):
        aggregate([1.0, 2.0], [[1.0, 2.0], [3.0, np.nan]], cohort)


def test_a_mapping_of_arrays_moves_in_its_own_structure_and_types() -> None:
    """A quarter of the first client's update, three quarters of the second's."""
    cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 3]), 4)
    model: dict[str, np.ndarray] = {
        "weight": np.ones((1, 2), dtype=np.float32),
        "bias": np.zeros(1),
        "seen": np.array(7),
    }
    updates = [
        {"weight": np.full((1, 2), 4.0), "bias": np.array([8.0]), "seen": np.array(4)},
        {"weight": np.full((1, 2), 8.0), "bias": np.array([0.0]), "seen": np.array(8)},
    ]

    moved = aggregate(model, updates, cohort)

    assert list(moved) == ["weight", "bias", "seen"]
    assert moved["weight"].tolist() == [[8.0, 8.0]]
    assert moved["bias"].tolist() == [2.0]
    assert moved["seen"].tolist() == 14
    assert (moved["weight"].dtype, moved["seen"].dtype) == (np.float32, model["seen"].dtype)
    assert model["weight"].tolist() == [[1.0, 1.0]]


def test_a_list_of_arrays_moves_as_a_list() -> None:
    cohort = Cohort.of_shares(np.array([0]), np.array([1]), 1)

    moved = aggregate([np.zeros((2, 1)), np.zeros(1)], [[np.ones((2, 1)), np.ones(1)]], cohort)

    assert isinstance(moved, list)
    assert [array.tolist() for array in moved] == [[[1.0], [1.0]], [1.0]]


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 3]), 4)

    moved = aggregate({"w": torch.ones(2)}, [{"w": torch.zeros(2)}, {"w": torch.ones(2)}], cohort)

    assert torch.equal(moved["w"], torch.full((2,), 1.75))


def test_without_a_model_the_step_is_returned() -> None:
    cohort = Cohort.of_shares(np.array([0, 2]), np.array([1, 3]), 4)

    step = aggregate(None, np.array([[4.0, 0.0], [0.0, 4.0]]), cohort, server_lr=2.0)

    assert step.tolist() == [2.0, 6.0]


@pytest.mark.parametrize(
    "server_lr", [np.nan, np.inf, -np.inf, -1.0, "1", True, np.True_, None, 1j, 10**400, [1.0]]
)
def test_a_servers_learning_rate_that_is_no_finite_number_is_refused(server_lr: object) -> None:
    cohort = Cohort.of_shares(np.array([0]), np.array([1]), cohort_size=1)

    with pytest.raises(AggregationError, match=r"aggregate: server_lr must be a number of at"):
        aggregate([1.0], [[4.0]], cohort, server_lr=server_lr)  # type: ignore[arg-type]


@pytest.mark.parametrize("server_lr", [0, 2, np.float32(0.5), np.int64(3)])
def test_numbers_of_any_type_are_learning_rates(server_lr: float) -> None:
    cohort = Cohort.of_shares(np.array([0]), np.array([1]), cohort_size=1)

    assert aggregate([1.0], [[4.0]], cohort, server_lr=server_lr).tolist() == [1 + 4 * server_lr]


def test_what_is_no_memory_is_refused() -> None:
    cohort = Cohort.of_shares([0], [1], cohort_size=1)

    with pytest.raises(
        AggregationError, match=r"memory must be the estimator's memory, or None; got 3\."
    ):
        aggregate(np.zeros(1), [[1.0]], cohort, memory=3)  # type: ignore[arg-type]
    with pytest.raises(AggregationError, match=r"must be the estimator's memory, .*UpdateMemory\("):
        aggregate(np.zeros(1), [[1.0]], cohort, memory=UpdateMemory(1, 1))  # type: ignore[arg-type]


def test_a_cohort_is_made_of_lists_as_well() -> None:
    cohort = Cohort.of_weights([0, 2], [1, 1], [0.25, 0.5])

    assert cohort.ids == [0, 2]
    assert aggregate(np.zeros(1), [[4.0], [8.0]], cohort).tolist() == [5.0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("x", [1], [1.0]), r"clients must be a flat list of whole numbers.*; got 'x'"),
        (([0.5], [1], [1.0]), r"clients must be a flat list of whole numbers"),
        (([0], [1], ["x"]), r"weights must be a flat list of numbers"),
        (([0, 1], [1], [1.0]), r"needs a count and a weight for each client; got "),
    ],
)
def test_what_is_no_cohort_is_refused(parts: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(DesignError, match=f"^Cohort: {message}"):
        Cohort.of_weights(*parts)


@pytest.mark.parametrize("is_mapping", [False, True])
def test_mixed_orders_of_names_need_a_model_with_names(is_mapping: bool) -> None:
    """Without names the model's numbers would take the order of the first client."""
    forward = {"a": np.ones(2), "b": np.full(3, 5.0)}
    backward = {"b": np.full(3, 7.0), "a": np.full(2, 3.0)}
    cohort = Cohort.of_shares([0, 1], [1, 1], cohort_size=2)

    for updates in ([forward, backward], [backward, forward]):
        if is_mapping:
            moved = aggregate({"a": np.zeros(2), "b": np.zeros(3)}, updates, cohort)
            assert {name: own.tolist() for name, own in moved.items()} == {
                "a": [2, 2],
                "b": [6, 6, 6],
            }
            continue
        for model in (np.zeros(5), [np.zeros(2), np.zeros(3)]):
            with pytest.raises(AggregationError, match="must all have the same order of names"):
                aggregate(model, updates, cohort)
    assert aggregate(np.zeros(5), [backward, backward], cohort).tolist() == [7, 7, 7, 3, 3]


@pytest.mark.parametrize("joins", [False, True])
def test_a_selector_refuses_mixed_orders_of_names_with_a_model_without_names(joins: bool) -> None:
    forward, backward = {"a": np.ones(2), "b": np.ones(3)}, {"b": np.ones(3), "a": np.ones(2)}
    selector = Selector(Uniform(2), [1, 1], seed=0)
    selector.draw()
    answers = selector.receive({0: forward, 1: backward})
    if joins:
        parts = [selector.receive({0: forward}), selector.receive({1: backward})]
        answers = Answers.joined(parts)

    with pytest.raises(AggregationError, match="must all have the same order of names"):
        selector.aggregate(answers, model=np.zeros(5))

    assert selector.round_ == 0
    moved = selector.aggregate(answers, model={"b": np.zeros(3), "a": np.zeros(2)})
    assert {name: own.tolist() for name, own in moved.items()} == {"b": [1, 1, 1], "a": [1, 1]}
