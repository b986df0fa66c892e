"""Nonsense is refused at the door, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fedbiomed.common.exceptions import FedbiomedStrategyError
from fedbiomed.researcher.aggregators import Scaffold

from biomed.in_process import InProcessNodes
from fedcohort import SizeClustered
from fedcohort.designs import RECIPES
from fedcohort.errors import FedBioMedError, FedcohortError
from fedcohort.fedbiomed import CohortStrategy, Limits

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "size"}, "recipe must be a Recipe; got 'size'"),
        ({"on_failure": "redraw"}, "Fed-BioMed asks nodes once a round.*Use 'keep'"),
        ({"on_failure": "hope"}, "on_failure must be"),
        ({"estimator": "best"}, "estimator must be"),
        ({"limits": {"min_replies": 1}}, r"limits must be Limits\(...\); got"),
        ({"limits": Limits(min_replies=3)}, "min_replies must be at most the 2 draws"),
        ({"ping": "yes"}, "ping must be"),
        ({"sizes": [1, 2]}, "sizes must map clients to samples"),
        ({"sizes": {"a": -1}}, "the size of client 'a' must be"),
        ({"seed": -1}, "seed must be"),
        ({"sketch": 0}, "sketch must be"),
        ({"max_norm": 0}, "max_norm must be a number above 0"),
        ({"extra": 1}, "extra is not available here; got 1"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedcohortError, match=message):
        CohortStrategy(**{"recipe": SizeClustered(2), **arguments})


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("power-of-choice", "loss"),
        ("norm-optimal", "update_norm"),
        ("first", "duration"),
        ("oort", "past_loss"),
    ],
)
def test_recipes_that_need_what_nodes_do_not_say_are_refused(name: str, signal: str) -> None:
    with pytest.raises(FedBioMedError, match=f"{name} needs the signal '{signal}', which Fed-Bio"):
        CohortStrategy(RECIPES[name](2))


def test_a_strategy_must_be_attached(nodes: InProcessNodes) -> None:
    strategy = CohortStrategy(SizeClustered(2))

    with pytest.raises(FedbiomedStrategyError, match=r"Call strategy.attach\(experiment\) before"):
        strategy.sample_nodes(["Nice"], 0)


def test_it_is_attached_to_an_experiment_only() -> None:
    with pytest.raises(FedBioMedError, match="attach needs Fed-BioMed's Experiment; got SimpleNam"):
        CohortStrategy(SizeClustered(2)).attach(SimpleNamespace())


def test_it_does_not_keep_an_experiment_alive(nodes: InProcessNodes, experiment: Make) -> None:
    strategy = CohortStrategy(SizeClustered(2))
    own = experiment(strategy)
    own.set_strategy(None)
    del own

    with pytest.raises(FedbiomedStrategyError, match=r"its experiment is gone\. Call attach"):
        strategy.sample_nodes(["Nice"], 0)


def test_a_strategy_without_a_recipe_is_refused(nodes: InProcessNodes, experiment: Make) -> None:
    with pytest.raises(FedBioMedError, match="needs a recipe; got none"):
        experiment(CohortStrategy())


def test_a_second_recipe_is_refused(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2)))

    with pytest.raises(FedBioMedError, match=r"has a recipe, SizeClustered.*; got another"):
        own.strategy().attach(own, recipe=SizeClustered(3))


def test_aggregators_that_do_not_average_are_refused(
    nodes: InProcessNodes, experiment: Make
) -> None:
    with pytest.raises(FedBioMedError, match="FedAverage or one that inherits it; got Scaffold"):
        experiment(CohortStrategy(SizeClustered(2)), aggregator=Scaffold())


def test_secure_aggregation_is_refused(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2)))
    own.set_secagg(True)

    with pytest.raises(FedbiomedStrategyError, match="with secure aggregation each node weighs"):
        own.run_once(increase=True)


def test_a_round_that_it_did_not_draw_is_refused(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2)))

    with pytest.raises(FedbiomedStrategyError, match="round 3 was not drawn by it"):
        own.strategy().refine({}, 3)


def test_too_few_nodes_are_refused_in_a_sentence(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(RECIPES["uniform"](9)))

    with pytest.raises(FedbiomedStrategyError, match="5 clients"):
        own.run_once(increase=True)


def test_a_dropped_round_is_skipped(nodes: InProcessNodes, experiment: Make) -> None:
    own = experiment(CohortStrategy(SizeClustered(2), seed=0))
    own.strategy().sample_nodes(list(nodes.sizes), 0)

    own.run_once(increase=True)

    assert own.strategy().selector.round_ == 2


def test_fedbiomed_says_an_error_in_one_sentence(
    nodes: InProcessNodes,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = experiment(CohortStrategy(SizeClustered(2)))
    own.set_strategy(CohortStrategy(SizeClustered(2)))
    monkeypatch.setenv("FBM_DEBUG", "0")

    with pytest.raises(SystemExit):
        own.run_once(increase=True)

    assert "stopped due to exception:\nCohortStrategy: is not attached" in capsys.readouterr().out
