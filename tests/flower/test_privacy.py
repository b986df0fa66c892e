"""Flower's wrappers for differential privacy, around the strategy and inside it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from flwr.supercore.privacy_accounting import SamplingMethod

from fedcohort import Multinomial, Poisson, Recipe, SimilarityClustered, SizeClustered, Uniform
from fedcohort.designs import RECIPES
from fedcohort.designs.catalogue import make_recipe
from fedcohort.errors import FlowerError, SelectorError
from fedcohort.flower import CohortStrategy, SecureAggregation, secure_aggregation_mod
from flower.federation import (
    client_app,
    failed,
    flat,
    grid_of,
    model,
    one_round,
    update_of,
    weights_of,
)

SERVER = DifferentialPrivacyServerSideFixedClipping
CLIENTS = DifferentialPrivacyClientSideFixedClipping
#: A norm below that of every update.
CLIPPING = 1.0


def private(strategy: Any) -> DifferentialPrivacyServerSideFixedClipping:
    return DifferentialPrivacyServerSideFixedClipping(
        strategy, noise_multiplier=0.0, clipping_norm=1e6, num_sampled_clients=4
    )


@pytest.mark.parametrize("more", [{"on_failure": "redraw"}, {"extra": 2}], ids=str)
def test_what_needs_our_own_loop_is_refused_inside_a_wrapper(more: dict[str, Any]) -> None:
    """In the first round, not when the first client fails."""
    fedavg = FedAvg(fraction_evaluate=0.0)
    around = private(CohortStrategy(fedavg, SizeClustered(4), seed=0, **more))
    inside = CohortStrategy(private(fedavg), SizeClustered(4), seed=0, **more)

    with pytest.raises(FlowerError, match=r"need its own start; .* Put the wrapper inside"):
        around.start(grid_of(), model(), num_rounds=1)
    assert inside.start(grid_of(), model(), num_rounds=1).arrays is not None


def test_a_failed_start_leaves_other_loops_refused() -> None:
    def broken(number: int, arrays: ArrayRecord) -> None:
        raise RuntimeError("cannot evaluate")

    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0, on_failure="redraw")
    with pytest.raises(RuntimeError):
        strategy.start(grid_of(), model(), num_rounds=1, evaluate_fn=broken)

    with pytest.raises(FlowerError, match="need its own start"):
        one_round(strategy, grid_of())


def test_a_round_that_a_wrapper_drops_is_logged_and_training_goes_on(tmp_path: Path) -> None:
    """Flower's wrappers skip a round with an error among its replies."""
    log = tmp_path / "selections.jsonl"
    strategy = CohortStrategy(FedAvg(), SizeClustered(4), seed=0, log_file=log)
    around, grid = private(strategy), grid_of()
    grid.fails = lambda node, kind: kind == "train"
    dropped = one_round(around, grid, 1)
    grid.fails = lambda node, kind: False

    moved = one_round(around, grid, 2)

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert dropped is None
    assert moved is not None
    assert (flat(moved) != 1.0).any()
    assert [line["round"] for line in lines] == [0, 1]
    assert lines[0]["weights"] == {}
    assert set(lines[0]["failed"].values()) == {"the round was dropped"}
    assert sum(lines[0]["drawn"].values()) == 4
    assert sum(count for count, _ in strategy.selections.summary().values()) == 8


def test_a_wrapper_needs_draws_of_one_weight() -> None:
    """It clips replies as they come; weights that do not sum to 1 would be divided away."""
    strategy = CohortStrategy(private(FedAvg()), Poisson(3), seed=0)

    with pytest.raises(
        SelectorError, match="a privacy wrapper needs a design with equal weight per draw"
    ):
        one_round(strategy, grid_of())


def test_inside_a_failure_drops_nothing() -> None:
    strategy = CohortStrategy(private(FedAvg()), SizeClustered(4), seed=0)
    grid = grid_of()
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 3

    assert one_round(strategy, grid) is not None
    assert "3" in failed(strategy)


@pytest.mark.parametrize(
    ("recipe", "warns"), [(SimilarityClustered(4), True), (SizeClustered(4), False)], ids=str
)
def test_a_choice_by_updates_that_noise_does_not_cover_is_said(
    caplog: pytest.LogCaptureFixture, recipe: Recipe, warns: bool
) -> None:
    CohortStrategy(private(FedAvg()), recipe, seed=0)

    assert ("what the choice of clients reveals is not in its guarantee" in caplog.text) == warns


def test_an_accountant_of_equal_weights_is_refused() -> None:
    wrapper = private(FedAvg())
    wrapper.accountant = object()  # type: ignore[assignment]

    with pytest.raises(FlowerError, match="needs replies of equal weight"):
        CohortStrategy(wrapper, SizeClustered(4), seed=0)


def wrapped(kind: type[Any], strategy: Strategy, noise: float = 0.0, clients: int = 4) -> Any:
    return kind(
        strategy, noise_multiplier=noise, clipping_norm=CLIPPING, num_sampled_clients=clients
    )


def grid_for(kind: type[Any], sizes: list[int], **more: Any) -> Any:
    """Return nodes that clip if the wrapper expects it.

    Flower's mod reads every message of an app as one of training, so only training may have it.
    """
    mods = [fixedclipping_mod] if kind is CLIENTS else []
    return grid_of(app=client_app(sizes=sizes, train_mods=mods, **more))


def clipped_sum(weights: dict[str, float]) -> np.ndarray:
    updates = {key: np.asarray(update_of(int(key)), dtype=np.float64) for key in weights}
    norms = {key: float(np.linalg.norm(update)) for key, update in updates.items()}
    assert min(norms.values()) > CLIPPING
    shares = [w * CLIPPING / norms[key] for key, w in weights.items()]
    return np.asarray(shares @ np.array([updates[key] for key in weights]))


SIZES, EQUAL = [50, 30, 20, 70, 10, 40], [5] * 6


@pytest.mark.parametrize(
    ("is_around", "recipe", "sizes"),
    [
        (False, SizeClustered(4), SIZES),
        (False, Multinomial(4), SIZES),
        (False, Uniform(4, unbiased=True), EQUAL),
        (True, SizeClustered(4), SIZES),
        (True, Uniform(4), SIZES),
        (True, Uniform(4, unbiased=True), SIZES),
        (True, Poisson(3), SIZES),
        (True, Poisson(3), EQUAL),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [SERVER, CLIENTS])
@pytest.mark.parametrize("seed", range(3))
def test_the_model_moves_by_the_weighted_sum_of_clipped_updates(
    kind: type[Any], is_around: bool, recipe: Recipe, sizes: list[int], seed: int
) -> None:
    fedavg = FedAvg(fraction_evaluate=0.0)
    inner = fedavg if is_around else wrapped(kind, fedavg)
    cohorts = CohortStrategy(inner, recipe, seed=seed)
    strategy, grid = wrapped(kind, cohorts) if is_around else cohorts, grid_for(kind, sizes)
    start = model(0.0)

    messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
    weights = weights_of(cohorts)
    moved, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))

    found = np.zeros(10) if moved is None else flat(moved)
    # Updates and models have 32 bits: a few roundings of numbers below 1.
    assert np.abs(found - clipped_sum(weights)).max() <= 5e-7 * max(1.0, sum(weights.values()))


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (SERVER, "inside"),
        (SERVER, "around"),
        (CLIENTS, "inside"),
        (CLIENTS, "around"),
        (CLIENTS, "secure"),
    ],
)
def test_noise_is_added_once(kind: type[Any], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right deviation of 200 numbers is missed by 4 standard errors for 1 of 10,000 seeds.

    Noise that is added twice has a deviation 1.41 times as large: found for 998 of 1,000.
    """
    fedavg, secure = FedAvg(fraction_evaluate=0.0), None
    inner = wrapped(kind, fedavg, noise=3.0, clients=6)
    mods = None
    if place == "secure":
        secure, mods = SecureAggregation(clip=4.0), [secure_aggregation_mod]
    recipe = Uniform(6, unbiased=True)  # everyone in every round
    cohorts = CohortStrategy(fedavg if place == "around" else inner, recipe, seed=0, secure=secure)
    strategy = wrapped(kind, cohorts, noise=3.0, clients=6) if place == "around" else cohorts
    grid = grid_for(kind, EQUAL, mods=mods)
    everyone = clipped_sum({str(k): 1 / 6 for k in range(6)})
    monkeypatch.setattr(np.random, "normal", np.random.default_rng(0).normal)  # Flower's noise

    noise = []
    for _ in range(20):
        found = strategy.start(grid, model(0.0), num_rounds=1)
        noise.append(flat(found.arrays) - everyone)

    values, deviation = np.array(noise).ravel(), 3.0 * CLIPPING / 6
    assert abs(values.std() / deviation - 1) <= 4 / np.sqrt(2 * len(values))
    assert abs(values.mean()) <= 4 * deviation / np.sqrt(len(values))


#: The recipes that have weights of 1/m for every draw, for all sizes and for equal sizes.
EQUAL_WEIGHTS = {
    *("multinomial", "size", "similarity", "tournament", "balanced", "auto", "oort", "hics")
}


@pytest.mark.parametrize(
    "name", sorted(name for name, own in RECIPES.items() if not own.signals and not own.grouped)
)
def test_inside_only_equal_weights_are_taken(name: str) -> None:
    """The page on privacy lists them."""
    strategy = CohortStrategy(wrapped(SERVER, FedAvg()), make_recipe(name, 3, {}), seed=0)
    grid = grid_for(SERVER, SIZES)

    if name in EQUAL_WEIGHTS:
        assert one_round(strategy, grid) is not None
    else:
        with pytest.raises((SelectorError, FlowerError), match="a privacy wrapper needs a design"):
            one_round(strategy, grid)


def test_inside_a_varying_number_of_draws_is_refused_even_if_each_weighs_as_much() -> None:
    strategy = CohortStrategy(wrapped(SERVER, FedAvg()), Poisson(4), seed=0)

    with pytest.raises(FlowerError, match="the draws of 'poisson' vary in number, and Diff"):
        one_round(strategy, grid_for(SERVER, [5] * 6))


def test_inside_weights_must_not_grow_when_clients_fail() -> None:
    with pytest.raises(FlowerError, match="on_failure='renormalise' raises the weights of those"):
        CohortStrategy(
            wrapped(SERVER, FedAvg()), SizeClustered(4), seed=0, on_failure="renormalise"
        )


@pytest.mark.parametrize(("clients", "is_enough"), [(4, False), (2, True)])
def test_noise_for_smaller_weights_is_said_once(
    clients: int, is_enough: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Size-based draws take a client twice here, so that it weighs 2 / 4."""
    inner = wrapped(SERVER, FedAvg(fraction_evaluate=0.0), clients=clients)
    strategy = CohortStrategy(inner, SizeClustered(4), seed=0)

    strategy.start(grid_for(SERVER, SIZES), model(), num_rounds=2)

    said = [line for line in caplog.messages if "a client can have the weight 0.5" in line]
    assert len(said) == (not is_enough)
    if said:
        assert "num_sampled_clients = 0.25. Pass num_sampled_clients=2" in said[0]


def test_flowers_accountant_takes_no_strategy_that_weighs() -> None:
    config = SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION)
    accountant: Any = SimpleNamespace(config=config)

    with pytest.raises(ValueError, match=r"requires a strategy using FedAvg\.aggregate_train"):
        SERVER(
            CohortStrategy(FedAvg(), SizeClustered(4), seed=0),
            noise_multiplier=1.0,
            clipping_norm=1.0,
            num_sampled_clients=4,
            accountant=accountant,
        )
