"""Features of clients in Flower: they come with the size, for the regression estimator."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAvg

from fedcohort import Regression, SizeClustered
from fedcohort.flower import CohortStrategy
from fedcohort.memory.regression import RegressionEstimator
from flower.federation import SIZES, client_app, flat, grid_of, model
from flower.in_process import InProcessGrid

SHARES = np.random.default_rng(7).dirichlet(np.ones(3), len(SIZES)).round(3)


def properties_of(client: int) -> dict[str, Any]:
    return {"labels": SHARES[client].tolist(), "region": "ab"[client % 2], "memory": 16 + client}


def features_of(client: int) -> dict[str, Any]:
    """Return the same as the server would be given it."""
    labels = {f"labels.{k}": share for k, share in enumerate(SHARES[client].tolist())}
    return {**labels, "region": "ab"[client % 2], "memory": 16.0 + client}


def telling_grid(n: int = len(SIZES), properties: Any = properties_of) -> InProcessGrid:
    return grid_of(n, app=client_app(properties=properties))


def made(features: Any = "given", **more: Any) -> CohortStrategy:
    estimator = Regression(features=features, keep="float16")
    return CohortStrategy(
        FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=5, estimator=estimator, **more
    )


def known(strategy: CohortStrategy) -> dict[str, list[float]]:
    """Return the encoded features of the clients that have some."""
    table = strategy.selector._records.features.encoded()
    rows = zip(strategy.selector.population.ids, table.values, table.known, strict=True)
    return {str(key): row.tolist() for key, row, is_known in rows if is_known}


def test_properties_count_as_features_that_the_server_is_given() -> None:
    given = made({str(k): features_of(k) for k in range(len(SIZES))})
    told = made()

    models = [own.start(telling_grid(), model(), num_rounds=12).arrays for own in (given, told)]

    assert known(told) == known(given)
    assert len(known(told)) == len(SIZES)
    assert flat(models[0]).tolist() == flat(models[1]).tolist()
    assert isinstance(told.selector.estimator, RegressionEstimator)
    assert told.selector.estimator.n_features == 6  # three shares, two regions, memory


def test_features_change_the_aggregate() -> None:
    without = made(None)

    models = [own.start(telling_grid(), model(), num_rounds=12).arrays for own in (made(), without)]

    assert flat(models[0]).tolist() != flat(models[1]).tolist()


def test_a_client_that_joins_later_has_features_from_its_first_draw_on() -> None:
    strategy, grid = made(), telling_grid(4)
    strategy.start(grid, model(), num_rounds=3)
    before = known(strategy)
    grid.partitions[77] = 4

    strategy.start(grid, model(), num_rounds=1)

    after = known(strategy)
    assert set(after) - set(before) == {"4"}
    all_told = made()
    all_told.start(telling_grid(5), model(), num_rounds=1)
    assert after == known(all_told)  # encoded as if all five had been there from the start
    assert strategy.selector.estimator is not None


def test_features_survive_a_restart(tmp_path: Path) -> None:
    def run(folder: Path, *parts: int) -> Any:
        for last in parts:
            result = made(checkpoint=folder).start(
                telling_grid(), model(), num_rounds=last, resume=True
            )
        return flat(result.arrays).tolist()

    assert run(tmp_path / "a", 9) == run(tmp_path / "b", 4, 9)


def test_nonsense_costs_a_client_its_features_and_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nonsense: dict[int, dict[str, Any]] = {
        1: {**properties_of(1), "memory": float("nan")},
        2: {**properties_of(2), "memory": "much"},
        3: {"shoe": 43},
    }
    strategy = made()
    grid = telling_grid(properties=lambda k: nonsense.get(k) or properties_of(k))

    with caplog.at_level(logging.WARNING):
        strategy.start(grid, model(), num_rounds=6)

    assert set(known(strategy)) == {"0", "4", "5"}
    assert set(strategy.selector.clients) == {str(k) for k in range(len(SIZES))}
    assert caplog.text.count("features: ") == 2  # one line for each reason, once
    assert "(1): 'memory' must be a finite number, or text of at most 64 characters" in caplog.text
    assert "(2, 3): its features are not those of the first clients" in caplog.text


def test_properties_are_not_read_where_the_estimator_takes_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(3), seed=5)

    with caplog.at_level(logging.WARNING):
        strategy.start(
            telling_grid(properties=lambda k: {"text": "x" * 200}), model(), num_rounds=1
        )

    assert "features" not in caplog.text
