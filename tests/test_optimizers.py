"""Server optimisers against worked examples, Flower's own classes, and plain loops."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcohort.errors import AggregationError
from fedcohort.optimizers import SGD, Adagrad, Adam, ServerOptimizer, Yogi


def positions(optimizer: ServerOptimizer, aggregates: Iterable[Any]) -> list[Any]:
    """Return the model after every round, from 0."""
    model, state, found = 0.0, None, []
    for aggregate in aggregates:
        step, state = optimizer.step(aggregate, state)
        model = model + step
        found.append(model)
    return found


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (Adam(lr=0.1), (0.0990050, 0.2327412)),
        (Adam(lr=0.1, convention="flower"), (0.0735109, 0.1585611)),
        (Yogi(), (0.0099005, 0.0232409)),
        (Yogi(convention="flower"), (0.0099010, 0.0232417)),
        (Adagrad(), (0.0999000, 0.1705607)),
        (Adagrad(convention="flower"), (0.0999001, 0.1705608)),
        (SGD(momentum=0.9), (1.0, 2.9)),
    ],
    ids=str,
)
def test_two_rounds_of_ones_are_the_worked_examples(
    optimizer: ServerOptimizer, expected: tuple[float, float]
) -> None:
    found = positions(optimizer, [np.ones(1), np.ones(1)])

    # The examples have seven decimals.
    assert [float(value[0]) for value in found] == pytest.approx(expected, abs=5.1e-8)


@pytest.mark.parametrize(
    ("convention", "expected"),
    [("paper", (0.0414822, 0.1112480)), ("flower", (0.0371230, 0.0872453))],
)
def test_a_small_aggregate_shows_where_the_second_moment_starts(
    convention: Any, expected: tuple[float, float]
) -> None:
    found = positions(Adam(convention=convention), [np.full(1, 0.01)] * 2)

    assert [float(value[0]) for value in found] == pytest.approx(expected, abs=5.1e-8)


def slow(optimizer: Any, aggregates: list[NDArray[np.float64]]) -> list[float]:
    """Play one coordinate at a time, with plain floats."""
    model, first = [0.0] * aggregates[0].size, getattr(optimizer, "tau", 0.0) ** 2
    u, s = [0.0] * len(model), [first] * len(model)
    for aggregate in aggregates:
        for k, v in enumerate(aggregate.tolist()):
            if isinstance(optimizer, SGD):
                share = v * (1 - optimizer.momentum) if optimizer.damped else v
                u[k] = optimizer.momentum * u[k] + share
                step = optimizer.momentum * u[k] + share if optimizer.nesterov else u[k]
            elif isinstance(optimizer, Adagrad):
                s[k] += v * v
                step = v / (math.sqrt(s[k]) + optimizer.tau)
            else:
                u[k] = optimizer.beta1 * u[k] + (1 - optimizer.beta1) * v
                if isinstance(optimizer, Adam):
                    s[k] = optimizer.beta2 * s[k] + (1 - optimizer.beta2) * v * v
                else:
                    s[k] -= (1 - optimizer.beta2) * v * v * float(np.sign(s[k] - v * v))
                step = u[k] / (math.sqrt(s[k]) + optimizer.tau)
            model[k] += optimizer.lr * step
    return model


EVERY: list[ServerOptimizer] = [
    SGD(lr=0.5),
    SGD(lr=0.5, momentum=0.9),
    SGD(lr=0.5, momentum=0.9, damped=True),
    SGD(lr=0.5, momentum=0.9, nesterov=True),
    SGD(lr=0.5, momentum=0.9, damped=True, nesterov=True),
    Adagrad(lr=0.3),
    Adam(lr=0.3, beta1=0.7),
    Yogi(lr=0.3, beta2=0.9),
]


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_the_fast_step_equals_the_slow_twin(optimizer: ServerOptimizer) -> None:
    aggregates = list(np.random.default_rng(0).normal(size=(7, 5)))

    # Seven sums and roots of numbers around 1, in another order.
    assert positions(optimizer, aggregates)[-1] == pytest.approx(
        slow(optimizer, aggregates), rel=1e-12, abs=1e-12
    )


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_structures_go_in_and_come_out(optimizer: ServerOptimizer) -> None:
    rng = np.random.default_rng(1)
    rounds = [{"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)} for _ in range(3)]
    flat = [np.concatenate([each["a"].ravel(), each["b"]]) for each in rounds]
    state, flat_state = None, None
    for named, vector in zip(rounds, flat, strict=True):
        step, state = optimizer.step(named, state)
        expected, flat_state = optimizer.step(vector, flat_state)

        assert step["a"].shape == (2, 3)
        assert np.concatenate([step["a"].ravel(), step["b"]]).tolist() == expected.tolist()


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_nothing_that_goes_in_changes_and_a_saved_state_goes_on(optimizer: ServerOptimizer) -> None:
    aggregates = np.random.default_rng(2).normal(size=(4, 3))
    copy = aggregates.copy()
    _, state = optimizer.step(aggregates[0])
    kept = {name: array.copy() for name, array in state.items()}
    first = optimizer.step(aggregates[1], state)[0]
    again = optimizer.step(aggregates[1], kept)[0]

    assert (aggregates == copy).all()
    assert all((state[name] == kept[name]).all() for name in kept)
    assert first.tolist() == again.tolist()


def test_float32_stays_float32_and_counters_move_by_the_aggregate() -> None:
    aggregate = {"w": np.ones(2, dtype=np.float32), "n": np.array([3])}

    step, _ = Adam().step(aggregate)

    assert step["w"].dtype == np.float32
    assert step["n"].tolist() == [3]


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")

    step, _ = SGD(lr=2.0).step([torch.ones(2), torch.ones(1)])

    assert [part.tolist() for part in step] == [[2.0, 2.0], [2.0]]


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (Adam(lr=0.1, convention="flower"), "FedAdam"),
        (Yogi(lr=0.01, convention="flower"), "FedYogi"),
        (Adagrad(lr=0.1, convention="flower"), "FedAdagrad"),
        (SGD(momentum=0.9), "FedAvgM"),
    ],
)
def test_flowers_convention_is_flowers(ours: ServerOptimizer, name: str) -> None:
    """Five rounds of Flower's own strategy, one client, beside ours."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from flwr.serverapp import strategy as flwr

    from flower.federation import grid_of, model, one_round
    from flower.in_process import play_the_server

    play_the_server()
    options: dict[str, Any] = {"server_momentum": 0.9} if name == "FedAvgM" else {}
    theirs = getattr(flwr, name)(min_train_nodes=1, min_available_nodes=1, **options)
    grid, state, own = grid_of(1), None, model(0.0)
    mine = np.concatenate([a.ravel() for a in own.to_numpy_ndarrays()]).astype(np.float64)
    from flower.federation import update_of

    for number in range(1, 6):
        moved = one_round(theirs, grid, number, own)
        assert moved is not None
        own = moved
        step, state = ours.step(update_of(0).astype(np.float64), state)
        mine = mine + step
        found = np.concatenate([a.ravel() for a in own.to_numpy_ndarrays()])
        # Flower works in float32: five steps of at most 5.
        assert found == pytest.approx(mine, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (SGD, {"lr": -1}),
        (SGD, {"lr": math.nan}),
        (SGD, {"momentum": 1.0}),
        (SGD, {"momentum": "x"}),
        (SGD, {"damped": "False"}),
        (SGD, {"momentum": 0, "damped": True}),
        (SGD, {"momentum": 0, "nesterov": True}),
        (Adam, {"beta1": 1.0}),
        (Adam, {"beta2": -0.1}),
        (Adam, {"tau": 0.0}),
        (Yogi, {"convention": "tff"}),
    ],
)
def test_nonsense_is_refused_when_it_is_made(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(AggregationError, match=rf"^{kind.__name__}: {next(iter(wrong))} must be"):
        kind(**wrong)


def test_a_state_of_another_model_or_optimiser_is_refused() -> None:
    _, state = Adam().step(np.ones(3))

    with pytest.raises(AggregationError, match=r"must hold rounds, u, s for an aggregate of 2"):
        Adam().step(np.ones(2), state)
    with pytest.raises(AggregationError, match=r"must hold rounds, s for"):
        Adagrad().step(np.ones(3), state)


@pytest.mark.parametrize("state", ["x", [1], 3, {}, {"rounds": 1.0}])
def test_what_is_not_a_state_is_refused(state: Any) -> None:
    with pytest.raises(AggregationError, match=r"^Adam: the state must hold rounds, u, s for"):
        Adam().step(np.ones(3), state)


def test_the_order_of_names_does_not_matter() -> None:
    """Arrays keep their own moments, also if a client sends them in another order."""
    first, second = {"b": np.ones(2), "a": np.zeros(2)}, {"a": np.zeros(2), "b": np.ones(2)}
    _, state = SGD(momentum=0.9).step(first)

    step, _ = SGD(momentum=0.9).step(second, state)

    assert {name: each.tolist() for name, each in step.items()} == {"a": [0, 0], "b": [1.9, 1.9]}
    assert list(step) == ["a", "b"]


def test_the_order_of_a_state_does_not_matter() -> None:
    _, state = Adam().step(np.ones(3))
    turned = dict(sorted(state.items(), reverse=True))

    assert Adam().step(np.ones(3), turned)[0].tolist() == Adam().step(np.ones(3), state)[0].tolist()


def test_numbers_of_any_type_become_floats() -> None:
    """A checkpoint compares settings by how they are written."""
    given = Adam(lr=np.float32(0.5), beta1=np.float64(0.5), tau=1)  # type: ignore[arg-type]

    assert repr(given) == repr(Adam(lr=0.5, beta1=0.5, tau=1.0))


@pytest.mark.filterwarnings("error")
def test_a_step_that_overflows_is_refused_without_a_warning() -> None:
    with pytest.raises(AggregationError, match="must be finite in its type"):
        SGD(lr=1e3).step(np.full(2, 9e36, dtype=np.float32))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("optimizer", [Adam(), Adagrad(), Yogi()], ids=repr)
def test_moments_that_overflow_are_refused_and_the_state_stays(
    optimizer: ServerOptimizer, kind: str
) -> None:
    """Else the second moment would be infinite, and every later step 0."""
    array: Any = np.array
    if kind == "torch":
        array = pytest.importorskip("torch", reason="the extra 'sim' is not installed").tensor
    _, state = optimizer.step(array([1.0]))
    before = {name: own.tolist() for name, own in state.items()}

    with pytest.raises(
        AggregationError, match=r"the moments must be finite; .*an entry of 1e\+200"
    ):
        optimizer.step(array([1e200], dtype=state["s"].dtype), state)

    assert {name: own.tolist() for name, own in state.items()} == before


def test_a_sparse_aggregate_is_refused() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'sim' is not installed")

    with pytest.raises(AggregationError, match=r"must be real numbers.*got torch.sparse_coo under"):
        SGD().step({"w": torch.eye(2).to_sparse()})
