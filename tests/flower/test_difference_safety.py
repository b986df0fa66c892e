"""The difference estimator's memory: what never enters it, what it outlives, what it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flwr
from numpy.typing import NDArray

from fedcohort import (
    Difference,
    Multinomial,
    Poisson,
    Regression,
    SimilarityClustered,
    SizeClustered,
)
from fedcohort.errors import FlowerError, SelectorError
from fedcohort.flower import CohortStrategy, register_size_query
from flower.differences import THETA, TOLERANCE, Federation, update_in
from flower.federation import (
    DIMENSION,
    client_app,
    drawn,
    failed,
    flat,
    grid_of,
    in_its_own_loop,
    layers,
    model,
    one_round,
    update_of,
)
from flower.test_restart import INNERS

DIFFERENCES = [Difference(), Difference(0.5), Difference(keep="rank", rank=2)]


def estimator_state(strategy: CohortStrategy) -> dict[str, NDArray[Any]]:
    """Return the arrays of what the estimator remembers."""
    estimator = strategy.selector.estimator
    assert estimator is not None
    return estimator.state()


def remembered(strategy: CohortStrategy) -> dict[str, NDArray[Any]]:
    """Return h by client, of a memory that keeps whole updates."""
    ids = list(map(str, strategy.selector.population.ids))
    estimator = strategy.selector.estimator
    assert estimator is not None
    return dict(zip(ids, estimator.of(np.arange(len(ids))), strict=True))


def spoiled(value: float, dtype: Any = np.float32) -> Any:
    """Return an app in which client 3's update has ``value`` in one place from round 2 on."""
    numbers = [0]

    def update(client: int) -> NDArray[Any]:
        vector = update_of(client).astype(dtype)
        if client == 3 and numbers[0] > 1:
            vector[7] = value
        return vector

    return client_app(update=update), numbers


@pytest.mark.parametrize("difference", DIFFERENCES, ids=repr)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38, -3e38])
def test_nothing_that_is_not_finite_is_remembered(value: float, difference: Difference) -> None:
    """3e38 is finite: weights of 2 would stretch it, sums and squares of two leave float32."""
    app, numbers = spoiled(value)
    grid = grid_of(app=app)
    strategy = CohortStrategy(flwr.FedAvg(), Multinomial(8), seed=0, estimator=difference)
    in_its_own_loop(strategy)
    for number in range(1, 8):
        numbers[0] = number
        moved = one_round(strategy, grid, number)

        assert moved is None or np.isfinite(flat(moved)).all()
        assert all(
            np.isfinite(array).all()
            for name, array in estimator_state(strategy).items()
            if name != "head"
        )
    assert drawn(strategy)["3"] > 5
    if not np.isfinite(value):
        assert failed(strategy)["3"] > 1


def test_a_reply_that_is_scaled_is_remembered_scaled() -> None:
    app, numbers = spoiled(10.0)
    grid = grid_of(app=app)
    strategy = CohortStrategy(
        flwr.FedAvg(), Multinomial(8), seed=1, estimator="difference", max_norm=9.0
    )
    in_its_own_loop(strategy)
    for number in range(1, 6):
        numbers[0] = number
        one_round(strategy, grid, number)

    assert not failed(strategy)
    vector = update_of(3)
    vector[7] = 10.0
    # An ulp of 8: the client adds to a model of 1, and the update is scaled in float32.
    expected = 9.0 * vector / np.linalg.norm(vector)
    assert remembered(strategy)["3"] == pytest.approx(expected, abs=1e-6)


def test_a_reply_that_its_difference_would_stretch_too_far_is_a_failure() -> None:
    """In float16 the client goes from -6e4 to 6e4: 1.2e5 is more than its model can hold."""
    sign = [-1.0]
    app = client_app([5, 5], update=lambda client: np.full(DIMENSION, 6e4 * sign[0] * (1 - client)))
    grid, start = grid_of(2, app=app), ArrayRecord(layers(np.zeros(DIMENSION, np.float16)))
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(2), seed=1, estimator="difference")
    in_its_own_loop(strategy)
    first = one_round(strategy, grid, 1, start)
    sign[0] = 1.0

    second = one_round(strategy, grid, 2, start)

    assert first is not None
    assert drawn(strategy) == {"0": 2, "1": 2}
    assert failed(strategy) == {"0": 1}
    assert (remembered(strategy)["0"] == np.float32(np.float16(-6e4))).all()
    assert second is not None
    # H alone; the other client's difference is 0.
    assert flat(second) == pytest.approx(np.full(DIMENSION, -3e4), abs=8)


def test_a_round_whose_aggregate_is_dropped_is_not_remembered() -> None:
    """The square of 1e30 is infinite in float32: FedAdam's moments are put back."""
    app, numbers = spoiled(1e30)
    grid = grid_of(app=app)
    strategy = CohortStrategy(flwr.FedAdam(), SizeClustered(4), seed=0, estimator="difference")
    in_its_own_loop(strategy)
    numbers[0] = 1
    one_round(strategy, grid, 1)
    before = remembered(strategy)
    numbers[0] = 2

    assert one_round(strategy, grid, 2) is None
    after = remembered(strategy)
    assert all((after[key] == before[key]).all() for key in before)


def test_an_update_beyond_float32_is_a_failure() -> None:
    """A float64 model could hold 1e100, but not what is remembered of it."""
    app, numbers = spoiled(1e100, np.float64)
    start = ArrayRecord(layers(np.ones(DIMENSION)))
    strategy = CohortStrategy(flwr.FedAvg(), Multinomial(8), seed=1, estimator="difference")
    in_its_own_loop(strategy)
    numbers[0] = 2

    moved = one_round(strategy, grid_of(app=app), 1, start)

    assert failed(strategy) == {"3": 1}
    assert moved is not None
    assert (remembered(strategy)["3"] == 0).all()


def test_while_nothing_is_remembered_replies_go_on_as_they_came() -> None:
    """1e30 + (0.1 - 1e30) is not 0.1."""
    app = client_app([5, 5], change=lambda client, content: moved_to(0.1, content))
    start = ArrayRecord(layers(np.full(DIMENSION, 1e30)))
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(2), seed=1, estimator="difference")
    in_its_own_loop(strategy)

    moved = one_round(strategy, grid_of(2, app=app), 1, start)

    assert moved is not None
    assert (flat(moved) == 0.1).all()


def moved_to(value: float, content: RecordDict) -> RecordDict:
    arrays = ArrayRecord(layers(np.full(DIMENSION, value)))
    return RecordDict({"arrays": arrays, "metrics": content["metrics"]})


@pytest.mark.parametrize("difference", DIFFERENCES, ids=repr)
@pytest.mark.parametrize("inner", INNERS)
def test_a_restarted_server_ends_with_the_same_model_and_memory(
    inner: Any, difference: Difference, tmp_path: Path
) -> None:
    """Bit for bit: H is not summed again."""

    def train(strategy: CohortStrategy, arrays: ArrayRecord, rounds: int) -> ArrayRecord:
        def update(client: int) -> NDArray[Any]:
            assert strategy._round is not None
            return update_in(strategy._round.answers.number, client)

        grid = grid_of(app=client_app(update=update))
        end = strategy.start(grid, arrays, num_rounds=rounds).arrays
        assert end is not None
        return end

    uninterrupted, first, second = (
        CohortStrategy(
            inner(fraction_evaluate=0.0), SimilarityClustered(3), seed=1, estimator=difference
        )
        for _ in range(3)
    )
    whole = train(uninterrupted, model(), 16)
    middle = train(first, model(), 8)
    first.save(tmp_path / "state", model())
    second.load(tmp_path / "state")

    end = train(second, middle, 8)

    assert (flat(end) == flat(whole)).all()
    kept, expected = estimator_state(second), estimator_state(uninterrupted)
    assert second.selector.clients == uninterrupted.selector.clients
    assert kept.keys() == expected.keys()
    assert all((kept[name] == expected[name]).all() for name in expected)


def test_a_state_of_another_estimator_is_refused(tmp_path: Path) -> None:
    def strategy(estimator: Any) -> CohortStrategy:
        return CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1, estimator=estimator)

    strategy("difference").save(tmp_path / "state", model())

    strategy(Difference()).load(tmp_path / "state")
    with pytest.raises(SelectorError, match=r"another estimator, .*shrink.*; got None"):
        strategy("plain").load(tmp_path / "state")
    with pytest.raises(SelectorError, match="written with another estimator"):
        strategy(Difference(0.5)).load(tmp_path / "state")


def counting_app(federation: Federation) -> ClientApp:
    """Make an app whose model has a counter, by which client k goes k + 1 further."""
    app = ClientApp()
    sizes = federation.sizes
    register_size_query(app, lambda context: sizes[int(context.node_config["partition-id"])])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        parts = message.content.array_records["arrays"].to_numpy_ndarrays()
        moved = [parts[0] + client + 1, parts[1] + update_in(federation.number, client)]
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


@pytest.mark.parametrize("recipe", [SizeClustered(4), Poisson(1)], ids=repr)
def test_counters_are_aggregated_plainly(recipe: Any) -> None:
    """They are first among the arrays, so that the floats' places in an update are not theirs."""
    federation = Federation()
    federation.grid.app = counting_app(federation)
    plain = CohortStrategy(flwr.FedAvg(), recipe, seed=0)
    ours = CohortStrategy(flwr.FedAvg(), recipe, seed=0, estimator="difference")
    start = ArrayRecord([np.array([100, 200]), np.full(DIMENSION, THETA, np.float32)])
    differed, empty = 0, 0
    for number in range(1, 13):
        ends = [federation.play(each, number, start) for each in (plain, ours)]
        (now, expected), (_, moved) = ends
        parts = (moved or start).to_numpy_ndarrays()
        counters = (expected or start).to_numpy_ndarrays()[0]

        assert parts[0].dtype == np.int64
        assert (parts[0] == counters).all()
        differed += bool(np.abs(parts[1] - (expected or start)["1"].numpy()).max() > TOLERANCE)
        empty += moved is not None and not now.counts
    assert differed > 6
    assert (empty > 0) == isinstance(recipe, Poisson)


def test_metrics_of_a_round_without_clients_are_not_asked_for() -> None:
    """A user's own function wants a loss, which a round of the memory alone has not."""

    def losses(contents: list[RecordDict], weight_key: str) -> MetricRecord:
        records = [next(iter(content.metric_records.values())) for content in contents]
        return MetricRecord({"loss": max(float(record["loss"]) for record in records)})  # type: ignore[arg-type]

    federation = Federation()
    inner = flwr.FedAvg(train_metrics_aggr_fn=losses)
    strategy = CohortStrategy(inner, Poisson(1), seed=0, estimator="difference")
    played = [federation.play(strategy, number, model(THETA)) for number in range(1, 13)]

    assert any(moved is not None and not now.counts for now, moved in played)
    assert inner.train_metrics_aggr_fn is losses


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        ("difference", "difference"),
        (Difference(), "difference"),
        ("regression", "regression"),
        (Regression(keep=None), "regression"),
    ],
    ids=str,
)
def test_the_size_of_the_memory_is_logged_once(
    estimator: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = [10] * 1000
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(4), seed=0, estimator=estimator)
    grid = grid_of(1000, app=client_app(sizes))
    in_its_own_loop(strategy)
    with caplog.at_level("INFO", "flwr.fedcohort"):
        for number in (1, 2):
            one_round(strategy, grid, number)

    assert strategy.selector.estimator is not None
    size = strategy.selector.estimator.nbytes_at_most / 1e6
    lines = [line for line in caplog.messages if "estimator" in line]
    assert lines == [f"the {name} estimator takes up to {size:.2f} MB"]


def private(strategy: Any) -> Any:
    return flwr.DifferentialPrivacyServerSideFixedClipping(
        strategy, noise_multiplier=0.0, clipping_norm=1e6, num_sampled_clients=4
    )


@pytest.mark.parametrize("estimator", ["difference", "regression"])
def test_wrappers_for_privacy_are_refused(estimator: Any) -> None:
    with pytest.raises(FlowerError, match=f"with the {estimator} estimator .* would clip"):
        CohortStrategy(private(flwr.FedAvg()), SizeClustered(4), seed=0, estimator=estimator)

    ours = CohortStrategy(flwr.FedAvg(), SizeClustered(4), seed=0, estimator=estimator)
    with pytest.raises(FlowerError, match=f"the {estimator} estimator needs its own start"):
        private(ours).start(grid_of(), model(), num_rounds=1)


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(SelectorError, match=r"Selector: estimator must be one of plain"):
        CohortStrategy(flwr.FedAvg(), SizeClustered(4), seed=0, estimator="diff")  # type: ignore[arg-type]


def test_another_model_is_refused() -> None:
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(4), seed=0, estimator="difference")
    federation = Federation()
    federation.play(strategy, 1, model())
    federation.grid.app = counting_app(federation)

    with pytest.raises(FlowerError, match="updates of 10 numbers; got a model of 11"):
        strategy_on(strategy, ArrayRecord([np.ones(1), np.ones(10)]), federation)


def strategy_on(strategy: CohortStrategy, start: ArrayRecord, federation: Federation) -> None:
    messages = strategy.configure_train(2, start, ConfigRecord(), federation.grid)
    strategy.aggregate_train(2, federation.grid.send_and_receive(list(messages)))
