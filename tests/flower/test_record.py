"""A recorder around any strategy writes who takes part, and changes nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.serverapp.strategy import FedAdam, FedAvg

from fedcohort.errors import FlowerError
from fedcohort.flower import record
from fedcohort.participation import read_participation
from flower.federation import flat, grid_of, model


def played(strategy: Any, fails: bool = True, owned_by_superlink: bool = False) -> Any:
    random.seed(0)  # FedAvg's order of nodes: that of a sum of floats
    grid = grid_of()
    grid.fails = lambda node, kind: fails and kind == "train" and grid.partitions[node] == 3
    grid.answers_for_nodes = owned_by_superlink
    return strategy.start(grid, model(), num_rounds=3), grid


@pytest.mark.parametrize("owned_by_superlink", [False, True])
def test_every_asked_client_has_a_line_in_every_round(
    owned_by_superlink: bool, tmp_path: Path
) -> None:
    path = tmp_path / "participation.jsonl"

    _, grid = played(
        record(FedAvg(fraction_evaluate=0.0), path), owned_by_superlink=owned_by_superlink
    )

    own = read_participation(path)
    failing = next(str(node) for node, client in grid.partitions.items() if client == 3)
    assert set(own.ids) == set(map(str, grid.partitions))
    assert own.rounds.tolist() == [1, 2, 3]
    assert own.per_client(~own.answered).tolist() == [3.0 * (each == failing) for each in own.ids]
    assert own.reasons == {"node unavailable": 3}


@pytest.mark.parametrize("kind", [FedAvg, FedAdam])
def test_training_is_the_same_with_and_without(kind: type[FedAvg], tmp_path: Path) -> None:
    strategy = kind(fraction_evaluate=0.0)
    recorded = record(strategy, tmp_path / "p.jsonl")

    assert recorded is strategy
    found, _ = played(recorded)
    expected, _ = played(kind(fraction_evaluate=0.0))
    assert flat(found.arrays).tolist() == flat(expected.arrays).tolist()


def test_the_number_of_examples_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    played(record(FedAvg(fraction_evaluate=0.0), path), fails=False)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["num_examples"] for line in lines} == {1}
    assert {line["status"] for line in lines} == {"answered"}


def test_it_needs_a_strategy_and_a_path_that_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(FlowerError, match="record needs a strategy of Flower; got 'FedAvg'"):
        record("FedAvg", tmp_path / "p")  # type: ignore[type-var]
    with pytest.raises(Exception, match="cannot be written"):
        played(record(FedAvg(fraction_evaluate=0.0), tmp_path / "no" / "p.jsonl"))
