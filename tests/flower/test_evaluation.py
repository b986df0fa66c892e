"""Evaluation by clients: which replies count, what is averaged, and cohorts of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcohort import Multinomial, Population, Selector, SizeClustered
from fedcohort.designs import SizeClusteredDesign
from fedcohort.flower import CohortStrategy, Limits
from fedcohort.streams import Stream, stream
from flower.federation import SIZES, client_app, drawn, flat, grid_of, model, update_of
from flower.in_process import InProcessGrid
from populations import rng
from scripted_recipes import Scripted

#: Client k evaluates k + 1 samples.
Answer = Callable[[int], Any]
EVERYONE = range(len(SIZES))


def usual(client: int) -> dict[str, Any]:
    return {
        "num-examples": client + 1,
        "loss": 0.5 + client**2,
        "accuracies": [float(client), 1.0],
    }


def evaluating_app(answer: Answer = usual, sizes: list[int] = SIZES, **more: Any) -> ClientApp:
    """Make an app whose clients evaluate: ``answer`` gives their metrics, or a whole content."""
    app = client_app(sizes, **more)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        found = answer(int(context.node_config["partition-id"]))
        is_whole = isinstance(found, RecordDict)
        content = found if is_whole else RecordDict({"metrics": MetricRecord(found)})
        return Message(content, reply_to=message)

    return app


def but(client: int, other: Any) -> Answer:
    """Let one client answer something else."""
    return lambda k: other if k == client else usual(k)


def mean(name: str, clients: Sequence[int]) -> Any:
    """Return the mean over clients, weighted by the samples that they evaluate."""
    weights = np.array([usual(k)["num-examples"] for k in clients], dtype=float)
    return (weights / weights.sum()) @ np.array([usual(k)[name] for k in clients])


def evaluated(grid: InProcessGrid, rounds: int = 2, **more: Any) -> list[dict[str, Any]]:
    """Train; return what each round's evaluation gave."""
    inner = more.pop("inner", None) or FedAvg()
    strategy = CohortStrategy(inner, more.pop("recipe", SizeClustered(3)), seed=0, **more)
    result = strategy.start(grid, model(), num_rounds=rounds)
    assert strategy.rounds_done == rounds
    assert (flat(result.arrays) != 1.0).any()
    return [dict(result.evaluate_metrics_clientapp.get(n, {})) for n in range(1, rounds + 1)]


def test_metrics_are_averaged_by_the_samples_that_clients_evaluate() -> None:
    for found in evaluated(grid_of(app=evaluating_app())):
        assert set(found) == {"loss", "accuracies"}
        assert found["loss"] == pytest.approx(mean("loss", EVERYONE), rel=1e-12)
        assert found["accuracies"] == pytest.approx(mean("accuracies", EVERYONE), rel=1e-12)


ALL, OTHERS = list(EVERYONE), [k for k in EVERYONE if k != 3]
LOSS, PARTS = usual(3)["loss"], usual(3)["accuracies"]


@pytest.mark.parametrize(
    ("bad", "with_loss", "with_accuracies"),
    [
        ({"num-examples": 4, "accuracies": PARTS}, OTHERS, ALL),
        ({"num-examples": 4, "loss": LOSS}, ALL, OTHERS),
        ({"num-examples": 4, "loss": math.nan, "accuracies": PARTS}, OTHERS, ALL),
        ({"num-examples": 4, "loss": math.inf, "accuracies": PARTS}, OTHERS, ALL),
        ({"num-examples": 4, "loss": [LOSS], "accuracies": PARTS}, OTHERS, ALL),
        ({"num-examples": 4, "loss": LOSS, "accuracies": [1.0, 2.0, 3.0]}, ALL, OTHERS),
        ({"num-examples": 4, "loss": LOSS, "accuracies": []}, ALL, OTHERS),
        ({"num-examples": 4, "loss": LOSS, "accuracies": [1.0, math.nan]}, ALL, OTHERS),
        ({"num-examples": 4, "loss": LOSS, "accuracies": 1.0}, ALL, OTHERS),
        ({"num-examples": 4}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": -5}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": math.nan}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": math.inf}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": 1e308}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": 10**12 + 1}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": 3.5}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": 4.0}, ALL, ALL),
        ({**usual(3), "num-examples": [4]}, OTHERS, OTHERS),
        ({**usual(3), "num-examples": 0}, OTHERS, OTHERS),
        ({"loss": LOSS, "accuracies": PARTS}, OTHERS, OTHERS),
        ({}, OTHERS, OTHERS),
        (RecordDict(), OTHERS, OTHERS),
        (RecordDict({name: MetricRecord(usual(3)) for name in "ab"}), OTHERS, OTHERS),
        (RecordDict({"another name": MetricRecord(usual(3))}), ALL, ALL),
    ],
    ids=str,
)
def test_one_bad_reply_ends_nothing_and_each_mean_is_over_those_that_have_the_metric(
    bad: Any, with_loss: list[int], with_accuracies: list[int]
) -> None:
    for found in evaluated(grid_of(app=evaluating_app(but(3, bad)))):
        assert set(found) == {"loss", "accuracies"}
        assert found["loss"] == pytest.approx(mean("loss", with_loss), rel=1e-12)
        assert found["accuracies"] == pytest.approx(mean("accuracies", with_accuracies), rel=1e-12)


def test_a_metric_that_only_one_client_has_is_its_own_mean() -> None:
    for found in evaluated(grid_of(app=evaluating_app(but(3, {**usual(3), "more": 7.5})))):
        assert found["more"] == 7.5
        assert found["loss"] == pytest.approx(mean("loss", ALL), rel=1e-12)


def test_an_error_of_one_client_is_logged_and_the_others_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = grid_of(app=evaluating_app())
    grid.fails = lambda node, kind: kind == "evaluate" and grid.partitions[node] == 3

    for found in evaluated(grid):
        assert found["loss"] == pytest.approx(mean("loss", OTHERS), rel=1e-12)
    line = "evaluation in round 2: 1 of 6 clients failed (3): error 6: node unavailable"
    assert caplog.messages.count(line) == 1


def test_a_bad_reply_is_logged_with_what_it_needs(caplog: pytest.LogCaptureFixture) -> None:
    evaluated(grid_of(app=evaluating_app(but(3, {**usual(3), "num-examples": -5}))), rounds=1)

    assert caplog.messages.count(
        "evaluation in round 1: 1 of 6 clients failed (3): its 'num-examples' must be a whole "
        "number from 0 to 10^12; got -5"
    )


@pytest.mark.parametrize(
    ("limits", "counted"),
    [
        (None, 45),  # half of all samples, where ten clients have some
        (Limits(max_share=0.25), 15),
        (Limits(max_size=30), 30),
        (Limits(max_share=1.0), 10**12),
    ],
    ids=str,
)
def test_the_samples_that_a_client_says_it_evaluated_are_bounded_as_sizes_are(
    limits: Limits | None, counted: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Client k of ten evaluates k + 1 samples, 45 in all but client 9's, which claims 10^12."""
    grid = grid_of(10, app=evaluating_app(but(9, {**usual(9), "num-examples": 10**12}), [10] * 10))
    weights = np.array([*range(1, 10), counted], dtype=float)
    losses = [usual(k)["loss"] for k in range(10)]

    for found in evaluated(grid, limits=limits):
        assert found["loss"] == pytest.approx(weights @ losses / weights.sum(), rel=1e-12)
    line = f"client '9' claims 1000000000000 samples; it counts as {counted}"
    assert (line in caplog.messages) == (counted < 10**12)


def test_among_few_an_evaluation_of_one_client_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    evaluated(grid_of(app=evaluating_app(but(3, {**usual(3), "num-examples": 10**6}))), rounds=1)

    assert "client '3' claims 1000000 of all 1000017 samples: nearly all weight is on it" in (
        caplog.text
    )


@pytest.mark.parametrize("more", [{}, {"evaluate": 3}], ids=str)
def test_where_all_evaluations_fail_training_goes_on_without_metrics(more: Any) -> None:
    grid = grid_of(app=evaluating_app(), fails=lambda node, kind: kind == "evaluate")

    assert evaluated(grid, **more) == [{}, {}]


def test_where_nobody_evaluated_a_sample_training_goes_on_without_metrics() -> None:
    grid = grid_of(app=evaluating_app(lambda client: {**usual(client), "num-examples": 0}))

    assert evaluated(grid) == [{}, {}]


@pytest.mark.parametrize("more", [{}, {"evaluate": 6}], ids=str)
def test_a_function_of_the_users_gets_the_replies_and_their_weights(more: Any) -> None:
    seen: list[dict[float, float]] = []

    def largest(contents: list[RecordDict], key: str) -> MetricRecord:
        records = [next(iter(content.metric_records.values())) for content in contents]
        seen.append({float(each["loss"]): float(each[key]) for each in records})  # type: ignore[arg-type]
        return MetricRecord({"largest loss": max(seen[-1])})

    inner = FedAvg(evaluate_metrics_aggr_fn=largest)
    strategy = CohortStrategy(inner, SizeClustered(3), seed=0, **more)

    result = strategy.start(grid_of(app=evaluating_app()), model(), num_rounds=1)

    found = result.evaluate_metrics_clientapp[1]
    assert found["largest loss"] == max(seen[0])
    assert len(seen) == 1
    if more:
        assert sum(seen[0].values()) == pytest.approx(1.0)
    else:
        assert seen[0] == {usual(k)["loss"]: usual(k)["num-examples"] for k in EVERYONE}


def product_of_means(contents: list[RecordDict], key: str) -> MetricRecord:
    """Average a product: it needs both metrics of every reply."""
    records: list[Any] = [next(iter(content.metric_records.values())) for content in contents]
    total = sum(record[key] for record in records)
    products = [record[key] * record["loss"] * record["accuracies"][0] for record in records]
    return MetricRecord({"product": sum(products) / total, "replies": len(records)})


@pytest.mark.parametrize(
    "bad",
    [
        {"num-examples": 4, "loss": 1.0},
        {"num-examples": 4},
        {"num-examples": 4, "loss": math.nan, "accuracies": [1.0, 1.0]},
        {"num-examples": 4, "loss": 1.0, "accuracies": []},
    ],
    ids=str,
)
def test_a_function_of_the_users_gets_the_replies_that_are_complete(bad: dict[str, Any]) -> None:
    weights = np.array([k + 1 for k in OTHERS])
    products = [usual(k)["loss"] * usual(k)["accuracies"][0] for k in OTHERS]
    inner = FedAvg(evaluate_metrics_aggr_fn=product_of_means)

    for found in evaluated(grid_of(app=evaluating_app(but(3, bad))), inner=inner):
        assert found["product"] == pytest.approx(weights @ products / weights.sum(), rel=1e-12)
        assert found["replies"] == 5


def test_a_function_of_the_users_gets_a_reply_with_more_metrics_too() -> None:
    inner = FedAvg(evaluate_metrics_aggr_fn=product_of_means)
    grid = grid_of(app=evaluating_app(but(3, {**usual(3), "more": 1.0})))

    assert all(found["replies"] == 6 for found in evaluated(grid, inner=inner))


# A cohort of its own


def outcomes(sizes: list[int], k: int) -> dict[tuple[int, ...], Fraction]:
    """Return all draws of k clients by size, and their probabilities."""
    units = SizeClusteredDesign(Population(sizes), k, rng=rng()).plan.units.toarray().tolist()
    found = {}
    for draws in product(range(len(sizes)), repeat=k):
        chance = math.prod(
            Fraction(row[i], sum(sizes)) for row, i in zip(units, draws, strict=True)
        )
        if chance:
            found[draws] = Fraction(chance)
    return found


def reported(sizes: list[int], k: int, losses: list[float]) -> list[tuple[float, Any]]:
    """Evaluate every cohort that can be drawn once; return its probability and the metrics."""
    law = outcomes(sizes, k)

    def answer(client: int) -> dict[str, Any]:
        return {"num-examples": 10**9 if client == 0 else 1, "loss": losses[client]}

    grid = grid_of(len(sizes), app=evaluating_app(answer, sizes))
    strategy = CohortStrategy(FedAvg(), SizeClustered(2), seed=0, evaluate=k)
    script = Scripted(k, draws=tuple(law))
    strategy._evaluation._selector = Selector(script, {}, seed=0, on_failure="renormalise")

    result = strategy.start(grid, model(), num_rounds=len(law))

    metrics = [result.evaluate_metrics_clientapp[n] for n in range(1, len(law) + 1)]
    return [(float(chance), each) for chance, each in zip(law.values(), metrics, strict=True)]


@pytest.mark.parametrize(
    ("sizes", "k"),
    [([5, 3, 2], 2), ([1, 1, 1], 3), ([7, 1, 2, 4], 3), ([10, 1], 4), ([3, 9, 1], 1)],
)
def test_the_reported_mean_is_unbiased_and_its_standard_error_not_too_small(
    sizes: list[int], k: int
) -> None:
    """Enumerate all cohorts: E[mean] = sum p_i x_i, and E[s^2] is the variance or larger.

    That client 0 says it has 10^9 samples changes nothing. Sums of at most 64 numbers below 10
    are exact to 1e-13.
    """
    losses = [0.5, 8.0, -3.0, 1.25][: len(sizes)]
    importance = np.array(sizes) / sum(sizes)

    found = reported(sizes, k, losses)

    chances = np.array([chance for chance, _ in found])
    means = np.array([each["loss"] for _, each in found])
    assert chances @ means == pytest.approx(importance @ losses, abs=1e-12)
    if k == 1:
        assert all("loss-standard-error" not in each for _, each in found)
        return
    squares = np.array([each["loss-standard-error"] ** 2 for _, each in found])
    variance = chances @ (means - importance @ losses) ** 2
    assert chances @ squares >= variance - 1e-12


def test_the_standard_error_is_that_of_the_draws() -> None:
    """Losses of 1 and 4, each drawn once: s^2 = (1.5^2 + 1.5^2) / 2; one client alone: 0."""
    for _, found in reported([1, 1], 2, [1.0, 4.0]):
        assert (found["loss"], found["loss-standard-error"]) == (2.5, 1.5)
    for _, found in reported([4, 0], 3, [2.0, 9.0]):
        assert (found["loss"], found["loss-standard-error"]) == (2.0, 0.0)


def asked_to(grid: InProcessGrid, kind: str) -> list[int]:
    return [grid.partitions[node] for type_, node in grid.asked if type_ == kind]


def evaluators(
    strategy: CohortStrategy, rounds: int, arrays: ArrayRecord | None = None, **more: Any
) -> list[list[int]]:
    """Train; return who evaluated in each round."""
    grid, found = grid_of(app=evaluating_app()), list[list[int]]()

    def note(number: int, arrays: ArrayRecord) -> None:
        found.append(sorted(asked_to(grid, "evaluate")))
        grid.asked.clear()

    strategy.start(grid, arrays or model(), num_rounds=rounds, evaluate_fn=note, **more)
    return found[1:]


def test_evaluation_cohorts_are_drawn_by_size_in_a_stream_of_their_own() -> None:
    strategy = CohortStrategy(FedAvg(), SizeClustered(3), seed=5, evaluate=3)
    seed = int(stream(5, use=Stream.EVALUATION).integers(2**63))
    twin = Selector(SizeClustered(3), {str(k): n for k, n in enumerate(SIZES)}, seed=seed)
    expected = []
    for _ in range(10):
        expected.append(sorted(int(each) for each in twin.draw().ids))
        twin.skip()

    assert evaluators(strategy, 10) == expected


def test_evaluation_cohorts_are_not_the_training_cohorts() -> None:
    strategy = CohortStrategy(FedAvg(), SizeClustered(3), seed=5, evaluate=3)
    grid, trained = grid_of(app=evaluating_app()), list[list[int]]()

    def note(number: int, arrays: ArrayRecord) -> None:
        trained.append(sorted(asked_to(grid, "train")))
        grid.asked.clear()

    strategy.start(grid, model(), num_rounds=10, evaluate_fn=note)
    twin = CohortStrategy(FedAvg(), SizeClustered(3), seed=5, evaluate=3)

    assert evaluators(twin, 10) != trained[1:]


def test_evaluation_changes_no_training_cohort() -> None:
    strategies = [
        CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=5, evaluate=k)
        for k in (None, 2, 5)
    ]
    for strategy in strategies:
        strategy.start(grid_of(app=evaluating_app()), model(), num_rounds=6)

    assert drawn(strategies[0]) == drawn(strategies[1]) == drawn(strategies[2])


def test_evaluation_cohorts_go_on_after_a_restart(tmp_path: Path) -> None:
    whole, first, second = (
        CohortStrategy(FedAvg(), SizeClustered(3), seed=5, evaluate=2) for _ in range(3)
    )
    expected = evaluators(whole, 9)

    before = evaluators(first, 4)
    first.save(tmp_path / "state", model())
    arrays = second.load(tmp_path / "state")
    after = evaluators(second, 5, arrays)

    assert before + after == expected


def test_a_client_that_does_not_evaluate_leaves_its_weight_to_the_others() -> None:
    """Two clients of equal size are both drawn; one fails."""
    grid = grid_of(2, app=evaluating_app(sizes=[5, 5]))
    grid.fails = lambda node, kind: kind == "evaluate" and grid.partitions[node] == 1

    for found in evaluated(grid, evaluate=2):
        assert found["loss"] == usual(0)["loss"]
        assert "loss-standard-error" not in found


def test_a_client_that_was_drawn_twice_is_asked_once_and_counts_twice() -> None:
    """Sizes 2 and 1 and three draws: the first client is drawn twice."""
    grid = grid_of(2, app=evaluating_app(sizes=[2, 1]))

    for found in evaluated(grid, evaluate=3):
        assert found["loss"] == pytest.approx((2 * 0.5 + 1.5) / 3, rel=1e-12)
        assert found["loss-standard-error"] == pytest.approx(1 / 3, rel=1e-12)
    assert sorted(asked_to(grid, "evaluate")) == [0, 0, 1, 1]


@pytest.mark.parametrize("more", [{}, {"evaluate": 4}], ids=str)
def test_only_eligible_clients_evaluate(more: Any) -> None:
    grid = grid_of(app=evaluating_app())

    evaluated(grid, rounds=6, eligible={"0", "3", "4"}, **more)

    assert set(asked_to(grid, "evaluate")) == {0, 3, 4}


def test_clients_evaluate_although_the_inner_strategy_would_evaluate_on_none() -> None:
    grid = grid_of(app=evaluating_app())

    found = evaluated(grid, inner=FedAvg(fraction_evaluate=0.0), evaluate=4)

    assert all("loss" in each for each in found)


# Metrics of training


def reporting(client: int, content: RecordDict) -> RecordDict:
    """Client 3 omits one metric, and has another that nobody else has."""
    metrics = next(iter(content.metric_records.values()))
    if client == 3:
        del metrics["loss"]
        metrics["more"] = 7.5
    metrics["seconds"] = float(client)
    return content


def test_a_training_metric_that_one_client_omits_is_averaged_over_the_others(
    tmp_path: Path,
) -> None:
    """Five clients of equal size and five draws: every client has a fifth of the weight."""
    grid = grid_of(5, app=client_app([1] * 5, change=reporting))
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(5), seed=0)

    result = strategy.start(grid, model(), num_rounds=3)

    for found in result.train_metrics_clientapp.values():
        assert found["loss"] == pytest.approx((0 + 1 + 2 + 4) / 4, rel=1e-12)
        assert found["seconds"] == pytest.approx(2.0, rel=1e-12)
        assert found["more"] == 7.5


def test_a_training_function_of_the_users_gets_the_replies_that_are_complete() -> None:
    """It sees arrays as well; client 3, which omits a metric, still trains."""

    def losses_times_seconds(contents: list[RecordDict], key: str) -> MetricRecord:
        assert all(len(content.array_records) == 1 for content in contents)
        records: list[Any] = [next(iter(content.metric_records.values())) for content in contents]
        return MetricRecord({"sum": sum(record["loss"] * record["seconds"] for record in records)})

    grid = grid_of(5, app=client_app([1] * 5, change=reporting))
    inner = FedAvg(fraction_evaluate=0.0, train_metrics_aggr_fn=losses_times_seconds)
    strategy = CohortStrategy(inner, SizeClustered(5), seed=0)

    result = strategy.start(grid, model(), num_rounds=2)

    assert [dict(each) for each in result.train_metrics_clientapp.values()] == [{"sum": 21.0}] * 2
    expected = 1.0 + 2 * sum(update_of(k) / 5 for k in range(5))
    assert flat(result.arrays) == pytest.approx(expected, abs=1e-6)


def test_training_metrics_are_weighted_by_the_draws() -> None:
    """Sizes 3, 1 and four draws: client 0 weighs three quarters; client 1 omits nothing."""
    grid = grid_of(2, app=client_app([3, 1]))
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), Multinomial(4), seed=0)

    result = strategy.start(grid, model(), num_rounds=5)

    share = drawn(strategy)["1"] / 20
    means = [found["loss"] for found in result.train_metrics_clientapp.values()]
    assert np.mean(means) == pytest.approx(share, rel=1e-12)
