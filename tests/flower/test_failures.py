"""Clients that fail: what becomes of their weight, and that broken replies reach nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedcohort import (
    Multinomial,
    Poisson,
    Population,
    Recipe,
    SimilarityClustered,
    SizeClustered,
    Uniform,
)
from fedcohort.designs import SizeClusteredDesign
from fedcohort.errors import SelectorError
from fedcohort.flower import CohortStrategy
from fedcohort.selector.settings import OnFailure
from flower.federation import (
    SIZES,
    client_app,
    counts_of,
    flat,
    grid_of,
    in_its_own_loop,
    layers,
    model,
    one_round,
    remembered,
    update_of,
    weights_of,
)
from flower.in_process import InProcessGrid
from populations import rng

#: In the failing grid these clients never train.
DEAD = {1, 3}


def failing_grid() -> InProcessGrid:
    grid = grid_of()
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] in DEAD
    return grid


def test_kept_weight_stays_on_the_model() -> None:
    strategy, grid = CohortStrategy(FedAvg(), SizeClustered(4), seed=0), failing_grid()
    for number in range(1, 10):
        messages = strategy.configure_train(number, model(), ConfigRecord(), grid)
        weights = {int(key): w for key, w in weights_of(strategy).items()}
        moved, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))

        expected = 1.0 + sum(w * update_of(k) for k, w in weights.items() if k not in DEAD)
        result = flat(model()) if moved is None else flat(moved)
        assert result == pytest.approx(expected, abs=1e-6)


def test_where_all_fail_the_model_stays() -> None:
    grid = grid_of()
    grid.fails = lambda node, kind: kind == "train"

    for rule in ("keep", "redraw", "renormalise"):
        strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0, on_failure=rule, tries=2)
        assert one_round(in_its_own_loop(strategy), grid) is None


def test_renormalising_divides_by_what_is_left() -> None:
    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0, on_failure="renormalise")
    grid = failing_grid()
    messages = strategy.configure_train(1, model(), ConfigRecord(), grid)
    left = {int(k): w for k, w in weights_of(strategy).items() if int(k) not in DEAD}

    moved, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))

    assert moved is not None
    expected = 1.0 + sum(w * update_of(k) for k, w in left.items()) / sum(left.values())
    assert flat(moved) == pytest.approx(expected, abs=1e-6)


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.integers(1, 3),
    st.sets(st.integers(0, 3)),
)
def test_the_law_of_redrawing_is_unbiased_given_who_can_be_reached(
    sizes: list[int], m: int, reachable: set[int]
) -> None:
    """Enumerate the plan's rows and every replacement, in fractions: E[w | R] = p / p(R)."""
    total, alive = sum(sizes), sorted(set(range(len(sizes))) & reachable)
    if not alive:
        return
    units = SizeClusteredDesign(Population(sizes), m, rng=rng()).plan.units.toarray().tolist()
    within = sum(sizes[i] for i in alive)
    mean = [Fraction(0)] * len(sizes)
    for draws in product(range(len(sizes)), repeat=m):
        chance = Fraction(1)
        for row, client in zip(units, draws, strict=True):
            chance *= Fraction(row[client], total)
        for client in draws:
            for stand_in in [client] if client in alive else alive:
                share = Fraction(1) if client in alive else Fraction(sizes[stand_in], within)
                mean[stand_in] += chance * share / m

    assert mean == [Fraction(n, within) if i in alive else 0 for i, n in enumerate(sizes)]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [SizeClustered(4), Multinomial(4)], ids=repr)
def test_redrawing_is_unbiased_given_who_can_be_reached(
    recipe: SizeClustered | Multinomial,
) -> None:
    """4,000 rounds, false alarm 1e-6 over four clients; sees a bias of 7 % of the smallest one."""
    strategy = CohortStrategy(FedAvg(), recipe, seed=1, on_failure="redraw", tries=30)
    grid, seen = failing_grid(), []
    in_its_own_loop(strategy)
    for number in range(1, 4001):
        messages = strategy.configure_train(number, model(), ConfigRecord(), grid)
        now = strategy._round
        assert now is not None
        now.take(grid.send_and_receive(messages), strategy._keys_by_node(counts_of(strategy)))
        strategy._ask_others(now)
        settled = strategy.selector.settle(now.answers.answered)
        weights = dict(zip(map(str, settled.ids), settled.weights.tolist(), strict=True))
        seen.append([weights.get(str(k), 0.0) for k in range(len(SIZES))])
        strategy.selector.skip()

    values = np.array(seen)
    alive = [k for k in range(len(SIZES)) if k not in DEAD and SIZES[k]]
    importance = np.array([SIZES[k] for k in alive]) / sum(SIZES[k] for k in alive)
    assert values.sum(axis=1) == pytest.approx(1.0)
    errors = values[:, alive].mean(axis=0) - importance
    spread = values[:, alive].std(axis=0, ddof=1) / np.sqrt(len(values))
    assert (np.abs(errors) < norm.isf(1e-6 / 2 / len(alive)) * spread).all()


def test_a_redraw_asks_nobody_twice() -> None:
    """Of four clients all but the smallest fail: each is asked once, and it gets all four draws."""
    grid = grid_of(4, app=client_app([1, 5, 5, 5]))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] != 0
    strategy = CohortStrategy(FedAvg(), Multinomial(4), seed=0, on_failure="redraw", tries=200)

    moved = one_round(in_its_own_loop(strategy), grid)

    trained = [grid.partitions[node] for kind, node in grid.asked if kind == "train"]
    assert sorted(trained) == [0, 1, 2, 3]
    assert moved is not None
    assert flat(moved) == pytest.approx(1.0 + update_of(0), abs=1e-6)


def test_what_is_still_lost_after_the_tries_stays_on_the_model() -> None:
    """One of two clients answers; without a try the other's draws are lost."""
    grid = grid_of(2, app=client_app([1, 1]))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 1
    strategy = CohortStrategy(FedAvg(), SizeClustered(2), seed=0, on_failure="redraw", tries=0)

    moved = one_round(in_its_own_loop(strategy), grid)

    assert moved is not None
    assert flat(moved) == pytest.approx(1.0 + 0.5 * update_of(0), abs=1e-6)


def test_only_draws_of_one_weight_can_be_redrawn() -> None:
    strategy = CohortStrategy(FedAvg(), Poisson(3), seed=0, on_failure="redraw")

    with pytest.raises(SelectorError, match=r"needs a design with equal weight per draw; Poisson"):
        in_its_own_loop(strategy).configure_train(1, model(), ConfigRecord(), grid_of())


def spoiled(kind: str) -> Callable[[int, RecordDict], RecordDict]:
    """Client 3 sends something else than a model."""
    vector = np.ones(10, dtype=np.float32)
    spoilt = {
        "nan": layers(vector * np.nan),
        "inf": layers(vector * np.inf),
        "shape": [np.ones((2, 3), dtype=np.float32), np.ones(4, dtype=np.float32)],
        "dtype": [part.astype(np.int64) for part in layers(vector)],
        "fewer": layers(vector)[:1],
    }

    def change(client: int, content: RecordDict) -> RecordDict:
        if client != 3:
            return content
        if kind == "no arrays":
            return RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        if kind == "no weight":
            return RecordDict({"arrays": content["arrays"], "metrics": MetricRecord({"x": 1})})
        return RecordDict({"arrays": ArrayRecord(spoilt[kind]), "metrics": content["metrics"]})

    return change


@pytest.mark.parametrize(
    "kind", ["nan", "inf", "shape", "dtype", "fewer", "no arrays", "no weight"]
)
def test_a_broken_reply_reaches_neither_the_model_nor_the_memory(kind: str) -> None:
    strategy = CohortStrategy(FedAvg(), SimilarityClustered(4), seed=0)
    grid = grid_of(app=client_app(change=spoiled(kind)))
    for number in range(1, 8):
        messages = strategy.configure_train(number, model(), ConfigRecord(), grid)
        assert strategy._round is not None
        now, weights = strategy._round.answers, weights_of(strategy)
        moved, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))

        expected = 1.0 + sum(w * update_of(int(k)) for k, w in weights.items() if k != "3")
        result = flat(model()) if moved is None else flat(moved)
        assert result == pytest.approx(expected, abs=1e-6)
        assert ("3" in now.failed) == ("3" in weights)
    assert len(remembered(strategy)) > 1
    assert "3" not in remembered(strategy)


def test_over_selection_takes_the_first_answers(tmp_path: Path) -> None:
    """Two draws of four count; replies come one at a time, low node numbers first."""
    log = tmp_path / "selections.jsonl"
    strategy = CohortStrategy(
        FedAvg(fraction_evaluate=0.0), SizeClustered(2), seed=0, extra=2, log_file=log
    )

    grid = grid_of()
    grid.is_slow = True

    strategy.start(grid, model(), num_rounds=12)

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == 12
    for counts, shares in ((line["drawn"], line["weights"]) for line in lines):
        order = sorted(counts, key=strategy.directory.connection_of)
        first, answered = [], 0
        for key in order:
            if answered < 2:
                first.append(key)
                answered += counts[key]
        assert sum(counts.values()) == 4
        assert shares == pytest.approx({key: counts[key] / answered for key in first})


def test_a_message_that_could_not_be_sent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower's grid returns None in the place of its id."""
    grid = grid_of()
    push, pulls = grid.push_messages, []

    def push_all_but_one(messages: Any) -> list[Any]:
        return [None, *list(push(messages))[1:]]

    def pull(ids: Any, original: Any = grid.pull_messages) -> Any:
        pulls.append(list(ids))
        assert len(pulls) < 100
        return original(ids)

    monkeypatch.setattr(grid, "push_messages", push_all_but_one)
    monkeypatch.setattr(grid, "pull_messages", pull)
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0, extra=1)

    strategy.start(grid, model(), num_rounds=2)

    assert all(each is not None for ids in pulls for each in ids)


@pytest.mark.parametrize(("extra", "rule"), [(-1, "keep"), (2, "redraw")])
def test_over_selection_that_makes_no_sense_is_refused(extra: int, rule: OnFailure) -> None:
    with pytest.raises(SelectorError, match="extra must be"):
        CohortStrategy(FedAvg(), SizeClustered(2), seed=0, extra=extra, on_failure=rule)


@pytest.mark.parametrize(
    "metrics",
    [
        {"num-examples": 1},
        {"num-examples": 1, "loss": 1.0, "more": 2.0},
        {"num-examples": 1, "loss": [1.0, 2.0]},
        {"num-examples": 1, "loss": float("nan")},
    ],
    ids=str,
)
@pytest.mark.parametrize("names", [("arrays", "metrics"), ("model", "numbers")], ids=str)
def test_other_metrics_or_names_end_nothing(
    metrics: dict[str, Any], names: tuple[str, str]
) -> None:
    def change(client: int, content: RecordDict) -> RecordDict:
        if client != 3:
            return content
        return RecordDict({names[0]: content["arrays"], names[1]: MetricRecord(metrics)})

    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0)
    grid = grid_of(app=client_app(change=change))
    messages = strategy.configure_train(1, model(), ConfigRecord(), grid)
    weights = weights_of(strategy)

    moved, averages = strategy.aggregate_train(1, grid.send_and_receive(messages))

    assert moved is not None
    assert averages is not None
    expected = 1.0 + sum(w * update_of(int(key)) for key, w in weights.items())
    assert flat(moved) == pytest.approx(expected, abs=1e-6)
    assert all(np.isfinite(value) for value in averages.values())


def test_a_wrapper_for_privacy_clips_updates_as_they_are() -> None:
    """One of four draws answers with an update of norm 100; clipped to 1 it moves by a quarter."""
    inner = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise_multiplier=0.0, clipping_norm=1.0, num_sampled_clients=4
    )
    strategy = CohortStrategy(inner, SizeClustered(4), seed=0)
    vector = np.full(10, 100 / np.sqrt(10))
    grid = grid_of(4, app=client_app([5, 5, 5, 5], update=lambda client: vector))
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] != 2

    moved = one_round(strategy, grid)

    assert moved is not None
    assert np.linalg.norm(flat(moved) - 1.0) == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize("rule", ["keep", "redraw"])
def test_an_error_that_comes_in_the_servers_name_keeps_its_reason(rule: OnFailure) -> None:
    """The SuperLink answers for a node that has gone, as node 1."""
    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0, on_failure=rule)
    in_its_own_loop(strategy)
    grid, failed = failing_grid(), dict[str, str]()
    grid.answers_for_nodes = True
    for number in range(1, 12):
        messages = strategy.configure_train(number, model(), ConfigRecord(), grid)
        assert strategy._round is not None
        now = strategy._round
        strategy.aggregate_train(number, grid.send_and_receive(messages))
        failed |= now.answers.failed

    assert failed == dict.fromkeys(map(str, DEAD), "error 6: node unavailable")


def test_a_stranger_cannot_answer_for_a_client() -> None:
    """Only errors are matched by the message they answer; models by the node they come from."""
    strategy, grid = CohortStrategy(FedAvg(), SizeClustered(4), seed=0), grid_of()
    replies = list(
        grid.send_and_receive(strategy.configure_train(1, model(), ConfigRecord(), grid))
    )
    for reply in replies:
        reply.metadata.__dict__["_src_node_id"] = 4242

    assert strategy.aggregate_train(1, replies)[0] is None


@pytest.mark.parametrize("recipe", [Uniform(4), Poisson(4), SizeClustered(4)], ids=repr)
def test_training_goes_on_with_whoever_is_left(recipe: Recipe) -> None:
    strategy, grid = CohortStrategy(FedAvg(), recipe, seed=0), grid_of()
    one_round(strategy, grid, 1)

    keep = [node for node, client in grid.partitions.items() if client in (0, 1)]
    grid.partitions = {node: grid.partitions[node] for node in keep}
    for number in range(2, 8):
        one_round(strategy, grid, number)

    assert set(strategy.directory.present) == {"0", "1"}
    assert {str(key) for key in strategy.selector.clients} == set("012345")


def test_with_nobody_left_the_model_stays() -> None:
    strategy, grid = CohortStrategy(FedAvg(), SizeClustered(4), seed=0), grid_of()
    one_round(strategy, grid, 1)
    grid.partitions = {node: client for node, client in grid.partitions.items() if client == 5}

    drawn = strategy.selections.summary()
    assert one_round(strategy, grid, 2) is None  # client 5 has no samples
    grid.partitions = {}
    assert one_round(strategy, grid, 3) is None
    assert strategy.selections.summary() == drawn  # nobody was to be expected


def test_metrics_of_a_wrapped_strategy_are_the_means_of_those_that_answered() -> None:
    """The lost weight goes along as a client that did not move; it has no metrics of its own."""
    inner = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise_multiplier=0.0, clipping_norm=1e6, num_sampled_clients=4
    )
    strategy, grid = CohortStrategy(inner, SizeClustered(4), seed=0), failing_grid()
    messages = strategy.configure_train(1, model(), ConfigRecord(), grid)
    left = {int(k): w for k, w in weights_of(strategy).items() if int(k) not in DEAD}

    _, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))

    assert metrics is not None
    mean = sum(client * weight for client, weight in left.items()) / sum(left.values())
    assert len(left) > 1
    assert metrics["loss"] == pytest.approx(mean)


def test_evaluation_does_not_wait_for_nodes_that_have_gone() -> None:
    inner = FedAvg(min_available_nodes=6, min_evaluate_nodes=6)
    strategy, grid = CohortStrategy(inner, SizeClustered(3), seed=0), grid_of()
    one_round(strategy, grid)
    grid.partitions.popitem()

    messages = list(strategy.configure_evaluate(1, model(), ConfigRecord(), grid))

    assert len(messages) == 5
    assert (inner.min_available_nodes, inner.min_evaluate_nodes) == (6, 6)


def test_over_selection_does_not_count_broken_replies() -> None:
    grid = grid_of(app=client_app(change=spoiled("nan")))
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(1), seed=0, extra=5)

    result = strategy.start(grid, model(), num_rounds=6)

    assert result.arrays is not None
    assert np.isfinite(flat(result.arrays)).all()
    assert (flat(result.arrays) != 1.0).any()


@pytest.mark.parametrize("estimator", ["plain", "difference"])
@pytest.mark.parametrize("recipe", [SizeClustered(4), SimilarityClustered(4), Poisson(3)], ids=repr)
def test_a_huge_update_is_scaled_and_not_rejected(
    recipe: Recipe, estimator: Any, tmp_path: Path
) -> None:
    """Client 3's update is a million times as large; clients 0 to 2 are lost now and then."""
    scale = {3: 1e6}
    app = client_app(update=lambda client: scale.get(client, 1.0) * update_of(client))
    grid, log = grid_of(app=app), tmp_path / "log"
    strategy = CohortStrategy(
        FedAvg(), recipe, seed=0, estimator=estimator, max_norm=50.0, log_file=log
    )
    in_its_own_loop(strategy)
    updates = {str(k): update_of(k).astype(np.float64) for k in range(len(SIZES))}
    updates["3"] *= 50.0 / np.linalg.norm(updates["3"])
    for number in range(1, 9):
        messages = strategy.configure_train(number, model(), ConfigRecord(), grid)
        now = strategy._round
        assert now is not None
        replies = list(grid.send_and_receive(messages))[number % 2 :]
        with np.errstate(all="raise"):
            moved, _ = strategy.aggregate_train(number, replies)

        if estimator == "plain":
            line = json.loads(log.read_text().splitlines()[-1])
            step = sum(w * updates[each] for each, w in line["weights"].items())
            result = flat(model()) if moved is None else flat(moved)
            # Some roundings in float32 of numbers up to 50.
            assert result == pytest.approx(1.0 + step, abs=50 * 2**-20)
            assert line["scaled"] == [each for each in ["3"] if each in line["weights"]]
        assert "3" not in [each for each, why in now.answers.failed.items() if "large" in why]
    assert any(json.loads(line)["scaled"] for line in log.read_text().splitlines())
