"""Importance apart from sizes: who is drawn, with what weight, and what loss is measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort import Multinomial, Poisson, Uniform
from fedcohort.errors import SimulationError
from fedcohort.simulation import Run
from simulation.federations import UNEQUAL, assert_same, made, resumed

#: Clients have 40, 10, 3, 0 and 100 samples.
SHARES = [0.1, 0.2, 0.3, 0.0, 0.4]


def test_clients_with_samples_count_alike() -> None:
    run = Run(Uniform(4), UNEQUAL, importance="equal")

    # 2^40 units divide by four.
    assert run.population.importance.tolist() == [0.25, 0.25, 0.25, 0, 0.25]
    assert run.population.groups == UNEQUAL.population.groups
    assert run.selector().draw().weights.tolist() == [0.25] * 4


def test_sizes_are_the_default() -> None:
    by_size = Run(Multinomial(3), UNEQUAL)

    assert by_size.population.sizes.tolist() == [40, 10, 3, 0, 100]
    assert by_size.selector().draw() is not None


@pytest.mark.parametrize(("importance", "p"), [("equal", [0.25] * 3 + [0, 0.25]), (SHARES, SHARES)])
def test_the_loss_and_the_weights_follow_the_importance(importance: Any, p: list[float]) -> None:
    """All train: weights are the importance, to one unit of 2^-40."""
    simulation = made(Run(Uniform(4), UNEQUAL, importance=importance))
    (history,) = simulation.run(2)
    (quality,) = simulation.client_quality()

    last = history.rounds[-1]
    assert last.clients == [0, 1, 2, 4]
    np.testing.assert_allclose(last.weights, np.array(p)[last.clients], rtol=0, atol=2.0**-40)
    assert last.quality is not None
    loss = np.nansum(np.array(p) * quality.loss)
    assert last.quality.loss == pytest.approx(loss, rel=1e-9)  # units, and sums of losses
    tested = ~np.isnan(quality.accuracy)
    weights = np.array(p)[tested] / np.array(p)[tested].sum()
    assert last.quality.accuracy == pytest.approx(weights @ quality.accuracy[tested], rel=1e-9)


def test_a_run_resumes_with_its_importance_and_with_no_other(tmp_path: Path) -> None:
    def fresh(importance: Any = "equal") -> Any:
        return made(Run(Poisson(3), UNEQUAL, importance=importance))

    whole = fresh()
    whole.run(5)

    assert_same(whole, resumed(fresh, tmp_path / "state", stop=2, rounds=5))
    for other in ("sizes", SHARES):
        with pytest.raises(SimulationError, match="another simulation; runs differ"):
            fresh(other).resume(tmp_path / "state")


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        ("alike", r"Run: importance must be one of sizes, equal; got 'alike'"),
        (
            [0.5, 0.5],
            r"Run: importance must be numbers of shape \(5,\); got float64 of shape \(2,\)",
        ),
        ([0.3, 0.3, 0.3, 0, 0.3], r"Run: importance must sum to 1 within 1e-09; got 1\.2"),
        ([0.2] * 5, r"must be 0 for a client without samples; client 3 has none"),
        ([1.2, -0.2, 0, 0, 0], r"Run: importance must not be negative; client 1 has -0\.2"),
    ],
)
def test_what_is_no_importance_is_refused(importance: Any, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        Run(Uniform(4), UNEQUAL, importance=importance)
