"""A restarted server goes on as if it had not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flwr

from fedcohort import Multinomial, SimilarityClustered, SizeClustered
from fedcohort.errors import FlowerError
from fedcohort.flower import CohortStrategy
from flower.federation import flat, grid_of, model, one_round

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
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")

    end = trained(second, middle, 4)

    assert (flat(end) == flat(whole)).all()
    assert second.selections.drawn == uninterrupted.selections.drawn
    expected = [each.selections.state()["expected"] for each in (second, uninterrupted)]
    assert expected[0] == pytest.approx(expected[1])


def test_nodes_that_are_known_are_not_asked_again(tmp_path: Path) -> None:
    """One client has gone meanwhile, one came under another id, and one size is now given."""
    first = CohortStrategy(flwr.FedAvg(), SizeClustered(3), seed=1)
    one_round(first, grid_of())
    first.save(tmp_path / "state")
    second = CohortStrategy(flwr.FedAvg(), SizeClustered(3), seed=1, sizes={"0": 55})
    second.load(tmp_path / "state")
    grid = grid_of()
    nodes = {client: node for node, client in grid.partitions.items()}
    del grid.partitions[nodes[1]], grid.partitions[nodes[2]]
    grid.partitions |= {9999: 2, 1: 3}  # node 1 says it is client 3, which is there

    one_round(second, grid)

    assert [node for kind, node in grid.asked if kind.startswith("query")] == [1, 9999]
    assert second.directory.node_of("3") == nodes[3]
    assert second.directory.keys == ["0", "2", "3", "4", "5"]
    assert second.directory.population.sizes.tolist() == [55, 20, 70, 10, 0]


def test_names_of_clients_and_layers_are_kept_as_they_are(tmp_path: Path) -> None:
    strategy = CohortStrategy(flwr.FedAdam(), SimilarityClustered(2), seed=0)
    names = ["head", "a/../b.npy", "update.0", "größe"]
    assert strategy._memory is not None
    strategy._memory.record(
        {name: model()["0"].numpy().ravel() + k for k, name in enumerate(names)}
    )
    strategy._inner.m_t = {"0.weight": model()["0"].numpy(), "m_t.0": model()["1"].numpy()}  # type: ignore[attr-defined]
    strategy.save(tmp_path / "state")
    again = CohortStrategy(flwr.FedAdam(), SimilarityClustered(2), seed=0)

    again.load(tmp_path / "state")

    assert again._memory is not None
    assert {key: kept[0] for key, kept in again._memory.state().items()} == {
        name: 1.0 + k for k, name in enumerate(names)
    }
    assert [part.shape for part in again._inner.m_t.values()] == [(3, 2), (4,)]  # type: ignore[attr-defined]
    assert list(again._inner.m_t) == ["0.weight", "m_t.0"]  # type: ignore[attr-defined]


def test_a_state_of_another_strategy_is_refused(tmp_path: Path) -> None:
    CohortStrategy(flwr.FedAdam(), Multinomial(3), seed=1).save(tmp_path / "state")

    with pytest.raises(FlowerError, match="another strategy, FedAdam; got FedAvg"):
        CohortStrategy(flwr.FedAvg(), Multinomial(3), seed=1).load(tmp_path / "state")
