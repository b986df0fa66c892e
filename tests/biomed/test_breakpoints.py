"""An experiment that is loaded from a breakpoint goes on with the same cohorts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedbiomed.common.exceptions import FedbiomedStrategyError
from fedbiomed.researcher.federated_workflows import Experiment

from biomed.in_process import InProcessNodes, images, model_of, moved, update_of
from fedcohort import Population, Recipe, Regression, SimilarityClustered, SizeClustered, recipe
from fedcohort.errors import SelectorError
from fedcohort.fedbiomed import CohortStrategy, Limits

Make = Callable[..., Any]


@recipe
def largest(population: Population, known: Any, rng: np.random.Generator) -> Sequence[int]:
    """Draw the largest."""
    return [int(np.argmax(population.sizes))]


def breakpoint_of(experiment: Any, number: int) -> str:
    return str(Path(experiment.experimentation_path()) / f"breakpoint_{number:04d}")


def drawn(path: Path) -> list[Any]:
    return [json.loads(line)["drawn"] for line in path.read_text().splitlines()]


@pytest.fixture
def _training(nodes: InProcessNodes) -> None:
    """Let nodes train alike in a round, and one of them fail sometimes."""

    def train(name: str, params: dict[str, Any]) -> dict[str, Any] | str:
        round_ = len(nodes.asked)
        if name == "Nice" and round_ % 2:
            return "it broke"
        return moved(params, update_of(name, round_))

    nodes.node = train


FEATURES = {name: [len(name), name[0] < "L"] for name in ("Brest", "Caen", "Lyon", "Metz", "Nice")}


@pytest.mark.usefixtures("_training")
@pytest.mark.parametrize(
    "estimator", ["plain", "difference", "regression", Regression(features=FEATURES)], ids=str
)
def test_it_goes_on_as_if_it_had_not_stopped(
    estimator: Any, nodes: InProcessNodes, experiment: Make, tmp_path: Path
) -> None:
    def run(log: Path, rounds: int) -> Any:
        nodes.asked.clear()
        made = CohortStrategy(SimilarityClustered(2), seed=7, estimator=estimator, log_file=log)
        own = experiment(made, save_breakpoints=True, round_limit=rounds)
        own.run()
        return own

    whole = run(tmp_path / "whole", 8)
    first = run(tmp_path / "parts", 4)

    second = Experiment.load_breakpoint(breakpoint_of(first, 3))
    second.strategy().attach(second)
    second.run(rounds=4, increase=True)

    assert drawn(tmp_path / "parts") == drawn(tmp_path / "whole")
    assert model_of(second).tolist() == model_of(whole).tolist()


@pytest.mark.usefixtures("_training")
def test_an_earlier_breakpoint_can_be_loaded(
    nodes: InProcessNodes, experiment: Make, tmp_path: Path
) -> None:
    strategy = CohortStrategy(SizeClustered(2), seed=7, log_file=tmp_path / "log")
    own = experiment(strategy, save_breakpoints=True, round_limit=6)
    own.run()

    early = Experiment.load_breakpoint(breakpoint_of(own, 1))
    early.strategy().attach(early)
    early.run(rounds=4, increase=True)

    found = drawn(tmp_path / "log")
    assert found[2:6] == found[6:]


def test_settings_are_kept(nodes: InProcessNodes, experiment: Make) -> None:
    strategy = CohortStrategy(
        SizeClustered(2),
        seed=7,
        ping=None,
        limits=Limits(max_count=5),
        max_norm=5.0,
        sizes={"Metz": 500},
    )
    own = experiment(strategy, save_breakpoints=True, round_limit=1)
    own.run()

    loaded = Experiment.load_breakpoint(breakpoint_of(own, 0))
    loaded.strategy().attach(loaded)

    found = loaded.strategy()
    assert (found._ping, found._limits.max_count, found.selector.seed) == (None, 5, 7)
    assert found.selector.max_norm == 5.0
    assert found.selector.clients["Metz"] == 500


def test_counted_sizes_are_kept(nodes: InProcessNodes, experiment: Make) -> None:
    strategy = CohortStrategy(SizeClustered(2), seed=7)
    own = experiment(
        strategy, training_data=images(nodes.sizes), save_breakpoints=True, round_limit=1
    )
    own.run()

    loaded = Experiment.load_breakpoint(breakpoint_of(own, 0))
    loaded.strategy().attach(loaded)
    loaded.run(rounds=1, increase=True)

    assert [len(asked) for asked in nodes.asked] == [5, 2]


def test_a_loaded_strategy_must_be_attached(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2)), save_breakpoints=True, round_limit=1)
    own.run()
    loaded = Experiment.load_breakpoint(breakpoint_of(own, 0))

    with pytest.raises(FedbiomedStrategyError, match=r"experiment.strategy\(\).attach"):
        loaded.run(rounds=1, increase=True)


def test_a_recipe_of_ones_own_is_given_again(nodes: InProcessNodes, experiment: Make) -> None:
    own_recipe: Recipe = largest(1)
    own = experiment(CohortStrategy(own_recipe), save_breakpoints=True, round_limit=1)
    own.run()
    loaded = Experiment.load_breakpoint(breakpoint_of(own, 0))

    with pytest.raises(SelectorError, match=r"that is not the library's.*Pass it as recipe="):
        loaded.strategy().attach(loaded)
    loaded.strategy().attach(loaded, recipe=own_recipe)
    loaded.run(rounds=1, increase=True)

    assert loaded.strategy().selector.round_ == 2


def test_a_missing_file_is_named(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2)), save_breakpoints=True, round_limit=1)
    own.run()
    (file,) = Path(own.experimentation_path()).glob("*.state")
    file.unlink()

    with pytest.raises(FedbiomedStrategyError, match=r"cohorts_0000.state cannot be read"):
        Experiment.load_breakpoint(breakpoint_of(own, 0))


@pytest.mark.parametrize("parameters", [None, {}, {"selector": "x"}])
def test_another_strategys_breakpoint_is_refused(parameters: Any) -> None:
    with pytest.raises(FedbiomedStrategyError, match="the breakpoint was not written by it"):
        CohortStrategy().load_state_breakpoint({"parameters": parameters})


def test_only_the_owner_may_read_the_state(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2)), save_breakpoints=True, round_limit=1)

    own.run()

    (file,) = Path(own.experimentation_path()).glob("*.state")
    assert file.stat().st_mode & 0o777 == 0o600
