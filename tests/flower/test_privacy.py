"""Flower's wrappers for differential privacy, around the strategy and inside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedcohort import Poisson, Recipe, SimilarityClustered, SizeClustered
from fedcohort.errors import FlowerError, SelectorError
from fedcohort.flower import CohortStrategy
from flower.federation import failed, flat, grid_of, model, one_round


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
