"""A restarted server goes on as if it had not stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flwr

from fedcohort import Multinomial, Recipe, SimilarityClustered, SizeClustered, Uniform
from fedcohort.errors import FlowerError, SelectorError
from fedcohort.flower import CohortStrategy
from flower.federation import drawn, flat, grid_of, model, one_round, remembered
from flower.in_process import InProcessGrid

INNERS = [
    flwr.FedAvg,
    flwr.FedAdam,
    flwr.FedYogi,
    flwr.FedAdagrad,
    lambda **more: flwr.FedAvgM(server_momentum=0.9, server_learning_rate=0.5, **more),
]


def trained(strategy: CohortStrategy, arrays: ArrayRecord, rounds: int) -> ArrayRecord:
    """Train through ``start``, which counts rounds from 1 whenever it is called."""
    result = strategy.start(grid_of(), arrays, num_rounds=rounds)
    return result.arrays


@pytest.mark.parametrize(
    "inner", INNERS, ids=["FedAvg", "FedAdam", "FedYogi", "FedAdagrad", "FedAvgM"]
)
def test_a_restarted_server_ends_with_the_same_model(
    inner: type[flwr.FedAvg], tmp_path: Path
) -> None:
    def strategy() -> CohortStrategy:
        return CohortStrategy(inner(fraction_evaluate=0.0), SimilarityClustered(3), seed=1)

    uninterrupted, first, second = strategy(), strategy(), strategy()
    whole = trained(uninterrupted, model(), 8)
    middle = trained(first, model(), 4)
    first.save(tmp_path / "state", model())
    second.load(tmp_path / "state")

    end = trained(second, middle, 4)

    assert (flat(end) == flat(whole)).all()
    assert drawn(second) == drawn(uninterrupted)
    assert second.selections.expected == pytest.approx(uninterrupted.selections.expected)


def test_nodes_that_are_known_are_not_asked_again(tmp_path: Path) -> None:
    """One client has gone meanwhile, one came under another id, and one size is now given."""
    first = CohortStrategy(flwr.FedAvg(), SizeClustered(3), seed=1)
    one_round(first, grid_of())
    first.save(tmp_path / "state", model())
    second = CohortStrategy(flwr.FedAvg(), SizeClustered(3), seed=1, sizes={"0": 55})
    second.load(tmp_path / "state")
    grid = grid_of()
    nodes = {client: node for node, client in grid.partitions.items()}
    del grid.partitions[nodes[1]], grid.partitions[nodes[2]]
    grid.partitions |= {9999: 2, 1: 3}  # node 1 says it is client 3, which is there

    one_round(second, grid)

    assert [node for kind, node in grid.asked if kind.startswith("query")] == [1, 9999]
    assert second.directory.connection_of("3") == nodes[3]
    assert sorted(second.directory.present) == ["0", "2", "3", "4", "5"]
    assert second.selector.clients == {"0": 55, "1": 30, "2": 20, "3": 70, "4": 10, "5": 0}


def test_names_of_clients_and_layers_are_kept_as_they_are(tmp_path: Path) -> None:
    strategy = CohortStrategy(flwr.FedAdam(), SimilarityClustered(2), seed=0)
    names = ["a/../b.npy", "größe", "head", "update.0"]  # in the order of ids
    strategy.selector.clients = dict.fromkeys(names, 1)
    for _ in range(8):
        cohort = strategy.selector.draw()
        updates = {key: np.full(3, 1.0 + names.index(str(key))) for key in cohort.ids}
        strategy.selector.aggregate(updates)
    strategy._inner.m_t = {"0.weight": model()["0"].numpy(), "m_t.0": model()["1"].numpy()}  # type: ignore[attr-defined]
    strategy.save(tmp_path / "state", model())
    again = CohortStrategy(flwr.FedAdam(), SimilarityClustered(2), seed=0)

    again.load(tmp_path / "state")

    kept = {key: update[0] for key, update in remembered(again).items()}
    assert kept == {name: 1.0 + k for k, name in enumerate(names)}
    assert [part.shape for part in again._inner.m_t.values()] == [(3, 2), (4,)]  # type: ignore[attr-defined]
    assert list(again._inner.m_t) == ["0.weight", "m_t.0"]  # type: ignore[attr-defined]


def test_a_state_of_another_strategy_is_refused(tmp_path: Path) -> None:
    CohortStrategy(flwr.FedAdam(), Multinomial(3), seed=1).save(tmp_path / "state", model())

    with pytest.raises(FlowerError, match="another strategy, FedAdam; got FedAvg"):
        CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1).load(tmp_path / "state")


@pytest.mark.parametrize("other", [Multinomial(4), SizeClustered(3)], ids=repr)
def test_a_state_of_another_recipe_or_cohort_size_is_refused(other: Recipe, tmp_path: Path) -> None:
    first = CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1)
    one_round(first, grid_of())
    first.save(tmp_path / "state", model())
    second = CohortStrategy(flwr.FedAvg(), other, seed=1)

    with pytest.raises(SelectorError, match=r"another recipe, Multinomial\(cohort_size=3\); got"):
        second.load(tmp_path / "state")
    assert second.selector.clients == {}
    assert second.directory.sizes == {}


@pytest.mark.parametrize(
    ("more", "name"), [({"on_failure": "renormalise"}, "on_failure"), ({"extra": 1}, "extra")]
)
def test_a_state_of_another_rule_is_refused(more: Any, name: str, tmp_path: Path) -> None:
    CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1).save(tmp_path / "state", model())

    with pytest.raises(SelectorError, match=f"written with another {name}"):
        CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1, **more).load(tmp_path / "state")


def test_a_state_of_other_names_is_refused(tmp_path: Path) -> None:
    CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1).save(tmp_path / "state", model())

    with pytest.raises(FlowerError, match="another names, client; got node"):
        CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1, names="node").load(tmp_path / "state")


def other_model() -> ArrayRecord:
    """Make a model with one number more than the others' ten."""
    return ArrayRecord([np.ones((3, 2), np.float32), np.ones(5, np.float32)])


@pytest.mark.parametrize(
    ("inner", "recipe", "match"),
    [
        (flwr.FedAvg, SimilarityClustered(3), "remembers updates of 10 numbers; got a model of 11"),
        (
            flwr.FedAdam,
            SizeClustered(3),
            r"FedAdam continues from arrays .*\(4,\)}; got a model of",
        ),
        (INNERS[-1], SizeClustered(3), r"FedAvgM continues from arrays .*\(4,\)}; got a model of"),
    ],
    ids=["memory", "moments", "momentum"],
)
def test_a_state_of_another_model_is_refused_in_one_sentence(
    inner: Any, recipe: Recipe, match: str, tmp_path: Path
) -> None:
    first = CohortStrategy(inner(), recipe, seed=1)
    one_round(first, grid_of())
    first.save(tmp_path / "state", model())
    second, grid = CohortStrategy(inner(), recipe, seed=1), grid_of()
    second.load(tmp_path / "state")

    with pytest.raises(FlowerError, match=match):
        one_round(second, grid, 1, other_model())
    assert not [node for kind, node in grid.asked if kind == "train"]


@pytest.mark.parametrize("inner", [flwr.FedAdam, INNERS[-1]], ids=["FedAdam", "FedAvgM"])
def test_a_state_goes_on_with_the_same_model_in_another_order(inner: Any, tmp_path: Path) -> None:
    whole, first, second = (
        CohortStrategy(inner(fraction_evaluate=0.0), SizeClustered(3), seed=1) for _ in range(3)
    )
    expected = trained(whole, model(), 6)
    middle = trained(first, model(), 3)
    first.save(tmp_path / "state", middle)
    arrays = second.load(tmp_path / "state")

    end = trained(second, ArrayRecord({name: arrays[name] for name in ("1", "0")}), 3)

    assert list(end) == ["1", "0"]
    assert all((end[name].numpy() == expected[name].numpy()).all() for name in expected)


def test_with_fewer_clients_than_draws_training_runs_on_and_restarts(tmp_path: Path) -> None:
    """Five of six clients have samples and all are drawn; then four are left."""

    def left() -> InProcessGrid:
        grid = grid_of()
        grid.partitions = {node: k for node, k in grid.partitions.items() if k != 3}
        return grid

    first, twin = (CohortStrategy(flwr.FedAvg(), Uniform(5), seed=0) for _ in range(2))
    for strategy in (first, twin):
        one_round(strategy, grid_of(), 1)
        assert one_round(strategy, left(), 2) is not None
    first.save(tmp_path / "state", model())
    second = CohortStrategy(flwr.FedAvg(), Uniform(5), seed=0)
    second.load(tmp_path / "state")

    moved, expected = (one_round(each, left(), 3) for each in (second, twin))

    assert moved is not None
    assert expected is not None
    assert (flat(moved) == flat(expected)).all()
    assert drawn(second) == drawn(twin) == {"0": 3, "1": 3, "2": 3, "3": 1, "4": 3}
