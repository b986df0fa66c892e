"""The difference estimator in Flower: exact against its definition, whatever happens to clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flwr

from fedcohort import (
    Auto,
    Difference,
    Multinomial,
    Poisson,
    Recipe,
    SizeClustered,
    Tournament,
    Uniform,
)
from fedcohort.errors import SelectorError
from fedcohort.flower import CohortStrategy
from flower.differences import THETA, TOLERANCE, Federation, Twin, update_in, updates_in
from flower.federation import (
    DIMENSION,
    SIZES,
    client_app,
    drawn,
    failed,
    flat,
    grid_of,
    layers,
    model,
    one_round,
)

ROUNDS = range(1, 13)
RECIPES: list[Recipe] = [
    Multinomial(8),
    SizeClustered(4),
    Poisson(3),
    Uniform(3, unbiased=True),
    Tournament(4),
    Auto(4),
]
INNERS: dict[str, Any] = {
    "FedAvg": flwr.FedAvg,
    "FedProx": lambda: flwr.FedProx(proximal_mu=0.1),
    # With tau = 1 a step is no steeper in its gradient than eta: errors do not grow.
    "FedAdam": lambda: flwr.FedAdam(tau=1.0),
    "FedYogi": lambda: flwr.FedYogi(tau=1.0),
    "FedAdagrad": lambda: flwr.FedAdagrad(tau=1.0),
    "FedAvgM": lambda: flwr.FedAvgM(server_momentum=0.5),
}


@pytest.mark.parametrize("shrink", [1.0, 0.5])
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_the_model_moves_by_the_estimator(recipe: Recipe, shrink: float) -> None:
    strategy = CohortStrategy(flwr.FedAvg(), recipe, seed=0, estimator=Difference(shrink))
    federation, twin = Federation(), Twin(shrink)
    totals, counts = list[float](), list[int]()
    for number in ROUNDS:
        now, moved = federation.play(strategy, number, model(THETA))

        updates = updates_in(number, now.weights)
        v = twin.aggregate(federation.importance(), now.weights, updates)
        assert moved is not None
        assert flat(moved) == pytest.approx(THETA + v, abs=TOLERANCE)
        totals.append(sum(now.weights.values()))
        counts += now.counts.values()
    assert max(totals) <= 2.0  # what the tolerance is derived from
    assert (max(counts) > 1) == isinstance(recipe, (Multinomial, SizeClustered, Tournament, Auto))
    assert (np.ptp(totals) > 0.1) == isinstance(recipe, (Poisson, Uniform))


def test_rows_of_low_rank_are_those_of_the_library() -> None:
    difference = Difference(0.7, keep="rank", rank=2)
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(4), seed=0, estimator=difference)
    federation = Federation()
    importance = np.array(list(federation.importance().values()))
    order = [int(key) for key in federation.importance()]
    reference = difference.memory(importance[np.argsort(order)], np.zeros(DIMENSION))
    for number in ROUNDS:
        now, moved = federation.play(strategy, number, model(THETA))

        clients = np.sort([int(key) for key in now.weights])
        weights = np.array([now.weights[str(client)] for client in clients])
        updates = np.array([update_in(number, int(client)) for client in clients], dtype=float)
        v = reference.aggregate(clients, weights, updates)
        reference.record(clients, updates)
        assert moved is not None
        assert flat(moved) == pytest.approx(THETA + v, abs=TOLERANCE)


@pytest.mark.parametrize("recipe", [SizeClustered(4), Poisson(1)], ids=repr)
@pytest.mark.parametrize("inner", INNERS.values(), ids=INNERS)
def test_every_inner_strategy_gets_the_estimate(inner: Any, recipe: Recipe) -> None:
    """Its twin gets one reply a round, which is the estimate; coins draw nobody now and then.

    An error of a round stays in both models, and a momentum of 0.5 doubles it; models stay below 4,
    where float32 rounds twice as much as below 2.
    """
    ours = CohortStrategy(inner(), recipe, seed=0, estimator="difference")
    v, empty = np.zeros(DIMENSION), 0
    lone_inner = inner()
    lone_inner.min_available_nodes = 1
    alone = CohortStrategy(lone_inner, SizeClustered(1), seed=0, sizes={"0": 1})
    single = grid_of(1, app=client_app([1], update=lambda client: v))
    federation, twin, arrays, reference = Federation(), Twin(), model(THETA), model(THETA)
    for number in ROUNDS:
        now, moved = federation.play(ours, number, arrays)
        updates = updates_in(number, now.weights)
        v = twin.aggregate(federation.importance(), now.weights, updates)
        expected = one_round(alone, single, number, reference)
        if not v.any():  # coins before anybody was drawn
            assert moved is None
            continue

        assert moved is not None
        assert expected is not None
        assert flat(moved) == pytest.approx(flat(expected), abs=4 * len(ROUNDS) * TOLERANCE)
        assert np.abs(flat(expected)).max() < 4
        arrays, reference, empty = moved, expected, empty + (not now.counts)
    assert (empty > 0) == isinstance(recipe, Poisson)


@pytest.mark.parametrize("inner", INNERS.values(), ids=INNERS)
@pytest.mark.parametrize("recipe", [Multinomial(8), Poisson(1)], ids=repr)
def test_without_a_memory_it_is_the_plain_aggregate(inner: Any, recipe: Recipe) -> None:
    """The largest client fails every other round, so that weights do not sum to 1 either.

    Both are float32 sums of the same numbers in another order: four roundings a round.
    """
    federation = Federation()
    largest = federation.node_of(3)
    federation.grid.fails = lambda node, kind: (
        kind == "train" and node == largest and federation.number % 2 == 0
    )
    plain = CohortStrategy(inner(), recipe, seed=1)
    ours = CohortStrategy(inner(), recipe, seed=1, estimator=Difference(shrink=0.0))
    ends, most = [], np.zeros(10, dtype=np.float32)
    for strategy in (plain, ours):
        arrays = ArrayRecord(layers(np.array([1e6, 0.1, 1e-6, 3, 0.7, *[0] * 5], np.float32)))
        for number in ROUNDS:
            arrays = federation.play(strategy, number, arrays)[1] or arrays
            most = np.maximum(most, np.abs(flat(arrays)).astype(np.float32))
        ends.append(flat(arrays))

    assert (np.abs(ends[0] - ends[1]) <= 4 * len(ROUNDS) * np.spacing(most)).all()
    assert failed(plain)["3"] > 0


def test_a_drawn_client_that_fails_counts_as_it_was_last() -> None:
    federation, twin = Federation(), Twin()
    strategy = CohortStrategy(flwr.FedAvg(), Multinomial(8), seed=0, estimator="difference")
    failing = federation.node_of(3)
    federation.grid.fails = lambda node, kind: (
        kind == "train" and node == failing and federation.number > 3
    )
    for number in ROUNDS:
        now, moved = federation.play(strategy, number, model(THETA))

        left = {key: w for key, w in now.weights.items() if key not in now.failed}
        v = twin.aggregate(federation.importance(), left, updates_in(number, left))
        assert moved is not None
        assert flat(moved) == pytest.approx(THETA + v, abs=TOLERANCE)
        assert ("3" in now.failed) == (number > 3 and "3" in now.counts)
    assert failed(strategy)["3"] > 3


def test_redraws_with_the_difference_estimator_are_refused_at_construction() -> None:
    with pytest.raises(SelectorError, match="'redraw' biases every estimator but the plain one"):
        CohortStrategy(
            flwr.FedAvg(), Multinomial(8), seed=0, estimator="difference", on_failure="redraw"
        )


def test_the_memory_follows_clients_that_leave_come_back_and_join() -> None:
    """The largest client leaves, comes back on another node; one more joins."""
    federation, twin = Federation(len(SIZES), [*SIZES, 40]), Twin()
    strategy = CohortStrategy(flwr.FedAvg(), Multinomial(8), seed=0, estimator="difference")
    for number in range(1, 25):
        if number == 6:
            del federation.grid.partitions[federation.node_of(3)]
        if number == 12:
            federation.grid.partitions[77] = 3
        if number == 18:
            federation.grid.partitions[5] = 6
        now, moved = federation.play(strategy, number, model(THETA))

        updates = updates_in(number, now.weights)
        v = twin.aggregate(federation.importance(), now.weights, updates)
        assert moved is not None
        assert flat(moved) == pytest.approx(THETA + v, abs=TOLERANCE)
    assert drawn(strategy)["3"] > 0
    assert drawn(strategy)["6"] > 0


def test_where_nobody_answers_the_model_stays_and_nothing_is_forgotten() -> None:
    federation, twin = Federation(), Twin()
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(4), seed=0, estimator="difference")
    federation.grid.fails = lambda node, kind: kind == "train" and federation.number == 2
    for number in (1, 2, 3):
        now, moved = federation.play(strategy, number, model(THETA))
        if number == 2:
            assert moved is None
            continue

        updates = updates_in(number, now.weights)
        v = twin.aggregate(federation.importance(), now.weights, updates)
        assert moved is not None
        assert flat(moved) == pytest.approx(THETA + v, abs=TOLERANCE)
