"""The log of selections over populations that change."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAvg

from fedcohort import Multinomial, Population, SizeClustered
from fedcohort.flower import CohortStrategy
from fedcohort.flower.selection_log import SelectionLog
from flower.federation import grid_of, one_round
from populations import rng


def test_expected_counts_add_up_over_populations_without_growing() -> None:
    log, expected = SelectionLog(), dict.fromkeys("abc", 0.0)
    for number in range(30):
        ids = ["a", "b", "c"] if number % 2 else ["c", "a"]
        population = Population([1 + number + k for k in range(len(ids))], ids=ids)
        design = Multinomial(3).build(population, None, None, number, rng())
        for _ in range(3):
            log.write(number, design, {"a": 3}, {}, {}, 0)
        for key, count in zip(ids, design.expected_counts, strict=True):
            expected[key] += 3 * count

    found = log.summary()

    assert {key: count for key, (_, count) in found.items()} == pytest.approx(expected)
    assert found["a"][0] == 270
    assert len(log._before) + len(log._ids) <= 6


def test_failures_are_counted_by_client(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = (
        CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(4), seed=0),
        grid_of(),
    )
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 3
    for number in (1, 2, 3):
        one_round(strategy, grid, number)

    with caplog.at_level("INFO", "flwr.fedcohort"):
        strategy.selections.log_summary()

    drawn = strategy.selections.drawn["3"]
    assert strategy.selections.failed == {"3": 3}
    assert f"client 3: drawn {drawn} times, 4.7 expected, failed 3 times" in caplog.text
