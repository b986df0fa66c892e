"""A restarted server goes on as if it had not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flwr

from fedcohort import Multinomial, SimilarityClustered
from fedcohort.errors import FlowerError
from fedcohort.flower import CohortStrategy
from flower.federation import flat, grid_of, model

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
