"""Who was drawn and who failed, over clients that come and go."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAvg

from fedcohort import SizeClustered
from fedcohort.flower import CohortStrategy
from flower.federation import SIZES, drawn, failed, grid_of, one_round


def test_expected_counts_add_up_over_clients_that_come_and_go() -> None:
    """Client 3 is away in every other round, and is then not to be expected."""
    strategy, grid = CohortStrategy(FedAvg(), SizeClustered(4), seed=0), grid_of()
    node = next(node for node, client in grid.partitions.items() if client == 3)
    expected = dict.fromkeys(range(len(SIZES)), 0.0)
    for number in range(1, 7):
        grid.partitions.pop(node, None)
        if number % 2:
            grid.partitions[node] = 3
        total = sum(SIZES[client] for client in grid.partitions.values())
        for client in grid.partitions.values():
            expected[client] += 4 * SIZES[client] / total
        one_round(strategy, grid, number)

    found = strategy.selections.summary()

    assert {int(key): count for key, (_, count) in found.items()} == pytest.approx(expected)
    assert sum(drawn(strategy).values()) == 6 * 4


def test_failures_are_counted_by_client(caplog: pytest.LogCaptureFixture) -> None:
    strategy, grid = (
        CohortStrategy(FedAvg(fraction_evaluate=0.0), SizeClustered(4), seed=0),
        grid_of(),
    )
    grid.fails = lambda node, kind: kind == "train" and grid.partitions[node] == 3
    for number in (1, 2, 3):
        one_round(strategy, grid, number)

    with caplog.at_level("INFO", "fedcohort"):
        strategy.selections.log_summary()

    times = drawn(strategy)["3"]
    assert failed(strategy) == {"3": 3}
    assert f"client 3: drawn {times} times, 4.7 expected, failed 3 times" in caplog.text
