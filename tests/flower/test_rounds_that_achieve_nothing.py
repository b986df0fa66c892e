"""Rounds that achieve nothing are noticed; numbers of another type are no reason for one."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import strategy as flwr

from fedcohort import Poisson, PowerOfChoice, SimilarityClustered, SizeClustered
from fedcohort.errors import FlowerError
from fedcohort.flower import CohortStrategy, Limits, register_signal_queries
from fedcohort.selector.settings import OnFailure
from flower.federation import (
    DIMENSION,
    Change,
    client_app,
    drawn,
    failed,
    flat,
    grid_of,
    layers,
    model,
    remembered,
    update_of,
    weights_of,
)


def only_training(kind: type[flwr.FedAvg] = flwr.FedAvg) -> flwr.FedAvg:
    return kind(fraction_evaluate=0.0)


def typed_model(dtype: Any) -> ArrayRecord:
    return ArrayRecord(layers(np.full(DIMENSION, 1.0, dtype=dtype)))


def sending(dtype: Any) -> Change:
    """Let clients send their models in another type."""

    def change(client: int, content: RecordDict) -> RecordDict:
        arrays = next(iter(content.array_records.values())).to_numpy_ndarrays()
        content["arrays"] = ArrayRecord([array.astype(dtype) for array in arrays])
        return content

    return change


def types_of(arrays: ArrayRecord) -> set[str]:
    return {str(array.dtype) for array in arrays.to_numpy_ndarrays()}


# Types


@pytest.mark.parametrize("inner", [flwr.FedAvg, flwr.FedAdam, flwr.FedAvgM])
@pytest.mark.parametrize(
    ("own", "sent"),
    [
        ("float64", "float32"),
        ("float32", "float64"),
        ("float32", "float16"),
        ("float16", "float64"),
    ],
)
def test_replies_of_another_floating_type_train_and_the_models_type_stays(
    inner: type[flwr.FedAvg], own: str, sent: str
) -> None:
    grid = grid_of(app=client_app(change=sending(sent)))
    strategy = CohortStrategy(only_training(inner), SizeClustered(3), seed=0)
    seen: list[set[str]] = []

    result = strategy.start(
        grid,
        typed_model(own),
        num_rounds=4,
        evaluate_fn=lambda number, arrays: seen.append(types_of(arrays)),
    )

    assert seen == [{own}] * 5
    assert (flat(result.arrays) != 1.0).all()
    assert failed(strategy) == {}


def test_the_inner_strategy_gets_replies_in_the_models_types() -> None:
    """Clients 0, 2 and 4 send float64."""
    seen: list[set[str]] = []

    class Noting(flwr.FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            messages = list(replies)
            seen.extend(types_of(each.content["arrays"]) for each in messages)
            return super().aggregate_train(server_round, messages)

    def change(client: int, content: RecordDict) -> RecordDict:
        return content if client % 2 else sending("float64")(client, content)

    strategy = CohortStrategy(only_training(Noting), SizeClustered(5), seed=0)
    strategy.start(grid_of(app=client_app(change=change)), model(), num_rounds=2)

    assert len(seen) > 4
    assert all(each == {"float32"} for each in seen)


@pytest.mark.parametrize(("own", "sent"), [("float64", "float32"), ("float32", "float64")])
@pytest.mark.parametrize("recipe", [SizeClustered(3), SimilarityClustered(3)], ids=repr)
def test_a_cast_model_moves_by_the_one_formula(own: str, sent: str, recipe: Any) -> None:
    grid = grid_of(app=client_app(change=sending(sent)))
    strategy = CohortStrategy(only_training(), recipe, seed=0)
    messages = list(strategy.configure_train(1, typed_model(own), ConfigRecord(), grid))
    weights = weights_of(strategy)

    moved, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))

    assert moved is not None
    expected = 1.0 + sum(w * update_of(int(key)) for key, w in weights.items())
    assert flat(moved) == pytest.approx(expected, abs=1e-6)


def test_a_number_that_overflows_the_models_type_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Client 3 sends 1e300 where the model is float32."""

    def change(client: int, content: RecordDict) -> RecordDict:
        vector = np.full(DIMENSION, 1e300 if client == 3 else 2.0)
        content["arrays"] = ArrayRecord(layers(vector))
        return content

    strategy = CohortStrategy(only_training(), SizeClustered(5), seed=0)

    result = strategy.start(grid_of(app=client_app(change=change)), model(), num_rounds=3)

    assert failed(strategy) == {"3": drawn_rounds(strategy, "3")}
    assert np.isfinite(flat(result.arrays)).all()
    assert "(3): is too large for its type: 0 overflows float32" in caplog.text


def drawn_rounds(strategy: CohortStrategy, key: str) -> int:
    """Client 3 has more than a fifth of all samples: five draws by size take it in every round."""
    assert drawn(strategy)[key] >= strategy.rounds_done
    return strategy.rounds_done


@pytest.mark.parametrize(("own", "sent"), [("float32", "int64"), ("int64", "float32")])
def test_integers_are_not_cast(own: str, sent: str, caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of(app=client_app(change=sending(sent)))
    limits = Limits(give_up_after=2)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, limits=limits)

    with pytest.raises(FlowerError, match="2 rounds in a row had no usable reply"):
        strategy.start(grid, typed_model(own), num_rounds=5)
    assert f"0 must be {own} of shape (3, 2); got {sent} of shape (3, 2)" in caplog.text


def test_what_overflows_is_not_refused_where_the_client_itself_sent_infinity(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def change(client: int, content: RecordDict) -> RecordDict:
        content["arrays"] = ArrayRecord(layers(np.full(DIMENSION, math.inf)))
        return content

    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0)
    strategy.start(grid_of(app=client_app(change=change)), model(), num_rounds=1)

    assert "): is not finite, or too large for its type" in caplog.text


# Order


def backwards(client: int, content: RecordDict) -> RecordDict:
    """Clients 0, 2 and 4 send the model's arrays in another order."""
    if client % 2 == 0:
        arrays = content["arrays"]
        content["arrays"] = ArrayRecord({name: arrays[name] for name in reversed(list(arrays))})
    return content


@pytest.mark.parametrize(
    "inner",
    [flwr.FedAvg, flwr.FedAdam, lambda **more: flwr.FedAvgM(server_momentum=0.9, **more)],
    ids=["FedAvg", "FedAdam", "FedAvgM"],
)
@pytest.mark.parametrize(
    "more",
    [
        {"recipe": SizeClustered(4)},
        {"recipe": SimilarityClustered(4)},
        {"recipe": Poisson(3)},
        {"recipe": SizeClustered(4), "estimator": "difference"},
    ],
    ids=str,
)
def test_the_order_in_which_clients_send_their_arrays_changes_nothing(
    inner: Any, more: dict[str, Any]
) -> None:
    """The same rounds with all clients in order, and with some of them backwards."""
    results = []
    for change in (lambda client, content: content, backwards):
        strategy = CohortStrategy(inner(fraction_evaluate=0.0), seed=0, **more)
        app = client_app(change=change)
        results.append(strategy.start(grid_of(app=app), model(), num_rounds=6).arrays)
        assert failed(strategy) == {}

    assert (flat(results[0]) != 1.0).all()
    assert (flat(results[0]) == flat(results[1])).all()
    assert list(results[1]) == list(model())


def test_the_inner_strategy_gets_replies_in_the_models_order() -> None:
    seen: list[list[str]] = []

    class Noting(flwr.FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            messages = list(replies)
            seen.extend(list(each.content["arrays"]) for each in messages)
            return super().aggregate_train(server_round, messages)

    strategy = CohortStrategy(only_training(Noting), SizeClustered(5), seed=0)
    strategy.start(grid_of(app=client_app(change=backwards)), model(), num_rounds=2)

    assert len(seen) > 4
    assert all(each == list(model()) for each in seen)


# Giving up


def broken_in_three_ways(client: int, content: RecordDict) -> RecordDict:
    """Clients 0 and 1 send other shapes, 2 and 3 send NaN, 4 has no weight."""
    if client in (0, 1):
        content["arrays"] = ArrayRecord([np.ones(client + 1, np.float32)] * 2)
    elif client in (2, 3):
        content["arrays"] = ArrayRecord(layers(np.full(DIMENSION, np.nan, np.float32)))
    else:
        del next(iter(content.metric_records.values()))["num-examples"]
    return content


def test_training_gives_up_with_the_reasons_counted_by_kind() -> None:
    """Five clients of equal size are all drawn in every round: 2, 2 and 1 fail three times."""
    grid = grid_of(5, app=client_app([1] * 5, change=broken_in_three_ways))
    limits = Limits(give_up_after=3)
    strategy = CohortStrategy(only_training(), SizeClustered(5), seed=0, limits=limits)

    with pytest.raises(FlowerError) as caught:
        strategy.start(grid, model(), num_rounds=10)

    message = str(caught.value)
    assert message.startswith("CohortStrategy: 3 rounds in a row had no usable reply: 6 times ")
    needed = "0 must be float32 of shape (3, 2); got float32 of shape"
    assert message.count(f"6 times 'has other arrays than the model: {needed}") == 1
    assert message.count("6 times 'is not finite, or too large for its type'") == 1
    assert message.count("3 times \"has no number under 'num-examples'\"") == 1
    assert message.endswith(". Fix the clients, or raise Limits(give_up_after=...).")
    assert strategy.rounds_done == 3


def test_a_usable_reply_begins_the_count_anew() -> None:
    """Two of every three rounds fail: training that gives up after three never does."""
    rounds: list[int] = []
    grid = grid_of()
    grid.fails = lambda node, kind: kind == "train" and len(rounds) % 3 != 0
    limits = Limits(give_up_after=3)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, limits=limits)

    strategy.start(
        grid, model(), num_rounds=12, evaluate_fn=lambda number, arrays: rounds.append(number)
    )

    assert strategy.rounds_done == 12


def test_by_default_training_gives_up_after_ten_rounds() -> None:
    grid = grid_of(fails=lambda node, kind: kind == "train")
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0)

    with pytest.raises(
        FlowerError, match=r"10 rounds in a row .* times 'error 6: node unavailable'"
    ):
        strategy.start(grid, model(), num_rounds=100)
    assert strategy.rounds_done == 10


def test_rounds_in_which_nobody_is_there_count() -> None:
    """After the first round all nodes have gone."""
    grid = grid_of()
    limits = Limits(give_up_after=2)
    strategy = CohortStrategy(only_training(), SizeClustered(3), seed=0, limits=limits)

    def leave(number: int, arrays: ArrayRecord) -> None:
        if number == 1:
            grid.partitions.clear()

    with pytest.raises(FlowerError, match="2 times 'no client with samples was connected'"):
        strategy.start(grid, model(), num_rounds=9, evaluate_fn=leave)
    assert strategy.rounds_done == 3


def test_rounds_in_which_nobody_gives_the_signal_count() -> None:
    """Power-of-choice draws by losses: without any, nobody can be drawn."""
    app = client_app()
    register_signal_queries(app, loss=lambda arrays, context: math.nan)
    limits = Limits(give_up_after=4)
    strategy = CohortStrategy(only_training(), PowerOfChoice(2), seed=0, limits=limits)

    with pytest.raises(FlowerError, match="4 times 'no client gave its loss'"):
        strategy.start(grid_of(app=app), model(), num_rounds=9)


def test_empty_cohorts_of_poisson_sampling_are_not_fruitless() -> None:
    """One draw expected of five clients: a round is empty with probability above 1 / 4."""
    limits = Limits(give_up_after=1)
    strategy = CohortStrategy(only_training(), Poisson(1), seed=0, limits=limits)
    grid = grid_of(5, app=client_app([1] * 5))

    strategy.start(grid, model(), num_rounds=20)

    trained = sum(kind == "train" for kind, _ in grid.asked)
    assert strategy.rounds_done == 20
    assert trained > 0
    assert len(empty_rounds(strategy)) > 1


def empty_rounds(strategy: CohortStrategy) -> list[int]:
    """Replay the draws: which rounds had nobody?"""
    twin = CohortStrategy(only_training(), strategy.recipe, seed=strategy.seed)
    twin.selector.clients = dict(strategy.selector.clients)
    found = []
    for number in range(strategy.rounds_done):
        if not len(twin.selector.draw()):
            found.append(number)
        twin.selector.skip()
    return found


# Void rounds


def test_an_empty_cohort_is_not_void_where_the_memory_moves_the_model() -> None:
    """With nobody drawn the difference estimator steps by the mean of what it remembers."""
    strategy = CohortStrategy(only_training(), Poisson(1), seed=0, estimator="difference")
    models: list[Any] = []

    strategy.start(
        grid_of(5, app=client_app([1] * 5)),
        model(),
        num_rounds=20,
        evaluate_fn=lambda number, arrays: models.append(flat(arrays)),
    )

    empty = empty_rounds(strategy)
    known = [k for k in empty if any(each not in empty for each in range(k))]
    assert len(known) > 1
    assert all((models[k] != models[k + 1]).any() for k in known)


def test_a_round_with_too_few_replies_is_void(caplog: pytest.LogCaptureFixture) -> None:
    """Of five clients two answer and three are needed: model and memory stay."""
    grid = grid_of(5, app=client_app([1] * 5))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] in (1, 2, 3)
    limits = Limits(min_replies=3)
    strategy = CohortStrategy(only_training(), SimilarityClustered(5), seed=0, limits=limits)

    result = strategy.start(grid, model(), num_rounds=4)

    assert (flat(result.arrays) == 1.0).all()
    assert remembered(strategy) == {}
    assert strategy.rounds_done == 4
    assert result.train_metrics_clientapp == {}
    line = "round 4 is void, the model stays; usable replies: 2, needed: 3"
    assert caplog.messages.count(line) == 1


def test_void_rounds_leave_what_is_remembered_and_the_moments_alone() -> None:
    grid = grid_of(5, app=client_app([1] * 5))
    limits = Limits(min_replies=3)
    inner = only_training(flwr.FedAdam)
    strategy = CohortStrategy(inner, SimilarityClustered(5), seed=0, limits=limits)
    result = strategy.start(grid, model(), num_rounds=3)
    memory = {key: update.copy() for key, update in remembered(strategy).items()}
    moments = {name: array.copy() for name, array in inner.m_t.items()}  # type: ignore[attr-defined]

    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] in (1, 2, 3)
    after = strategy.start(grid, result.arrays, num_rounds=3)

    assert (flat(after.arrays) == flat(result.arrays)).all()
    assert len(memory) == 5
    assert all((remembered(strategy)[key] == memory[key]).all() for key in memory)
    assert all((inner.m_t[name] == moments[name]).all() for name in moments)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("needed", "is_void"), [(1, False), (2, False), (3, True)])
def test_a_round_with_just_enough_replies_counts(needed: int, is_void: bool) -> None:
    grid = grid_of(5, app=client_app([1] * 5))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] in (1, 2, 3)
    limits = Limits(min_replies=needed)
    strategy = CohortStrategy(only_training(), SizeClustered(5), seed=0, limits=limits)

    result = strategy.start(grid, model(), num_rounds=1)

    assert bool((flat(result.arrays) == 1.0).all()) is is_void


def test_void_rounds_with_a_usable_reply_do_not_end_training() -> None:
    grid = grid_of(5, app=client_app([1] * 5))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] != 0
    limits = Limits(min_replies=2, give_up_after=2)
    strategy = CohortStrategy(only_training(), SizeClustered(5), seed=0, limits=limits)

    strategy.start(grid, model(), num_rounds=5)

    assert strategy.rounds_done == 5


def void_rounds(rule: OnFailure) -> int:
    """Three of five clients fail and two replies are needed: count the rounds that are void."""
    grid = grid_of(5, app=client_app([1] * 5))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] in (0, 1, 2)
    limits = Limits(min_replies=2)
    strategy = CohortStrategy(
        only_training(), SizeClustered(2), seed=0, on_failure=rule, tries=100, limits=limits
    )
    models: list[Any] = []
    strategy.start(
        grid, model(), num_rounds=8, evaluate_fn=lambda number, arrays: models.append(flat(arrays))
    )
    return sum(bool((before == after).all()) for before, after in pairwise(models))


def test_redrawn_clients_count_among_the_replies() -> None:
    assert void_rounds("keep") > void_rounds("redraw")
