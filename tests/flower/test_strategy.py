"""Drawn clients and exact weights, with every design and every strategy that respects weights."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flwr
from scipy.stats import chi2

from fedcohort import (
    Multinomial,
    Poisson,
    Population,
    Recipe,
    Selector,
    SimilarityClustered,
    SizeClustered,
    Uniform,
)
from fedcohort.errors import FlowerError, SelectorError
from fedcohort.flower import CohortStrategy, Waits, register_size_query
from fedcohort.selector import read_selections
from fedcohort.streams import Stream, stream
from flower.federation import (
    SIZES,
    client_app,
    counts_of,
    drawn,
    flat,
    grid_of,
    model,
    one_round,
    remembered,
    update_of,
    weights_of,
)

RECIPES: list[Recipe] = [
    Multinomial(8),
    SizeClustered(4),
    SimilarityClustered(4),
    Poisson(3),
    Uniform(3),
    Uniform(3, unbiased=True),
]


def expected_model(recipe: Recipe, seed: int = 0) -> np.ndarray:
    """What the one formula gives in the first round, from the library alone."""
    population = Population(SIZES)
    design = recipe.build(population, rng=stream(seed, round_=0, use=Stream.TIES))
    cohort = design.draw(stream(seed, round_=0, use=Stream.COHORT))
    updates = np.array([update_of(int(client)) for client in cohort.clients], dtype=np.float64)
    return 1.0 + cohort.weights @ updates.reshape(len(cohort), -1) if len(cohort) else np.ones(10)


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_the_model_moves_by_the_one_formula(recipe: Recipe) -> None:
    """The first rounds of fresh strategies: similarity knows no updates yet."""
    for seed in range(7):
        strategy = CohortStrategy(flwr.FedAvg(), recipe, seed=seed)

        moved = one_round(strategy, grid_of())

        result = flat(model()) if moved is None else flat(moved)
        assert result == pytest.approx(expected_model(recipe, seed), abs=1e-6)


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_cohorts_are_those_of_a_selector_with_the_same_seed(recipe: Recipe) -> None:
    """Client 3 is away in rounds 3 to 5."""
    strategy, grid = CohortStrategy(flwr.FedAvg(), recipe, seed=4), grid_of()
    twin = Selector(recipe, SIZES, seed=4)
    node = next(node for node, client in grid.partitions.items() if client == 3)
    for round_ in range(8):
        grid.partitions.pop(node, None)
        if not 3 <= round_ <= 5:
            grid.partitions[node] = 3

        messages = strategy.configure_train(round_ + 1, model(), ConfigRecord(), grid)
        weights = weights_of(strategy)
        strategy.aggregate_train(round_ + 1, grid.send_and_receive(messages))
        cohort = twin.draw(available=sorted(grid.partitions.values()))
        twin.aggregate({k: update_of(k) for k in cohort.clients.tolist()})

        assert weights == dict(zip(map(str, cohort.ids), cohort.weights.tolist(), strict=True))


def test_a_client_drawn_twice_gets_one_message_and_twice_the_weight() -> None:
    grid = grid_of()
    strategy = CohortStrategy(flwr.FedAvg(), Multinomial(8), seed=0)

    one_round(strategy, grid)

    trained = [node for kind, node in grid.asked if kind == "train"]
    counts = drawn(strategy)
    assert max(counts.values()) > 1
    assert sum(counts.values()) == 8
    assert sorted(grid.partitions[node] for node in trained) == sorted(map(int, counts))


@pytest.mark.parametrize(
    "inner",
    [
        flwr.FedAvg(),
        flwr.FedProx(proximal_mu=0.1),
        flwr.FedAdam(),
        flwr.FedYogi(),
        flwr.FedAdagrad(),
        flwr.FedAvgM(),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_strategies_that_inherit_the_average_get_our_weights(inner: flwr.FedAvg) -> None:
    """The same inner strategy, fed by hand with one reply that is the weighted mean already."""
    twin = type(inner)(proximal_mu=0.1) if isinstance(inner, flwr.FedProx) else type(inner)()
    twin.min_available_nodes = 1
    ours = CohortStrategy(inner, SizeClustered(4), seed=0)
    alone = CohortStrategy(twin, SizeClustered(1), seed=0, sizes={"0": 1})

    moved = one_round(ours, grid_of())

    target = expected_model(SizeClustered(4)) - 1.0
    single = grid_of(1, app=client_app([1], update=lambda client: target))
    reference = one_round(alone, single)
    assert moved is not None
    assert reference is not None
    assert flat(moved) == pytest.approx(flat(reference), abs=1e-6)


@pytest.mark.parametrize("inner", [flwr.FedAvg, flwr.FedAdam, flwr.FedAvgM])
def test_clients_that_keep_their_own_types_train_on(inner: type[flwr.FedAvg]) -> None:
    """A counter of batches is a whole number; averages make floats of it, and doubles of floats."""
    app = ClientApp()
    register_size_query(app, lambda context: 1 + int(context.node_config["partition-id"]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights, counter = message.content.array_records["arrays"].to_numpy_ndarrays()
        moved = (weights + 1).astype(np.float32)
        arrays: list[np.ndarray] = [moved, np.array(counter + 1, dtype=np.int64)]
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    arrays = ArrayRecord([np.zeros(3, dtype=np.float32), np.array(10)])
    strategy, grid = CohortStrategy(inner(), SizeClustered(3), seed=0), grid_of(app=app)
    for number in (1, 2, 3):
        moved = one_round(strategy, grid, number, arrays)
        assert moved is not None
        arrays = moved

        assert [part.dtype for part in arrays.to_numpy_ndarrays()] == [np.float32, np.int64]
    if inner is flwr.FedAvg:
        assert arrays.to_numpy_ndarrays()[1] == 13


def test_a_second_start_goes_on_in_the_stream(tmp_path: Path) -> None:
    def train(log: Path, *rounds: int) -> list[tuple[Any, ...]]:
        inner = flwr.FedAvg(fraction_evaluate=0.0)
        strategy = CohortStrategy(inner, Multinomial(4), seed=0, log_file=log)
        for n in rounds:
            strategy.start(grid_of(), model(), num_rounds=n)
        return [(line["round"], line["drawn"], line["weights"]) for line in read_selections(log)]

    lines = train(tmp_path / "twice", 2, 3)

    assert lines == train(tmp_path / "once", 5)
    assert [round_ for round_, _, _ in lines] == [0, 1, 2, 3, 4]


def private(strategy: flwr.Strategy) -> flwr.Strategy:
    """Wrap a strategy for differential privacy, with no noise and room for every update."""
    return flwr.DifferentialPrivacyServerSideFixedClipping(
        strategy, noise_multiplier=0.0, clipping_norm=1e6, num_sampled_clients=4
    )


@pytest.mark.parametrize("outside", [True, False])
def test_it_works_inside_and_outside_the_wrappers_for_privacy(outside: bool) -> None:
    fedavg = flwr.FedAvg()
    if outside:
        strategy: flwr.Strategy = CohortStrategy(private(fedavg), SizeClustered(4), seed=0)
    else:
        strategy = private(CohortStrategy(fedavg, SizeClustered(4), seed=0))

    moved = one_round(strategy, grid_of())

    assert moved is not None
    assert flat(moved) == pytest.approx(expected_model(SizeClustered(4)), abs=1e-5)


def test_a_deadline_is_the_messages_time_to_live() -> None:
    strategy = CohortStrategy(flwr.FedAvg(), SizeClustered(4), seed=0, waits=Waits(reply=7.0))

    messages = list(strategy.configure_train(1, model(), ConfigRecord(), grid_of()))

    assert {message.metadata.ttl for message in messages} == {7.0}


@pytest.mark.parametrize(
    "inner",
    [flwr.FedMedian(), flwr.FedTrimmedAvg(), flwr.Krum(), flwr.QFedAvg(client_learning_rate=0.1)],
    ids=lambda inner: type(inner).__name__,
)
def test_strategies_that_ignore_weights_are_refused(inner: flwr.Strategy) -> None:
    with pytest.raises(FlowerError, match=f"{type(inner).__name__} ignores the weights"):
        CohortStrategy(inner, Multinomial(3), seed=0)


def test_node_ids_change_neither_cohorts_nor_the_model() -> None:
    models = []
    for first in (1000, 77):
        strategy, arrays = CohortStrategy(flwr.FedAvg(), SimilarityClustered(3), seed=5), model()
        for number in range(1, 6):
            arrays = one_round(strategy, grid_of(first=first), number, arrays) or arrays
        models.append(flat(arrays))

    assert (models[0] == models[1]).all()


def test_similarity_learns_from_the_replies() -> None:
    strategy = CohortStrategy(flwr.FedAvg(), SimilarityClustered(2), seed=0)
    grid = grid_of()
    for number in range(1, 20):
        one_round(strategy, grid, number)

    kept = remembered(strategy)
    assert set(kept) == {"0", "1", "2", "3", "4"}  # client 5 has no samples
    for key, update in kept.items():
        assert update == pytest.approx(update_of(int(key)), abs=1e-6)


def test_a_restarted_server_goes_on_with_the_same_stream(tmp_path: Path) -> None:
    def play(strategy: CohortStrategy, rounds: range, arrays: ArrayRecord) -> ArrayRecord:
        for number in rounds:
            arrays = one_round(strategy, grid_of(), number, arrays) or arrays
        return arrays

    whole = play(
        CohortStrategy(flwr.FedAvg(), SimilarityClustered(3), seed=1), range(1, 9), model()
    )
    first = CohortStrategy(flwr.FedAvg(), SimilarityClustered(3), seed=1)
    middle = play(first, range(1, 5), model())
    first.save(tmp_path / "state", model())
    second = CohortStrategy(flwr.FedAvg(), SimilarityClustered(3), seed=1)
    second.load(tmp_path / "state")

    end = play(second, range(1, 5), middle)

    assert (flat(end) == flat(whole)).all()


def test_a_state_of_another_seed_or_no_state_is_refused(tmp_path: Path) -> None:
    CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1).save(tmp_path / "state", model())
    (tmp_path / "other").write_bytes(b"x")
    strategy = CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=2)

    other = CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1, sketch=8)
    with pytest.raises(SelectorError, match="was written with another seed, 1; got 2"):
        strategy.load(tmp_path / "state")
    with pytest.raises(SelectorError, match="was written with another sketch, None; got 8"):
        other.load(tmp_path / "state")
    with pytest.raises(FlowerError, match="cannot be read"):
        strategy.load(tmp_path / "other")


def test_an_inner_strategy_keeps_its_own_settings() -> None:
    inner = flwr.FedAvg(fraction_train=0.3, min_train_nodes=4, min_available_nodes=5)

    one_round(CohortStrategy(inner, SizeClustered(2), seed=0), grid_of())

    assert (inner.fraction_train, inner.min_train_nodes, inner.min_available_nodes) == (0.3, 4, 5)


def test_whole_trainings_run_through_start() -> None:
    strategy = CohortStrategy(flwr.FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0)

    result = strategy.start(grid_of(), model(), num_rounds=4)

    assert result.arrays is not None
    assert np.isfinite(flat(result.arrays)).all()
    found = strategy.selections.summary()
    assert sum(count for count, _ in found.values()) == 12
    assert found["3"][1] == pytest.approx(4 * 3 * 70 / 180)


def test_a_design_that_repeats_clients_too_often_is_refused() -> None:
    often = CohortStrategy(flwr.FedAvg(), Multinomial(8), seed=0, max_draws=2)
    seldom = CohortStrategy(flwr.FedAvg(), SizeClustered(2), seed=0, max_draws=2)

    with pytest.raises(SelectorError, match="MultinomialDesign can draw client '0' 8 times"):
        one_round(often, grid_of())
    assert one_round(seldom, grid_of()) is not None


def test_the_end_of_a_training_says_who_was_drawn(caplog: pytest.LogCaptureFixture) -> None:
    strategy = CohortStrategy(flwr.FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0)

    strategy.start(grid_of(), model(), num_rounds=4)

    times = drawn(strategy)["3"]
    assert f"client 3: drawn {times} times, 4.7 expected" in caplog.text


@pytest.mark.slow
def test_frequencies_agree_with_the_importances() -> None:
    """Ten thousand rounds, false alarm 1e-6: the counts' covariance is m^2 times the weights'."""
    rounds = 10_000
    recipe = SizeClustered(4)
    strategy = CohortStrategy(flwr.FedAvg(), recipe, seed=3)
    grid, seen = grid_of(), Counter[str]()
    for number in range(1, rounds + 1):
        strategy.configure_train(number, model(), ConfigRecord(), grid)
        seen.update(counts_of(strategy))
        strategy.selector.skip()

    population = Population(SIZES[:5])
    design = recipe.build(population, rng=stream(3, round_=0, use=Stream.TIES))
    counts = np.array([seen[str(k)] for k in range(5)])
    excess = counts - rounds * design.expected_counts()
    covariance = rounds * design.cohort_size**2 * design.weight_covariance()
    inverse, rank = np.linalg.pinv(covariance, rcond=1e-9), np.linalg.matrix_rank(covariance)
    assert excess @ inverse @ excess < chi2.isf(1e-6, rank)


def test_the_end_of_a_training_is_shown_where_flower_shows_its_own_lines() -> None:
    """Flower's handlers hang on its own logger; the library's lines reach them once."""
    shown: list[str] = []

    class Screen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(record.getMessage())

    strategy = CohortStrategy(flwr.FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=0)
    flower, library, screen = logging.getLogger("flwr"), logging.getLogger("fedcohort"), Screen()
    before = (library.level, list(library.handlers))
    flower.addHandler(screen)
    try:
        strategy.start(grid_of(), model(), num_rounds=2)
    finally:
        flower.removeHandler(screen)

    assert len([line for line in shown if line.startswith("round 2: drawn")]) == 1
    assert len([line for line in shown if line.startswith("client 3: drawn")]) == 1
    assert (library.level, library.handlers) == before


def test_the_inner_strategy_counts_rounds_from_1_over_all_starts() -> None:
    """FedAdam's step depends on that number; evaluation gets that of the round that ended."""
    numbers = list[tuple[str, int]]()

    class Counting(flwr.FedAvg):
        def configure_train(self, server_round: int, *args: Any) -> Any:
            numbers.append(("train", server_round))
            return super().configure_train(server_round, *args)

        def configure_evaluate(self, server_round: int, *args: Any) -> Any:
            numbers.append(("evaluate", server_round))
            return []

    strategy = CohortStrategy(Counting(), SizeClustered(3), seed=0)
    for _ in range(2):
        strategy.start(grid_of(), model(), num_rounds=2)

    assert numbers == [(kind, n) for n in (1, 2, 3, 4) for kind in ("train", "evaluate")]
